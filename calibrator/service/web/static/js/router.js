// Addresses: the path says which page, the query what is chosen on it. Every view can be sent as a link.

const ROUTES = [
  [/^\/$/, "fleet"],
  [/^\/jobs\/?$/, "jobs"],
  [/^\/rollouts\/?$/, "rollouts"],
  [/^\/rollouts\/(\d+)\/?$/, "rollouts", ["id"]],
  [/^\/deployments\/([^/]+)\/?$/, "deployment", ["name"]],
  [/^\/deployments\/([^/]+)\/(calibration|throughput|parameters|activity|rollouts)\/?$/, "deployment", ["name", "tab"]],
];

let listener = () => {};

export function match(path) {
  for (const [pattern, page, names = []] of ROUTES) {
    const found = pattern.exec(path);
    if (!found) continue;
    const params = {};
    names.forEach((name, i) => { params[name] = decodeURIComponent(found[i + 1]); });
    return { page, params };
  }
  return { page: "missing", params: {} };
}

export const query = () => Object.fromEntries(new URLSearchParams(location.search));

/** The query with some values changed; null or "" takes one out. */
export function withQuery(changes, base = query()) {
  const pairs = new URLSearchParams(base);
  for (const [key, value] of Object.entries(changes)) {
    if (value === null || value === undefined || value === "") pairs.delete(key);
    else pairs.set(key, value);
  }
  const text = pairs.toString();
  return text ? `?${text}` : "";
}

/** Change what is chosen on this page, without a new entry in the history. */
export function choose(changes) {
  history.replaceState(null, "", location.pathname + withQuery(changes));
  listener({ samePage: true });
}

export function go(url) {
  if (url === location.pathname + location.search) return;
  history.pushState(null, "", url);
  listener({ samePage: false });
}

export function startRouter(onChange) {
  listener = onChange;
  addEventListener("popstate", () => listener({ samePage: false }));
  document.addEventListener("click", (event) => {
    if (event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
    const anchor = event.target.closest("a[href]");
    if (!anchor || anchor.target || anchor.hasAttribute("download") || anchor.origin !== location.origin) return;
    if (anchor.hash && anchor.pathname === location.pathname) return;
    if (match(anchor.pathname).page === "missing") return;
    event.preventDefault();
    go(anchor.pathname + anchor.search);
  });
}

export const deploymentUrl = (name, tab = "") => `/deployments/${encodeURIComponent(name)}${tab ? `/${tab}` : ""}`;
