// Coverage: which positions have labels at all; exploration: what buys more of them, and what that costs.

import { h, replace } from "../ui/dom.js";
import { panel } from "../ui/panel.js";
import { term } from "../ui/tip.js";
import { deploymentPath, get } from "../api.js";
import { Chart, axis, legend, timeAxis, tooltip, valueAxis } from "../charts/echart.js";
import * as f from "../format.js";
import { rampColor } from "../theme.js";

/** The next step of half a power of ten below: a label at an odd end would cover the one above it. */
function fullStep(low) {
  const step = 10 ** Math.floor(Math.log10(-low)) / 2;
  return Math.floor(low / step) * step;
}

export function coveragePanels(name, view) {
  const coverage = new Chart(220);
  const cost = new Chart(220);
  const key = h("div", { class: "legend" });
  const latest = h("p", { class: "panel-note" });
  let pending = null;
  // Both panels show one answer; whichever asks first fetches it.
  const load = (signal) => {
    pending ??= get(`${deploymentPath(name)}/exploration`, view().times(), signal).finally(() => { pending = null; });
    return pending;
  };

  const left = panel({
    title: "Coverage by position, all segments", width: "w6", id: "coverage",
    note: ["Share of drafted tokens that were verified. ", term("coverage", "Why it falls")],
    load, draw: (body, { coverage: rows }) => {
      if (!body.firstChild) body.append(coverage.el);
      coverage.draw((c) => ({
        grid: { left: 46, right: 12, top: 20, bottom: 36 },
        xAxis: axis(c, { type: "category", data: rows.map((r) => String(r.position)), name: "position", nameLocation: "middle", nameGap: 22, splitLine: { show: false } }),
        yAxis: valueAxis(c, "", { min: 0, max: 1, axisLabel: { formatter: (v) => `${Math.round(v * 100)} %` } }),
        series: [{ type: "bar", barMaxWidth: 46, data: rows.map((r) => ({ value: r.share, itemStyle: { color: rampColor(r.position, rows.length), borderRadius: [3, 3, 0, 0] } })), label: { show: true, position: "top", color: c.soft, fontSize: 11, formatter: ({ value }) => f.share(value) } }],
        tooltip: tooltip(c, ([item]) => {
          const r = rows[item.dataIndex];
          return { title: `Position ${r.position}`, rows: [["coverage", f.share(r.share, 2)], ["verified", f.count(r.verified)], ["drafted", f.count(r.drafted)]] };
        }, { axisPointer: { type: "shadow", shadowStyle: { color: c.hatch } } }),
      }), `Coverage by position: ${rows.map((r) => `${r.position}: ${f.share(r.share)}`).join(", ")}`);
    },
  });

  const right = panel({
    title: "Exploration and its cost, all segments", width: "w6", id: "exploration",
    tools: key,
    load, draw: (body, { decisions, explore, settings }) => {
      if (!body.firstChild) body.append(latest, cost.el);
      const rows = [...decisions].sort((a, b) => Date.parse(a.at) - Date.parse(b.at));
      const last = rows.at(-1);
      replace(latest, `${settings?.mode === "fixed" ? "Fixed" : "Automatic"}: ${f.isNumber(explore) ? f.share(explore, 2) : "none in force"}`, last?.reason ? `; at the last decision: ${last.reason}` : "");
      cost.el.hidden = rows.length === 0;
      const priced = rows.some((r) => f.isNumber(r.relative_speed));
      replace(key, legend([["line", "var(--in-force)", "explored share", "exploration"], priced && ["dashed", "var(--raw)", "change of tokens/s"]]), !priced && rows.length > 0 && h("span", { class: "soft" }, "price not known: no curve"));
      if (!rows.length) return;
      cost.draw((c) => ({
        grid: { left: 46, right: 52, top: 20, bottom: 26 },
        xAxis: timeAxis(c),
        yAxis: [valueAxis(c, "", { min: 0, axisLabel: { formatter: (v) => `${Number((v * 100).toPrecision(2))} %` } }),
          valueAxis(c, "", { max: 0, min: ({ min }) => fullStep(Math.min(-0.002, min)), show: priced, position: "right", splitLine: { show: false }, axisLabel: { formatter: (v) => `${Number((v * 100).toPrecision(2))} %` } })],
        series: [
          { type: "line", step: "end", name: "explored share", data: rows.map((r) => [Date.parse(r.at), r.explore]), symbol: rows.length > 60 ? "none" : "circle", symbolSize: 5, itemStyle: { color: c["in-force"] }, lineStyle: { width: 2, color: c["in-force"] } },
          { type: "line", step: "end", name: "cost", yAxisIndex: 1, data: rows.map((r) => [Date.parse(r.at), r.relative_speed]), symbol: rows.length > 60 ? "none" : "rect", symbolSize: 5, itemStyle: { color: c.raw }, lineStyle: { width: 1.5, type: "dashed", color: c.raw } }],
        tooltip: tooltip(c, (items) => {
          const r = rows[items[0].dataIndex];
          return { title: `${f.time(r.at)} UTC`, rows: [["explored share", f.share(r.explore, 2), c["in-force"]], ["tokens per second", f.change(r.relative_speed, 2), c.raw], ["extra verified per round", f.figure(r.extra_verified)], ["relative to the schedule", f.share(r.extra_share, 2)], ["because", r.reason]] };
        }),
      }), "Explored share and its cost in tokens per second over time");
    },
  });
  return [{ ...left, stop: () => { left.stop(); coverage.stop(); } }, { ...right, stop: () => { right.stop(); cost.stop(); } }];
}
