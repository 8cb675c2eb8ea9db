// By concurrency: how much is verified per request, and what throughput costs the single user.

import { panel } from "../ui/panel.js";
import { deploymentPath, get } from "../api.js";
import { Chart, axis, legend, tooltip, valueAxis } from "../charts/echart.js";
import * as f from "../format.js";
import { rampColor } from "../theme.js";

/** Fetch the ledger once for all panels that show it. */
export function sharedLedger(name, view) {
  let pending = null;
  return (signal) => {
    pending ??= get(`${deploymentPath(name)}/ledger`, { ...view().times(), step: view().step }, signal).finally(() => { pending = null; });
    return pending;
  };
}

const rows = (figures) => [
  ["requests at a time", f.figure(figures.requests)], ["budget per request", f.fixed(figures.budget, 2)], ["accepted per round", f.fixed(figures.accepted_length, 2)], ["wasted", f.share(figures.wasted)],
  ["tokens/s", f.count(figures.tokens_per_second)], ["tokens/s per user", f.figure(figures.tokens_per_second_per_user)], ["steps", f.count(figures.steps)]];

/** Two buckets of loads an octave: 1, 2, 3, 4 to 5, 6 to 7, 8 to 11, ... requests at a time. */
const last = (from) => from + 2 ** Math.max(0, Math.floor(Math.log2(Math.max(1, from))) - 1) - 1;
const short = (from) => (last(from) > from ? `${from}–${last(from)}` : String(from));
const title = (from) => `${f.requestRange(from, last(from))} at a time`;

function chartPanel({ title, note, tools, load, build, label, needs, width = "w6", height = 250, id }) {
  const chart = new Chart(height);
  const made = panel({
    title, note, tools, width, load, id,
    draw: (body, { by_load: loads }) => {
      const known = loads.filter((l) => l.steps > 0 && f.isNumber(l[needs]));
      if (!known.length) {
        body.textContent = "No steps in this range that say so much.";
        return;
      }
      if (!body.contains(chart.el)) body.replaceChildren(chart.el);
      chart.draw((c) => build(c, known), label);
    },
  });
  return { ...made, stop: () => { made.stop(); chart.stop(); } };
}

export function loadPanels(load) {
  const budget = chartPanel({
    title: "Verification budget against concurrency", id: "budget", load, needs: "budget",
    tools: legend([["line", "var(--in-force)", "verified", "budget"], ["dashed", "var(--third)", "accepted", "accepted_length"]]),
    label: "Draft tokens verified and accepted per request by concurrency",
    build: (c, loads) => ({
      grid: { left: 44, right: 16, top: 32, bottom: 40 },
      xAxis: axis(c, { type: "category", data: loads.map((l) => short(l.requests_from)), name: "requests at a time", nameLocation: "middle", nameGap: 25, splitLine: { show: false } }),
      yAxis: valueAxis(c, "tokens per request and step", { min: 0 }),
      series: [
        { type: "line", name: "verified", data: loads.map((l) => l.budget), symbol: "circle", symbolSize: 6, color: c["in-force"], lineStyle: { width: 2 } },
        { type: "line", name: "accepted", data: loads.map((l) => l.accepted_length), symbol: "rect", symbolSize: 6, color: c.third, lineStyle: { width: 1.6, type: "dashed" } }],
      tooltip: tooltip(c, ([item]) => ({ title: title(loads[item.dataIndex].requests_from), rows: rows(loads[item.dataIndex]) })),
    }),
  });
  const users = chartPanel({
    title: "Throughput against speed for a user", id: "users", load, needs: "tokens_per_second_per_user", label: "Tokens per second of a replica against tokens per second per user",
    note: null,
    build: (c, loads) => {
      const points = loads;
      return {
        grid: { left: 54, right: 20, top: 32, bottom: 40 },
        xAxis: axis(c, { type: "value", scale: true, name: "tokens/s per user", nameLocation: "middle", nameGap: 25, splitLine: { show: false } }),
        yAxis: valueAxis(c, "tokens/s of a replica", { min: 0 }),
        series: [{
          type: "line", symbolSize: 8, color: c["line-strong"], lineStyle: { width: 1.4 }, labelLayout: { hideOverlap: true },
          data: points.map((l, i) => ({ value: [l.tokens_per_second_per_user, l.tokens_per_second], itemStyle: { color: rampColor(i + 1, points.length) }, symbol: "circle", label: { show: true, formatter: short(l.requests_from), position: "right", color: c.soft, fontSize: 11 } })),
        }],
        tooltip: tooltip(c, ([item]) => ({ title: title(points[item.dataIndex].requests_from), rows: rows(points[item.dataIndex]) }), { trigger: "item" }),
      };
    },
  });
  return [budget, users];
}
