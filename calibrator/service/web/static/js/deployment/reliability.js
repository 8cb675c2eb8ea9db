// Reliability per position: all of them small, the chosen one large with its table of bins.

import { h, replace } from "../ui/dom.js";
import { badge } from "../ui/badge.js";
import { panel } from "../ui/panel.js";
import { dash, term } from "../ui/tip.js";
import { deploymentPath, get } from "../api.js";
import { legend } from "../charts/legend.js";
import { multiple, reliabilityPlot } from "../charts/reliability.js";
import * as f from "../format.js";
import { choose } from "../router.js";

const LEGEND = () => legend([
  ["dashed", "var(--raw)", "raw", "raw"], ["line", "var(--in-force)", "in force", "in_force"],
  ["area", "var(--hatch)", "consistency band", "band"], ["dotted", "var(--line-strong)", "perfect"]]);

const row = (label, ...values) => h("tr", {}, h("th", { scope: "row" }, label), values.map((v) => h("td", { class: "num" }, v)));

/** `view()` answers what is chosen: {range, segment, sampling, position}. `onData` feeds the tiles. */
export function reliabilityPanel(name, view, onData) {
  const grid = h("div", { class: "multiples" });
  const detail = h("div", { class: "detail" });
  let data = null;

  function draw() {
    const chosen = view().position;
    replace(grid, data.positions.map((entry) => multiple(entry, entry.position === chosen, (position) => choose({ position }))));
    const entry = data.positions.find((p) => p.position === chosen);
    replace(detail, entry && large(entry));
    detail.hidden = !entry;
  }

  const made = panel({
    title: "Reliability by position", id: "reliability", tools: LEGEND(),
    note: "Observed against predicted survival of the draft up to each position; bars show where the predictions lie. On the diagonal, confidences mean what they say. Press a diagram to enlarge it.",
    load: (signal) => get(`${deploymentPath(name)}/reliability`, view().filter(), signal),
    draw: (body, next) => {
      data = next;
      const focused = document.activeElement?.dataset?.action;
      if (!body.firstChild) body.append(grid, detail);
      draw();
      if (focused?.startsWith("position-")) grid.querySelector(`[data-action="${focused}"]`)?.focus();
      onData(next);
    },
  });
  made.redraw = () => data && draw();
  return made;
}

function large(entry) {
  const { position, in_force: now, raw } = entry;
  const both = (key, show) => [show(raw[key]), show(now[key])];
  const ece = (d) => (f.isNumber(d.ece) ? h("span", {}, f.error(d.ece), h("span", { class: "sub" }, f.interval(d.ece_low, d.ece_high))) : dash(d.status));
  return h("div", { class: "large-reliability" }, reliabilityPlot(entry, true),
    h("div", {}, h("table", {}, h("caption", { class: "visually-hidden" }, `Figures of position ${position}`),
      h("thead", {}, h("tr", {}, h("th", {}, `Position ${position}`), h("th", { class: "num" }, "raw"), h("th", { class: "num" }, "in force"))),
      h("tbody", {},
        row(term("ece"), ece(raw), ece(now)), row(term("noise_floor"), ...both("noise_floor", f.error)),
        row(term("gap"), ...both("gap", (x) => f.signed(x))), row(term("n_eff"), ...both("n_eff", f.count)),
        row("status", badge(raw.status), badge(now.status)))),
    h("p", { class: "soft" }, reading(now))));
}

/** The figures in words. */
function reading(d) {
  if (!f.isNumber(d.ece)) return "No labels here: nothing can be said about this position.";
  if ((f.isNumber(d.noise_floor) && d.ece <= d.noise_floor) || d.ece_low === 0) return "Not distinguishable from a perfectly calibrated head on so many rows.";
  const side = d.gap > 0 ? "promises more than is accepted (overconfident)" : "promises less than is accepted (underconfident)";
  return `Under the parameters in force the head ${side} by ${f.error(Math.abs(d.gap))} on average.`;
}
