// Composition: bar, router, live updates, and the page of the moment.

import { h, replace, s, settle } from "./ui/dom.js";
import { installKeys, showHelp } from "./ui/keyboard.js";
import { installTips, tip } from "./ui/tip.js";
import { get } from "./api.js";
import { connection, onConnection, start, subscribe } from "./events.js";
import { match, startRouter } from "./router.js";
import { forget, onMe, setMe, token, who } from "./session.js";
import { isDark, onTheme, toggleTheme } from "./theme.js";

const PAGES = {
  fleet: () => import("./pages/fleet.js"),
  deployment: () => import("./pages/deployment.js"),
  rollouts: () => import("./pages/rollouts.js"),
  jobs: () => import("./pages/jobs.js"),
  missing: () => import("./pages/missing.js"),
};

const root = document.getElementById("page");
let page = null;
let shown = null;
let turn = 0;

async function show({ samePage = false } = {}) {
  const { page: name, params } = match(location.pathname);
  const id = JSON.stringify([name, params]);
  markNavigation(name);
  if (samePage && id === shown && page) {
    page.chosen?.();
    return;
  }
  turn += 1;
  const mine = turn;
  const module = await PAGES[name]();
  if (mine !== turn) return;
  const first = shown === null;
  shown = id;
  if (page?.adopt?.(name, params)) return;
  page?.stop?.();
  page = module.open(params);
  replace(root, page.el);
  if (!first) {
    scrollTo(0, 0);
    root.focus({ preventScroll: true });
  }
}

function markNavigation(name) {
  const current = { fleet: "/", deployment: "/", rollouts: "/rollouts", jobs: "/jobs" }[name];
  for (const link of document.querySelectorAll(".main-nav a")) {
    if (link.getAttribute("href") === current) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

const STATES = {
  live: ["live", "Updates arrive as they happen."],
  polling: ["polling", "The event stream is not available; looking every few seconds."],
  offline: ["offline", "The service cannot be reached. What you see is older; trying again."],
  connecting: ["connecting", "Opening the event stream."],
};

function drawTools() {
  const text = h("span", {});
  const live = h("span", { class: "live", role: "status", "aria-live": "off" }, s("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" }, s("circle", { cx: 5, cy: 5, r: 4 })), text);
  const age = () => {
    const { state, heard } = connection();
    const seconds = heard ? Math.round((Date.now() - heard) / 1000) : null;
    live.dataset.state = state;
    replace(text, STATES[state][0], seconds !== null && seconds >= 2 ? h("span", { class: "long" }, ` · ${seconds} s ago`) : "");
  };
  onConnection(age);
  setInterval(age, 1000);
  tip(live, () => STATES[connection().state][1]);

  const icon = (d) => s("svg", { viewBox: "0 0 20 20", "aria-hidden": "true" }, s("path", { d }));
  const theme = h("button", { class: "button quiet", type: "button", onclick: toggleTheme });
  const drawTheme = () => {
    theme.setAttribute("aria-label", isDark() ? "Light theme" : "Dark theme");
    theme.title = isDark() ? "Light theme (t)" : "Dark theme (t)";
    replace(theme, icon(isDark() ? "M10 3V1.5M10 18.5V17M3 10H1.5M18.5 10H17M5 5 4 4M16 16l-1-1M15 5l1-1M4 16l1-1M10 6.2a3.8 3.8 0 1 0 0 7.6 3.8 3.8 0 0 0 0-7.6z" : "M16.5 11.8A7 7 0 0 1 8.2 3.5a7 7 0 1 0 8.3 8.3z"));
  };
  drawTheme();
  onTheme(drawTheme);
  const help = h("button", { class: "button quiet", type: "button", "aria-label": "Keys and terms", title: "Keys and terms (?)", onclick: showHelp }, "?");
  const account = h("span", { class: "soft" });
  onMe(() => {
    const me = who();
    replace(account, token()
      ? h("button", { class: "button quiet", type: "button", title: "Forget the token of this tab", onclick: forget }, `${me.role} · sign out`)
      : h("span", { class: "role" }, me.read_only ? "read-only" : me.role));
  });
  replace(document.getElementById("tools"), live, account, theme, help);
}

installTips();
drawTools();
installKeys(() => page, toggleTheme);
startRouter(show);
subscribe(settleEvents());
try {
  setMe(await get("/me"));
} catch {
  // The service may be older or away; actions stay grey, pages say what they cannot load.
}
await show();
start();

/** Events come in bursts; pages look again once per burst. */
function settleEvents() {
  let types = new Set();
  let names = new Set();
  let everything = false;
  const deliver = settle(() => {
    const batch = { types, names, everything };
    [types, names, everything] = [new Set(), new Set(), false];
    if (!document.hidden) page?.happened?.(batch);
  });
  return ({ type, data }) => {
    types.add(type);
    if (type === "tick" || !data.deployment) everything = true;
    else names.add(data.deployment);
    deliver();
  };
}
