// Error over time: one position with interval and noise floor, or all at once; alarms and versions marked.

import { h } from "../ui/dom.js";
import { panel, segmented } from "../ui/panel.js";
import { deploymentPath, get, list } from "../api.js";
import { Chart, axis, legend, timeAxis, tooltip, valueAxis } from "../charts/echart.js";
import * as f from "../format.js";
import { choose } from "../router.js";
import { rampColor } from "../theme.js";
import { concerns } from "./drift.js";
import { wasInForce } from "./versions.js";

const MEASURES = [["ece", "ECE", "expected calibration error"], ["gap", "Gap", "predicted minus observed"], ["brier", "Brier", "mean squared error of the prediction"], ["log_loss", "Log loss", "negative log-likelihood"]];
const SHOW = { ece: f.error, gap: (x) => f.signed(x), brier: (x) => f.fixed(x, 4), log_loss: (x) => f.fixed(x, 4) };

/** Marks nearer than so many pixels to one with a label have none. */
const LABEL_PIXELS = 34;

const ms = (at) => Date.parse(at);

export function errorsPanel(name, view) {
  const chart = new Chart(312);
  const key = h("div", {});
  let data = null;

  const tools = segmented("Measure", MEASURES, view().measure, (measure) => choose({ measure: measure === "ece" ? null : measure }));
  const made = panel({
    title: "Error over time", tools, id: "errors",
    note: "Of all positions, points that rest on fewer than 30 effective labels are left out; choose a position to see each with its interval.",
    load: async (signal) => {
      const filter = { ...view().filter(), step: view().step };
      const position = view().position;
      const path = `${deploymentPath(name)}/calibration`;
      const [now, raw, drift, versions] = await Promise.all([
        get(path, { ...filter, position }, signal),
        position ? get(path, { ...filter, position, basis: "raw" }, signal) : null,
        list(`${deploymentPath(name)}/drift`, { state: "all" }, 200, signal).catch(() => []),
        list(`${deploymentPath(name)}/versions`, {}, 200, signal).catch(() => []),
      ]);
      const { segment } = view();
      return { now, raw, drift: drift.filter((e) => concerns(e, { segment })), versions: versions.filter(wasInForce).map(({ version, created_at }) => ({ version, created_at })) };
    },
    draw: (body, next) => {
      data = next;
      if (!body.firstChild) body.append(key, chart.el);
      draw();
    },
  });

  function draw() {
    const { position, measure } = view();
    tools.set(measure);
    const one = position && data.now.positions.length === 1;
    const withInterval = measure === "ece" || measure === "gap";
    key.replaceChildren(legend([
      one ? ["plainLine", "var(--in-force)", `position ${position}, in force`, "in_force"] : ["plainLine", rampColor(1, 2), "first position"],
      one ? ["dashedLine", "var(--raw)", "raw", "raw"] : ["plainLine", rampColor(2, 2), "last position"],
      one && withInterval && ["area", "var(--band)", "interval", "interval"],
      measure === "ece" && ["dotted", "var(--floor)", one ? "noise floor" : "noise floor, mean", "noise_floor"],
      ["area", "var(--alarm)", "drift episode", "drift"], ["rule", "var(--bad)", "alarm"], ["rule", "var(--third)", "new version"]]));
    data.near = LABEL_PIXELS / Math.max(chart.el.clientWidth - 86, LABEL_PIXELS);
    const label = `${measure} over time ${one ? `of position ${position}` : "of all positions"}, ${f.time(data.now.from)} to ${f.time(data.now.to)} UTC`;
    chart.draw((c) => (one ? single(c, data, measure) : every(c, data, measure)), label);
  }

  return { ...made, redraw: () => data && draw(), stop: () => { made.stop(); chart.stop(); } };
}

function frame(c, { now }, measure) {
  return {
    grid: { left: 52, right: 34, top: 32, bottom: 26 },
    xAxis: timeAxis(c, ms(now.from), ms(now.to)),
    yAxis: valueAxis(c, "", { min: measure === "gap" ? undefined : 0, scale: measure === "brier" || measure === "log_loss", axisLabel: { formatter: (v) => String(Number(v.toPrecision(3))) } }),
  };
}

function marks(c, { now, drift, versions, near }, position) {
  const [from, to] = [ms(now.from), ms(now.to)];
  const inside = versions.filter((v) => ms(v.created_at) >= from && ms(v.created_at) <= to);
  const episodes = drift.filter((e) => (!position || !e.position || e.position === position) && ms(e.started_at) < to && (!e.ended_at || ms(e.ended_at) > from));
  return {
    markArea: { silent: true, itemStyle: { color: c.alarm }, label: { color: c.soft, fontSize: 11, position: "insideTop" },
      data: together(episodes.map((e) => ({ begin: Math.max(from, ms(e.started_at)), end: e.ended_at ? Math.min(to, ms(e.ended_at)) : to, kinds: new Set([e.kind]) })))
        .map(({ begin, end, kinds }) => [{ name: end - begin > 0.12 * (to - from) ? [...kinds].join(", ") : "", xAxis: begin }, { xAxis: end }]) },
    markLine: { silent: true, symbol: ["none", "none"], lineStyle: { color: c.third, width: 1.4, type: "solid", opacity: 0.75 }, label: { color: c.third, fontSize: 11, formatter: ({ name }) => name, position: "end", distance: 3 },
      data: [...labelled(inside.map((v) => [`v${v.version}`, ms(v.created_at)]), near * (to - from)).map(([name, at]) => ({ name, xAxis: at })),
        ...labelled(alarms(drift, position, from, to).map((at) => ["alarm", at]), near * (to - from)).map(([name, at]) => ({ name, xAxis: at, lineStyle: { color: c.bad, width: 1, type: [4, 3], opacity: 0.9 }, label: { color: c.bad, position: "insideEndBottom", distance: 3 } }))] },
  };
}

// When alarms were raised; those of several positions at once are one line.
function alarms(drift, position, from, to) {
  const times = drift.filter((e) => !position || !e.position || e.position === position).map((e) => ms(e.alarmed_at)).filter((at) => at >= from && at <= to).sort((a, b) => a - b);
  return times.filter((at, i) => !i || at - times[i - 1] > 0.01 * (to - from));
}

// Labels of lines that follow each other closely would cover each other: the first of them keeps its own.
function labelled(lines, apart) {
  let last = -Infinity;
  return lines.sort((a, b) => a[1] - b[1]).map(([name, at]) => {
    if (at - last < apart) return ["", at];
    last = at;
    return [name, at];
  });
}

// Stretches that overlap are drawn as one: laid over each other they would hide what they mark.
function together(stretches) {
  const merged = [];
  for (const next of stretches.sort((a, b) => a.begin - b.begin)) {
    const last = merged.at(-1);
    if (last && next.begin <= last.end) {
      last.end = Math.max(last.end, next.end);
      next.kinds.forEach((kind) => last.kinds.add(kind));
    } else merged.push(next);
  }
  return merged;
}

const line = (name, points, key, color, extra) => ({
  // Of a few points among many empty ones, a line may have nothing to be seen by.
  type: "line", name, symbol: points.filter((p) => f.isNumber(p[key])).length > 60 ? "none" : "circle", symbolSize: 5, connectNulls: false, color, lineStyle: { width: 1.8, color }, itemStyle: { color },
  data: points.map((p) => [ms(p.at), p[key] ?? null]), ...extra,
});

function single(c, data, measure) {
  const { position, points } = data.now.positions[0];
  const raw = data.raw?.positions[0]?.points ?? [];
  const at = new Map(points.map((p) => [ms(p.at), p]));
  const rawAt = new Map(raw.map((p) => [ms(p.at), p]));
  const show = SHOW[measure];
  const series = [line("in force", points, measure, c["in-force"], marks(c, data, position)),
    line("raw", raw, measure, c.raw, { symbol: raw.filter((p) => f.isNumber(p[measure])).length > 60 ? "none" : "rect", lineStyle: { width: 1.5, type: "dashed", color: c.raw } })];
  if (measure === "ece" || measure === "gap") {
    const [low, high] = measure === "ece" ? ["ece_low", "ece_high"] : ["gap_low", "gap_high"];
    // A stacked pair: an unseen base and the height of the interval on top of it.
    const band = { stack: "interval", stackStrategy: "all", symbol: "none", silent: true, lineStyle: { width: 0, opacity: 0 } };
    series.push(line("low", points, low, "transparent", band),
      { ...line("band", points, high, c["in-force"], band), lineStyle: { width: 0, opacity: 0 }, areaStyle: { color: c.band }, data: points.map((p) => [ms(p.at), f.isNumber(p[high]) && f.isNumber(p[low]) ? p[high] - p[low] : null]) });
  }
  if (measure === "ece") series.push(line("noise floor", points, "noise_floor", c.floor, { symbol: "none", lineStyle: { width: 1.5, type: [2, 3], color: c.floor } }));
  return {
    ...frame(c, data, measure), series,
    tooltip: tooltip(c, (items) => {
      const p = at.get(items[0].value[0]);
      const r = rawAt.get(items[0].value[0]);
      if (!p) return null;
      const ends = measure === "ece" ? f.interval(p.ece_low, p.ece_high) : measure === "gap" ? f.interval(p.gap_low, p.gap_high) : "";
      return { title: `${f.time(p.at)} UTC, position ${position}`, rows: [
        ["in force", `${show(p[measure])} ${ends}`, c["in-force"]], r && ["raw", show(r[measure]), c.raw],
        measure === "ece" && ["noise floor", f.error(p.noise_floor)], ["predicted, observed", `${f.fixed(p.predicted)}, ${f.fixed(p.observed)}`],
        ["n_eff", f.count(p.n_eff)], ["coverage", f.share(p.coverage)], ["status", String(p.status).replaceAll("_", " ")]] };
    }),
  };
}

const FEW = 30;

/** Points of a handful of labels say where chance put them; with nothing else there is, they are shown. */
function legible(positions) {
  const enough = (p) => p.n_eff >= FEW;
  if (!positions.some((q) => q.points.some(enough))) return positions;
  return positions.map((q) => ({ ...q, points: q.points.map((p) => (enough(p) ? p : { at: p.at })) }));
}

function every(c, data, measure) {
  const positions = legible(data.now.positions);
  const n = positions.length;
  const show = SHOW[measure];
  const series = positions.map(({ position, points }, i) => line(String(position), points, measure, rampColor(position, n), {
    // A point between two gaps has no line to be seen by.
    symbol: points.filter((p) => f.isNumber(p[measure])).length < 40 ? "circle" : "none", symbolSize: 4, endLabel: { show: true, formatter: "{a}", color: rampColor(position, n), fontSize: 11, distance: 4 }, labelLayout: { moveOverlap: "shiftY" }, ...(i ? {} : marks(c, data, null)) }));
  if (measure === "ece" && n) {
    series.push({ ...line("noise floor", [], "", c.floor), symbol: "none", lineStyle: { width: 1.5, type: [2, 3], color: c.floor },
      data: positions[0].points.map((p, j) => {
        const floors = positions.map((q) => q.points[j]?.noise_floor).filter(f.isNumber);
        return [ms(p.at), floors.length ? floors.reduce((a, b) => a + b, 0) / floors.length : null];
      }) });
  }
  return {
    ...frame(c, data, measure), series,
    tooltip: tooltip(c, (items) => ({
      title: `${f.time(items[0].value[0] / 1000)} UTC`,
      rows: items.map((item) => [/^\d+$/.test(item.seriesName) ? `position ${item.seriesName}` : item.seriesName, show(item.value[1]), item.color]),
    })),
  };
}
