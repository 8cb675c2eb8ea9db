// Before the first paint, so that a chosen theme does not flash in the other one.
(function () {
  try {
    const chosen = localStorage.getItem("dspark-theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // Storage may be forbidden; the system's preference then decides.
  }
})();
