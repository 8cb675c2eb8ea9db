// Reliability diagrams as small multiples: observed against predicted acceptance, raw and in force.

import { h, s } from "../ui/dom.js";
import { tip, tipTable } from "../ui/tip.js";
import * as f from "../format.js";

const known = (bin) => f.isNumber(bin.predicted) && f.isNumber(bin.observed);

const FEW = 10;

/** Bins to join by a line: one of a handful of labels says where chance put it. */
const steady = (bins) => bins.filter((b) => known(b) && b.n_eff >= FEW);

/** A path through points; bins left out do not break it. */
const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(2)} ${y.toFixed(2)}`).join("");

function binTip(k, now, raw) {
  const rows = (name, bin) => (bin && known(bin)
    ? [[`${name}: predicted`, f.fixed(bin.predicted)], [`${name}: observed`, `${f.fixed(bin.observed)} ${f.interval(bin.observed_low, bin.observed_high, (x) => f.fixed(x))}`], [`${name}: mass, n_eff`, `${f.share(bin.mass)}, ${f.count(bin.n_eff)}`]]
    : [[name, "no labels in this bin"]]);
  const edge = now ?? raw;
  return tipTable(`Position ${k}, bin ${f.fixed(edge.lower, 2)} to ${f.fixed(edge.upper, 2)}`, [...rows("in force", now), ...rows("raw", raw),
    now && f.isNumber(now.band_low) && ["band of a calibrated head", f.interval(now.band_low, now.band_high, (x) => f.fixed(x))]]);
}

/** The plot of one position; `big` adds axes, error bars and tooltips per bin. */
export function reliabilityPlot({ position, in_force: now, raw }, big = false) {
  const size = big ? 360 : 150;
  const left = big ? 38 : 2;
  const mass = big ? 54 : 26;
  const gap = big ? 10 : 5;
  const x = (v) => left + v * size;
  const y = (v) => 6 + (1 - v) * size;
  const floor = 6 + size + gap + mass;
  const nowBins = steady(now.bins);
  const rawBins = steady(raw.bins);
  const loose = now.bins.filter((b) => known(b) && !nowBins.includes(b));
  const parts = [s("rect", { x: left, y: 6, width: size, height: size, class: "frame" })];
  for (const v of big ? [0.2, 0.4, 0.6, 0.8] : [0.5]) parts.push(s("path", { d: `M${x(v)} ${y(0)}V${y(1)}M${x(0)} ${y(v)}H${x(1)}`, class: "gridline" }));
  const banded = nowBins.filter((b) => f.isNumber(b.band_low));
  if (banded.length > 1) {
    parts.push(s("path", { d: `${path(banded.map((b) => [x(b.predicted), y(b.band_high)]))}${path([...banded].reverse().map((b) => [x(b.predicted), y(b.band_low)])).replace("M", "L")}Z`, class: "band" }));
  }
  parts.push(s("path", { d: `M${x(0)} ${y(0)}L${x(1)} ${y(1)}`, class: "ideal" }));
  parts.push(s("path", { d: path(rawBins.map((b) => [x(b.predicted), y(b.observed)])), class: "raw-line" }));
  const d = big ? 6 : 4;
  parts.push(rawBins.map((b) => s("rect", { x: x(b.predicted) - d / 2, y: y(b.observed) - d / 2, width: d, height: d, class: "raw-dot" })));
  parts.push(nowBins.filter((b) => f.isNumber(b.observed_low)).map((b) => s("path", { d: `M${x(b.predicted)} ${y(b.observed_low)}V${y(b.observed_high)}`, class: "now-bar" })));
  parts.push(s("path", { d: path(nowBins.map((b) => [x(b.predicted), y(b.observed)])), class: "now-line" }));
  parts.push(nowBins.map((b) => s("circle", { cx: x(b.predicted), cy: y(b.observed), r: big ? 3.6 : 2.3, class: "now-dot" })));
  parts.push(loose.map((b) => s("circle", { cx: x(b.predicted), cy: y(b.observed), r: big ? 2.2 : 1.3, class: "now-dot loose" })));
  parts.push(raw.bins.filter((b) => known(b) && !rawBins.includes(b)).map((b) => s("rect", { x: x(b.predicted) - 1.2, y: y(b.observed) - 1.2, width: 2.4, height: 2.4, class: "raw-dot loose" })));
  const top = Math.max(1e-9, ...now.bins.map((b) => b.mass ?? 0), ...raw.bins.map((b) => b.mass ?? 0));
  const bar = (b) => ({ x: x(b.lower) + 0.5, width: Math.max(0.5, x(b.upper) - x(b.lower) - 1), y: floor - (mass * (b.mass ?? 0)) / top, height: (mass * (b.mass ?? 0)) / top });
  parts.push(now.bins.map((b) => s("rect", { ...bar(b), class: "mass" })));
  parts.push(raw.bins.map((b) => s("path", { d: `M${x(b.lower) + 0.5} ${bar(b).y}H${x(b.upper) - 0.5}`, class: "mass raw" })));
  parts.push(s("path", { d: `M${x(0)} ${floor}H${x(1)}`, class: "zero" }));
  if (big) {
    for (const v of [0, 0.2, 0.4, 0.6, 0.8, 1]) {
      parts.push(s("text", { x: x(v), y: floor + 13, "text-anchor": "middle" }, v.toFixed(1)));
      parts.push(s("text", { x: left - 6, y: y(v) + 3.5, "text-anchor": "end" }, v.toFixed(1)));
    }
    parts.push(s("text", { x: x(0.5), y: floor + 28, "text-anchor": "middle" }, "predicted survival"), s("text", { x: 10, y: y(0.5), "text-anchor": "middle", transform: `rotate(-90 10 ${y(0.5)})` }, "observed"), s("text", { x: left - 6, y: floor - mass / 2 + 3, "text-anchor": "end" }, "mass"));
    now.bins.forEach((b, i) => parts.push(tip(s("rect", { x: x(b.lower), y: 6, width: x(b.upper) - x(b.lower), height: floor - 6, class: "hit" }), () => binTip(position, b, raw.bins[i]))));
  }
  return s("svg", { class: "plot", viewBox: `0 0 ${left + size + 3} ${floor + (big ? 34 : 2)}`, role: "img",
    "aria-label": `Reliability of position ${position}: ECE raw ${f.error(raw.ece)}, in force ${f.error(now.ece)}` }, parts);
}

/** One small multiple; pressing it chooses the position. */
export function multiple(entry, chosen, onChoose) {
  const { position, in_force: now, raw } = entry;
  const button = h("button", { class: "multiple", type: "button", "aria-pressed": String(chosen), "data-action": `position-${position}`, onclick: () => onChoose(chosen ? null : position) },
    h("span", { class: "multiple-head" }, h("b", {}, `Position ${position}`), h("span", { class: "soft" }, now.status === "ok" ? "" : now.status.replaceAll("_", " "))),
    reliabilityPlot(entry),
    h("span", { class: "multiple-foot" }, h("span", { class: "was" }, f.error(raw.ece)), h("span", { "aria-hidden": "true" }, "→"), h("span", { class: "now" }, f.error(now.ece)), h("span", {}, `floor ${f.error(now.noise_floor)}`)));
  return tip(button, () => tipTable(`Position ${position}`, [
    ["ECE raw", `${f.error(raw.ece)} ${f.interval(raw.ece_low, raw.ece_high)}`], ["ECE in force", `${f.error(now.ece)} ${f.interval(now.ece_low, now.ece_high)}`],
    ["noise floor", f.error(now.noise_floor)], ["gap", f.signed(now.gap)], ["n_eff", f.count(now.n_eff)], ["status", now.status.replaceAll("_", " ")]]));
}
