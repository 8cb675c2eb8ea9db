// Temperatures and offsets over versions.

import { panel } from "../ui/panel.js";
import { term } from "../ui/tip.js";
import { Chart, axis, tooltip, valueAxis } from "../charts/echart.js";
import { legend } from "../charts/legend.js";
import * as f from "../format.js";
import { rampColor } from "../theme.js";
import { wasInForce } from "./versions.js";

function parameterPanel({ title, key, neutral, load, note, id }) {
  const chart = new Chart(250);
  const made = panel({
    title, note, width: "w6", id, load,
    tools: legend([["plainLine", "var(--faint)", "one line per position, numbered at its end; only versions that were in force"], ["dotted", "var(--floor)", `no correction (${neutral})`]]),
    draw: (body, versions) => {
      const rows = versions.filter(wasInForce).sort((a, b) => a.version - b.version);
      if (!rows.length) {
        body.textContent = "No version came into force yet.";
        return;
      }
      if (!body.contains(chart.el)) body.replaceChildren(chart.el);
      chart.draw((c) => option(c, rows, key, neutral), `${title} of versions ${rows[0].version} to ${rows.at(-1).version}`);
    },
  });
  return { ...made, stop: () => { made.stop(); chart.stop(); } };
}

const ROOM = 0.075;

/** Labels of the lines' ends: lines that end too close for a label each share one, "2–4, 6". */
function endNames(values, neutral) {
  const known = values.filter(f.isNumber);
  const room = ROOM * Math.max(1e-9, Math.max(neutral, ...known) - Math.min(neutral, ...known));
  const order = values.map((value, k) => ({ value, k })).filter((e) => f.isNumber(e.value)).sort((a, b) => a.value - b.value);
  const groups = [];
  for (const entry of order) {
    const last = groups.at(-1);
    if (last && entry.value - last[0].value < room) last.push(entry);
    else groups.push([entry]);
  }
  const names = values.map(() => null);
  for (const group of groups) names[group[Math.floor(group.length / 2)].k] = runs(group.map((e) => e.k + 1).sort((a, b) => a - b));
  return names;
}

function runs(numbers) {
  const parts = [];
  for (const number of numbers) {
    const last = parts.at(-1);
    if (last && number === last[1] + 1) last[1] = number;
    else parts.push([number, number]);
  }
  return parts.map(([from, to]) => (from === to ? `${from}` : to === from + 1 ? `${from}, ${to}` : `${from}–${to}`)).join(", ");
}

function option(c, rows, key, neutral) {
  const n = Math.max(...rows.map((r) => r[key].length));
  const names = endNames(rows.at(-1)[key], neutral);
  const series = Array.from({ length: n }, (_, k) => ({
    type: "line", name: String(k + 1), step: "end", color: rampColor(k + 1, n), symbol: rows.length > 40 ? "none" : "circle", symbolSize: 4.5, lineStyle: { width: 1.8 },
    endLabel: { show: Boolean(names[k]), formatter: names[k] ?? "", color: rampColor(k + 1, n), fontSize: 11, distance: 5 },
    data: rows.map((r) => r[key][k] ?? null),
    ...(k ? {} : { markLine: { silent: true, symbol: "none", lineStyle: { color: c.floor, type: [2, 3], width: 1.4 }, label: { show: false }, data: [{ yAxis: neutral }] } }),
  }));
  return {
    grid: { left: 44, right: 46, top: 18, bottom: 40 },
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
