// Temperatures and offsets over versions.

import { panel } from "../ui/panel.js";
import { term } from "../ui/tip.js";
import { Chart, axis, tooltip, valueAxis } from "../charts/echart.js";
import { legend } from "../charts/legend.js";
import * as f from "../format.js";
import { rampColor } from "../theme.js";

function parameterPanel({ title, key, neutral, load, note, id }) {
  const chart = new Chart(250);
  const made = panel({
    title, note, width: "w6", id, load,
    tools: legend([["plainLine", "var(--faint)", "one line per position, numbered at its end"], ["dotted", "var(--floor)", `no correction (${neutral})`]]),
    draw: (body, versions) => {
      const rows = [...versions].sort((a, b) => a.version - b.version);
      if (!rows.length) {
        body.textContent = "No version was published yet.";
        return;
      }
      if (!body.contains(chart.el)) body.replaceChildren(chart.el);
      chart.draw((c) => option(c, rows, key, neutral), `${title} of versions ${rows[0].version} to ${rows.at(-1).version}`);
    },
  });
  return { ...made, stop: () => { made.stop(); chart.stop(); } };
}

function option(c, rows, key, neutral) {
  const n = Math.max(...rows.map((r) => r[key].length));
  const series = Array.from({ length: n }, (_, k) => ({
    type: "line", name: String(k + 1), step: "end", color: rampColor(k + 1, n), symbol: rows.length > 40 ? "none" : "circle", symbolSize: 4.5, lineStyle: { width: 1.8 },
    endLabel: { show: true, formatter: "{a}", color: rampColor(k + 1, n), fontSize: 11, distance: 5 }, labelLayout: { moveOverlap: "shiftY" },
    data: rows.map((r) => r[key][k] ?? null),
    ...(k ? {} : { markLine: { silent: true, symbol: "none", lineStyle: { color: c.floor, type: [2, 3], width: 1.4 }, label: { show: false }, data: [{ yAxis: neutral }] } }),
  }));
  return {
    grid: { left: 44, right: 30, top: 18, bottom: 40 },
    xAxis: axis(c, { type: "category", data: rows.map((r) => `v${r.version}`), name: "version", nameLocation: "middle", nameGap: 25, splitLine: { show: false } }),
    yAxis: valueAxis(c, "", { scale: true }), series,
    tooltip: tooltip(c, (items) => {
      const r = rows[items[0].dataIndex];
      return { title: `Version ${r.version}, ${r.form}`, rows: [...items.map((item) => [`position ${item.seriesName}`, f.fixed(item.value, 3), item.color]), ["published", f.time(r.created_at)]] };
    }),
  };
}

export const parameterPanels = (load) => [
  parameterPanel({ title: "Temperatures", id: "temperatures", key: "temperatures", neutral: 1, load, note: [term("temperature", "Divide the logit"), "; the raw head has 1."] }),
  parameterPanel({ title: "Offsets", id: "offsets", key: "offsets", neutral: 0, load, note: [term("offset", "Added to the scaled logit"), "; the temperature form has 0."] }),
];
