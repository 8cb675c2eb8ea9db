// What a step costs by batch size: samples, the live fit, the curve in force, and where nobody knows.

import { h, replace } from "../ui/dom.js";
import { badge } from "../ui/badge.js";
import { panel, segmented } from "../ui/panel.js";
import { Table } from "../ui/table.js";
import { term } from "../ui/tip.js";
import { deploymentPath, get } from "../api.js";
import { Chart, axis, legend, tooltip, valueAxis } from "../charts/echart.js";
import * as f from "../format.js";
import { choose } from "../router.js";

const SYMBOLS = { measured: "circle", extrapolated: "diamond", flat: "rect", unsupported: "triangle", stale: "emptyCircle" };

const DRIFT = [
  { key: "load", label: "Load", cell: (d) => (f.isNumber(d.load_regime) ? f.loadRegime(d.load_regime) : "all") },
  { key: "context", label: "Context", num: true, cell: (d) => (d.context_bucket === 0 ? "not told" : f.isNumber(d.context_bucket) ? `${f.count(d.context_bucket)} tokens` : "all") },
  { key: "bias", label: "Bias", num: true, about: "Measured against predicted step time: above 0 the curve promises too much.", cell: (d) => f.change(d.bias) },
  { key: "error", label: "Median error", num: true, cell: (d) => f.share(d.median_relative_error) },
  { key: "n", label: "n_eff", num: true, cell: (d) => f.count(d.n_eff) },
];

export function curvePanel(name, view) {
  const chart = new Chart(340);
  const notes = h("div", { class: "figure-notes" });
  const drift = new Table({ columns: DRIFT, key: (d) => `${d.load_regime}/${d.context_bucket}`, caption: "Predicted against measured step time", empty: "Not compared yet." });
  const driftTitle = h("h3", { class: "below" }, "Measured against predicted step time");
  const tools = segmented("Scale of batch tokens", [["linear", "Linear"], ["log", "Log"]], view().scale, (scale) => choose({ scale: scale === "linear" ? null : scale }));
  let data = null;

  const made = panel({
    title: "Throughput curve", id: "curve", width: "w8", tools,
    load: (signal) => get(`${deploymentPath(name)}/curve`, {}, signal),
    draw: (body, next) => {
      data = next;
      if (!body.firstChild) body.append(h("div", { class: "key" }), chart.el, notes, driftTitle, drift.el);
      const nothing = !next.live && !next.in_force && !next.samples?.length;
      chart.el.hidden = nothing;
      replace(body.firstChild, nothing ? "No steps were reported yet." : legend([
        next.samples?.length && ["dot", "var(--hatch)", "sampled steps"], next.live && ["line", "var(--in-force)", "live fit"], next.in_force && ["dashedLine", "var(--raw)", `in force${next.version ? ` (v${next.version})` : ""}`],
        ["diamond", "var(--in-force)", "extrapolated"], ["triangle", "var(--in-force)", "unsupported"], next.live?.dead_spots?.length && ["area", "var(--alarm)", "dead spot", "dead_spot"]]));
      tell(next);
      drift.update(next.drift ?? []);
      drift.el.hidden = driftTitle.hidden = !next.drift?.length;
      if (!nothing) draw();
    },
  });

  function tell({ live, reasons = [] }) {
    if (!live) return replace(notes);
    const counts = Object.entries((live.status ?? []).reduce((sum, st) => ({ ...sum, [st]: (sum[st] ?? 0) + 1 }), {}));
    return replace(notes,
      h("p", { class: "chips" }, counts.map(([st, n]) => badge(st, `${n} ${n === 1 ? "size" : "sizes"} ${st}`)), live.outliers > 0 && badge("no_data", `${f.share(live.outliers)} outliers left out`, "Steps many times the median: compiles, prefill mixed in, stalls.")),
      live.dead_spots?.length > 0 && h("p", { class: "soft" }, term("dead_spot", "Dead spots"), ": ", live.dead_spots.map(([a, b]) => (a === b ? a : `${a} to ${b}`)).join(", "), " tokens"),
      reasons.length > 0 && h("ul", { class: "reasons soft" }, reasons.map((r) => h("li", {}, r))));
  }

  function draw() {
    tools.set(view().scale);
    const log = view().scale === "log";
    chart.draw((c) => option(c, data, log), "Seconds of a step by batch tokens");
  }
  return { ...made, redraw: () => data && draw(), stop: () => { made.stop(); chart.stop(); } };
}

function curveLine(curve, name, color, dashed) {
  return {
    type: "line", name, color, step: curve.interpolation === "floor" ? "end" : false, lineStyle: { width: 1.9, color, type: dashed ? "dashed" : "solid" },
    data: curve.batch_tokens.map((b, i) => ({ value: [b, curve.seconds[i] * 1e3], symbol: dashed ? "none" : SYMBOLS[curve.status?.[i]] ?? "circle", symbolSize: 7, itemStyle: { color } })),
  };
}

function option(c, { live, in_force: now, samples = [] }, log) {
  const series = [{
    type: "scatter", name: "step", symbolSize: 4.5, itemStyle: { color: c.faint, opacity: 0.38 }, data: samples.map((p) => [p.batch_tokens, p.seconds * 1e3, p.requests]), silent: false,
    markArea: live?.dead_spots?.length ? { silent: true, itemStyle: { color: c.alarm }, data: live.dead_spots.map(([a, b]) => [{ xAxis: a }, { xAxis: Math.max(b, a + 1) }]) } : undefined,
  }];
  if (now) series.push(curveLine(now, "in force", c.raw, true));
  if (live) series.push(curveLine(live, "live fit", c["in-force"], false));
  return {
    grid: { left: 48, right: 18, top: 32, bottom: 40 },
    xAxis: axis(c, { type: log ? "log" : "value", logBase: 2, min: log ? 1 : 0, name: "batch tokens", nameLocation: "middle", nameGap: 25, splitLine: { show: false } }),
    yAxis: valueAxis(c, "ms per step", { min: 0 }), series,
    tooltip: tooltip(c, ([item]) => {
      if (item.seriesName === "step") return { title: "One step", rows: [["batch tokens", f.count(item.value[0])], ["took", f.duration(item.value[1] / 1e3)], ["requests", f.count(item.value[2])]] };
      const curve = item.seriesName === "live fit" ? live : now;
      return { title: `${item.value[0]} batch tokens`, rows: [[item.seriesName, f.duration(item.value[1] / 1e3), item.color], ["steps per second", f.figure(1e3 / item.value[1])], ["status", curve.status?.[item.dataIndex] ?? "–"]] };
    }, { trigger: "item" }),
  };
}
