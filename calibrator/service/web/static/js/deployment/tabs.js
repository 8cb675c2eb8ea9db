// The tabs of a deployment, each a few panels put together.

import { h, replace } from "../ui/dom.js";
import { tile } from "../ui/panel.js";
import { dash, term } from "../ui/tip.js";
import { deploymentPath, list } from "../api.js";
import * as f from "../format.js";
import { accountingPanel, refreshesPanel, replicasPanel } from "./activity.js";
import { coveragePanels } from "./coverage.js";
import { curvePanel } from "./curve.js";
import { driftPanel } from "./drift.js";
import { errorsPanel } from "./errors.js";
import { ledgerPanel } from "./ledger.js";
import { loadPanels, sharedLedger } from "./loads.js";
import { parameterPanels } from "./parameters.js";
import { reliabilityPanel } from "./reliability.js";
import { rolloutPanels } from "./rollouts.js";
import { valuePanel } from "./value.js";
import { versionsPanel } from "./versions.js";

function together(panels, before = null) {
  return {
    el: h("div", {}, before, h("div", { class: "grid" }, panels.map((p) => p.el))),
    refresh: (anew) => panels.forEach((p) => p.refresh(anew)),
    redraw: () => panels.forEach((p) => p.redraw?.()),
    tables: () => panels.map((p) => p.table).filter(Boolean),
    stop: () => panels.forEach((p) => p.stop()),
  };
}

const mean = (values) => {
  const known = values.filter(f.isNumber);
  return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null;
};

function calibrationTiles(tiles, { positions }) {
  const of = (which, key) => positions.map((p) => p[which][key]);
  const [raw, now, floor] = [mean(of("raw", "ece")), mean(of("in_force", "ece")), mean(of("in_force", "noise_floor"))];
  const worst = positions.filter((p) => f.isNumber(p.in_force.ece)).sort((a, b) => b.in_force.ece - a.in_force.ece)[0];
  const thin = positions.filter((p) => p.in_force.status !== "ok");
  const least = Math.min(...of("in_force", "n_eff").filter(f.isNumber));
  const fewer = f.isNumber(raw) && f.isNumber(now) && raw > 0 ? `${f.change(now / raw - 1, 0)} against raw` : "";
  replace(tiles,
    tile([term("ece", "Mean ECE"), " in force"], f.error(now), fewer),
    tile([term("ece", "Mean ECE"), " raw"], f.error(raw), "without any correction"),
    tile(term("noise_floor"), f.error(floor), "nothing to fix below it"),
    tile("Worst position", worst ? [f.error(worst.in_force.ece), h("small", {}, `  position ${worst.position}`)] : dash("no_data"), worst ? `interval ${f.interval(worst.in_force.ece_low, worst.in_force.ece_high) || "–"}` : ""),
    tile(["Least ", term("n_eff")], f.count(least), thin.length ? `${thin.length} of ${positions.length} positions not ok` : "all positions ok"));
}

export function calibration(name, view) {
  const tiles = h("div", { class: "tiles" });
  return together([
    reliabilityPanel(name, view, (data) => calibrationTiles(tiles, data)),
    errorsPanel(name, view), driftPanel(name, view), ...coveragePanels(name, view)], tiles);
}

export function throughput(name, view) {
  const tiles = h("div", { class: "tiles" });
  const ledger = sharedLedger(name, view);
  return together([curvePanel(name, view), valuePanel(name), ledgerPanel(ledger, tiles), ...loadPanels(ledger)], tiles);
}

export function parameters(name, view, changed) {
  let pending = null;
  const load = (signal) => {
    pending ??= list(`${deploymentPath(name)}/versions`, {}, 500, signal).finally(() => { pending = null; });
    return pending;
  };
  return together([...parameterPanels(load), versionsPanel(name, load, changed)]);
}

export const activity = (name) => together([replicasPanel(name), refreshesPanel(name), accountingPanel(name)]);

export const rollouts = (name, _view, changed) => together(rolloutPanels({ deployment: name, changed }));
