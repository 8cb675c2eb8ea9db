// Which versions run where, as a bar with words beside it.

import { h } from "../ui/dom.js";
import { badge } from "../ui/badge.js";
import { dash, tip, tipTable } from "../ui/tip.js";

const SHADES = ["var(--in-force)", "var(--raw)", "var(--third)", "var(--fourth)", "var(--floor)"];

export function versionSpread(replicas) {
  if (!replicas) return dash("unreachable");
  const { live, refusing, versions } = replicas;
  const parts = Object.entries(versions).map(([v, n]) => [Number(v), n]).sort((a, b) => b[0] - a[0]);
  if (!live && !parts.length) return dash("no_data");
  const words = parts.length === 1 ? `v${parts[0][0]} on ${parts[0][1]}` : parts.slice(0, 2).map(([v, n]) => `v${v} × ${n}`).join(", ") + (parts.length > 2 ? " …" : "");
  const box = h("div", { class: "spread", tabindex: "0" },
    h("span", { class: "nowrap" }, parts.length ? words : `${live} live`),
    parts.length > 1 && h("div", { class: "spread-bar", "aria-hidden": "true" }, parts.map(([, n], i) => h("i", { style: { flex: String(n), background: SHADES[Math.min(i, 4)] } }))),
    refusing > 0 && badge("failed", `${refusing} refuse${refusing === 1 ? "s" : ""}`, "Replicas that refused a version; their reasons are on the activity page."));
  return tip(box, () => tipTable(`${live} live replicas`, [...parts.map(([v, n], i) => [`version ${v}`, String(n), SHADES[Math.min(i, 4)]]), refusing > 0 && ["refusing", String(refusing)]]));
}
