// Keys: what an operator's fingers know already.

import { h } from "./dom.js";
import { openDialog } from "./dialog.js";
import { go } from "../router.js";
import { TERMS } from "../glossary.js";

const KEYS = [
  ["/", "search"], ["j k", "next and previous row (arrows too)"], ["Enter", "open the row"],
  ["g d", "fleet of deployments"], ["g r", "rollouts"], ["g j", "jobs"],
  ["1 … 5", "tabs of a deployment"], ["r", "recalibrate (on a deployment)"], ["t", "light or dark"], ["?", "this help"], ["Esc", "close, leave the search"],
];

export async function showHelp() {
  const terms = Object.values(TERMS).map(([name, text]) => [h("dt", {}, h("b", {}, name)), h("dd", { class: "soft" }, text)]);
  await openDialog({
    title: "Keys and terms", wide: true, only: true, confirm: "Close",
    body: [
      h("dl", { class: "keys" }, KEYS.map(([keys, text]) => [h("dt", {}, keys.split(" ").map((k) => [h("kbd", {}, k), " "])), h("dd", {}, text)])),
      h("h3", {}, "Terms"), h("dl", { class: "keys" }, terms),
      h("p", {}, "The same numbers as JSON: ", h("a", { href: "/openapi.json", target: "_blank", rel: "noopener" }, "OpenAPI document"), "."),
    ],
  });
}

/** `page()` answers the page that is shown: it may have tables, search, tabs and recalibrate. */
export function installKeys(page, toggleTheme) {
  let waiting = 0;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const typing = event.target.matches("input, select, textarea");
    if (event.key === "Escape" && typing) return event.target.blur();
    if (typing) return undefined;
    const key = event.key;
    if (waiting && performance.now() - waiting < 1200) {
      waiting = 0;
      const target = { d: "/", f: "/", j: "/jobs", r: "/rollouts" }[key];
      if (target) {
        event.preventDefault();
        return go(target);
      }
    }
    if (key === "g") waiting = performance.now();
    else if (key === "?") showHelp();
    else if (key === "t") toggleTheme();
    else if (key === "/") {
      const search = document.querySelector("input[type=search]");
      if (!search) return undefined;
      search.focus();
      search.select();
    } else if (key === "j" || key === "k" || ((key === "ArrowDown" || key === "ArrowUp") && event.target.closest("tr, .table-wrap"))) {
      const tables = page()?.tables?.() ?? [];
      const table = tables.find((t) => t.el.contains(document.activeElement)) ?? tables[0];
      if (!table?.move(key === "j" || key === "ArrowDown" ? 1 : -1)) return undefined;
    } else if (key === "r" && page()?.recalibrate) page().recalibrate();
    else if (/^[1-9]$/.test(key) && page()?.tabs) {
      const url = page().tabs()[Number(key) - 1];
      if (url) go(url);
    } else return undefined;
    event.preventDefault();
    return undefined;
  });
}
