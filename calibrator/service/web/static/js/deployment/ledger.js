// The ledger: where the time of a token goes, and what came of it.

import { h, replace } from "../ui/dom.js";
import { panel, tile } from "../ui/panel.js";
import { term } from "../ui/tip.js";
import { Chart, legend, timeAxis, tooltip, valueAxis } from "../charts/echart.js";
import * as f from "../format.js";

const split = (x) => (f.isNumber(x.time_per_token) && f.isNumber(x.draft_share)
  ? [x.time_per_token * x.draft_share * 1e3, x.time_per_token * (1 - x.draft_share) * 1e3] : [null, f.isNumber(x.time_per_token) ? x.time_per_token * 1e3 : null]);

export function ledgerPanel(load, tiles) {
  const chart = new Chart(250);
  const made = panel({
    title: "Time per accepted token", id: "ledger", width: "w12",
    tools: legend([["area", "var(--fourth)", "drafting"], ["area", "var(--in-force)", "verifying"], ["dashedLine", "var(--raw)", "wasted", "wasted"]]),
    load,
    draw: (body, { total, series }) => {
      if (!body.firstChild) body.append(chart.el);
      summarize(tiles, total);
      chart.draw((c) => option(c, series), "Milliseconds per accepted token over time, drafting and verifying, and the wasted share");
    },
  });
  return { ...made, stop: () => { made.stop(); chart.stop(); } };
}

function summarize(tiles, total) {
  replace(tiles,
    tile(term("time_per_token"), f.duration(total.time_per_token), f.isNumber(total.draft_share) ? `${f.share(total.draft_share, 0)} of it drafting` : "drafting not told apart"),
    tile(term("wasted", "Wasted verification"), f.share(total.wasted), "of the verified tokens"),
    tile(term("accepted_length"), f.fixed(total.accepted_length, 2), "tokens per round"),
    tile(term("emitted_length"), f.fixed(total.emitted_length, 2), "with the bonus token"),
    tile("Throughput", [f.count(total.tokens_per_second), h("small", {}, " tok/s")], `${f.figure(total.tokens_per_second_per_user)} tok/s per user`),
    tile("Steps, rounds", f.count(total.steps), `${f.count(total.rounds)} rounds`));
}

function option(c, series) {
  const at = series.map((p) => Date.parse(p.at));
  const area = (name, i, color) => ({ type: "line", name, stack: "time", symbol: "none", color, lineStyle: { width: 1.2 }, areaStyle: { color, opacity: 0.38 }, data: series.map((p, j) => [at[j], split(p)[i]]) });
  return {
    grid: { left: 48, right: 52, top: 32, bottom: 26 },
    xAxis: timeAxis(c, at[0], at.at(-1)),
    yAxis: [valueAxis(c, "ms per token", { min: 0 }), valueAxis(c, "", { min: 0, max: 1, position: "right", splitLine: { show: false }, axisLabel: { formatter: (v) => `${Math.round(v * 100)} %` } })],
    series: [area("drafting", 0, c.fourth), area("verifying", 1, c["in-force"]),
      { type: "line", name: "wasted", yAxisIndex: 1, symbol: "none", color: c.raw, lineStyle: { width: 1.6, type: "dashed" }, data: series.map((p, j) => [at[j], p.wasted]) }],
    tooltip: tooltip(c, (items) => {
      const p = series[items[0].dataIndex];
      const [draft, verify] = split(p);
      return { title: `${f.time(p.at)} UTC`, rows: [["time per token", f.duration(p.time_per_token)], draft !== null && ["drafting", f.duration(draft / 1e3), c.fourth], ["verifying", f.duration(verify === null ? null : verify / 1e3), c["in-force"]], ["wasted", f.share(p.wasted), c.raw], ["accepted per round", f.fixed(p.accepted_length, 2)], ["tokens/s", f.count(p.tokens_per_second)]] };
    }),
  };
}
