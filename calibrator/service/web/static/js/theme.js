// Light, dark, or what the system prefers; and the colours of the moment for what is drawn on a canvas.

const NAMES = ["paper", "card", "raised", "ink", "soft", "faint", "line", "line-strong", "accent", "in-force", "raw", "third", "fourth", "floor", "ok", "warn", "bad", "band", "hatch", "alarm"];
// Positions are ordered, so their colours are too (after viridis, which any colour vision orders).
const RAMPS = {
  light: [[58, 28, 113], [49, 84, 148], [24, 124, 140], [44, 152, 98], [138, 148, 24]],
  dark: [[168, 148, 244], [110, 162, 240], [72, 190, 206], [92, 212, 140], [226, 220, 92]],
};

const listeners = new Set();
const system = matchMedia("(prefers-color-scheme: dark)");

export const isDark = () => (document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";

export const onTheme = (listener) => {
  listeners.add(listener);
  return () => listeners.delete(listener);
};

export function toggleTheme() {
  const next = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  try {
    localStorage.setItem("dspark-theme", next);
  } catch {
    // Not kept then; the toggle still works.
  }
  for (const listener of listeners) listener();
}

system.addEventListener("change", () => listeners.forEach((listener) => listener()));

/** Colours by name, "in-force" as `c["in-force"]`. */
export function colors() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

/** Colour of the k-th of n positions. */
export function rampColor(k, n) {
  const stops = RAMPS[isDark() ? "dark" : "light"];
  const at = n > 1 ? ((k - 1) / (n - 1)) * (stops.length - 1) : 0;
  const i = Math.min(stops.length - 2, Math.floor(at));
  const mixed = stops[i].map((low, c) => Math.round(low + (stops[i + 1][c] - low) * (at - i)));
  return `rgb(${mixed.join(",")})`;
}
