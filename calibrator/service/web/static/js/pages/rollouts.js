// Rollouts of all deployments, or one of them.

import { h } from "../ui/dom.js";
import { rolloutPanels } from "../deployment/rollouts.js";

export function open({ id }) {
  document.title = "Rollouts · DSpark Calibrator";
  const panels = rolloutPanels({ id: id ? Number(id) : null });
  const refresh = () => panels.forEach((p) => p.refresh());
  refresh();
  return {
    el: h("div", {},
      h("div", { class: "page-head" }, h("div", {}, id && h("p", { class: "crumbs" }, h("a", { href: "/rollouts" }, "Rollouts"), " /"), h("h1", {}, id ? `Rollout ${id}` : "Rollouts"),
        h("p", { class: "lead" }, "A new version is scored in shadow, then applied by a share of the replicas, then by all. Evidence promotes it or takes it back."))),
      h("div", { class: "grid" }, panels.map((p) => p.el))),
    tables: () => panels.map((p) => p.table).filter(Boolean),
    happened: refresh,
    stop: () => panels.forEach((p) => p.stop()),
  };
}
