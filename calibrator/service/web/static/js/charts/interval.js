// A number with its interval, small enough for a table cell; and the same as a forest plot.

import { h, s } from "../ui/dom.js";
import { tip } from "../ui/tip.js";
import { isNumber } from "../format.js";

const WIDTH = 108;

/** ECE with interval on a common scale, and the noise floor as a tick. */
export function errorInterval({ value, low, high, floor, most }) {
  const x = (v) => 3 + (WIDTH - 6) * Math.max(0, Math.min(1, v / most));
  const above = isNumber(floor) && value > floor * 1.5 && (!isNumber(low) || low > 0);
  return s("svg", { class: `inline-interval${above ? " high" : ""}`, viewBox: `0 0 ${WIDTH} 16`, "aria-hidden": "true" },
    s("path", { d: `M3 8H${WIDTH - 3}`, class: "track" }),
    isNumber(floor) && s("path", { d: `M${x(floor)} 2.5v11`, class: "floor" }),
    isNumber(low) && isNumber(high) && s("path", { d: `M${x(low)} 8H${Math.max(x(high), x(low) + 0.5)}`, class: "range" }),
    above ? s("path", { d: diamond(x(value), 8, 4.6), class: "dot" }) : s("circle", { cx: x(value), cy: 8, r: 3.6, class: "dot" }));
}

const diamond = (x, y, r) => `M${x} ${y - r} ${x + r} ${y} ${x} ${y + r} ${x - r} ${y}z`;

/**
 * A forest plot: one row each {label, sub, value, low, high, tolerance, verdict, text, about}; around zero,
 * and better always to the right: callers turn what is better when it is less.
 * Shapes tell the verdict: filled square better, triangle worse, ring undecided.
 */
export function forest(rows, { label, width = 620, format, zeroText = "no difference", labelWidth = 170, textWidth = 190, symmetric = false, below = 460 }) {
  const narrow = width < below;
  const rowHeight = narrow ? 50 : Math.min(40, rows.some((r) => r.sub) ? 40 : 32);
  const left = narrow ? 8 : labelWidth;
  const right = width - (narrow ? 8 : textWidth);
  const ends = rows.flatMap((r) => [r.low, r.high, r.value, r.tolerance]).filter(isNumber);
  let most = Math.max(1e-9, ...ends);
  let least = Math.min(-1e-9, ...ends);
  if (symmetric) [least, most] = [-Math.max(-least, most), Math.max(-least, most)];
  const pad = (most - least) * 0.08;
  const x = (v) => left + ((v - least + pad) / (most - least + 2 * pad)) * (right - left);
  const height = rows.length * rowHeight + 20;
  const foot = height - 6;
  // The ends of the axis say which way is which; what lies between them only where there is room.
  const middle = zeroText && x(0) - left > 78 && right - x(0) > 78;
  const mark = (r, y) => {
    const cx = x(r.value);
    if (r.verdict === "better") return s("rect", { x: cx - 5, y: y - 5, width: 10, height: 10, rx: 1.5, class: "better" });
    if (r.verdict === "worse") return s("path", { d: `M${cx} ${y - 6} ${cx + 6} ${y + 5} ${cx - 6} ${y + 5}z`, class: "worse" });
    return s("circle", { cx, cy: y, r: 5, class: "undecided" });
  };
  const svg = s("svg", { class: "plot forest", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
    s("path", { d: `M${x(0)} ${narrow ? 22 : 2}V${rows.length * rowHeight}`, class: "zero" }),
    s("text", { x: left, y: foot }, "← worse"), s("text", { x: right, y: foot, "text-anchor": "end" }, "better →"),
    middle && s("text", { x: x(0), y: foot, "text-anchor": "middle" }, zeroText));
  rows.forEach((r, i) => {
    const top = i * rowHeight;
    const y = top + (narrow ? 34 : rowHeight / 2);
    const parts = [s("text", { x: narrow ? 0 : 0, y: narrow ? top + 14 : y + (r.sub ? -2 : 4), class: "strong" }, r.label)];
    if (r.sub && !narrow) parts.push(s("text", { x: 0, y: y + 12 }, r.sub));
    const text = r.text ?? (isNumber(r.value) ? `${format(r.value)} [${format(r.low)}, ${format(r.high)}]` : "–");
    parts.push(s("text", { x: width, y: narrow ? top + 14 : y + 4, "text-anchor": "end", class: "soft" }, text));
    if (isNumber(r.low) && isNumber(r.high)) parts.push(s("path", { d: `M${x(r.low)} ${y}H${x(r.high)}M${x(r.low)} ${y - 4}v8M${x(r.high)} ${y - 4}v8`, class: `whisker ${r.verdict ?? "undecided"}` }));
    if (isNumber(r.tolerance)) parts.push(s("path", { d: `M${x(r.tolerance)} ${y - 12}v24`, class: "tolerance" }));
    if (isNumber(r.value)) parts.push(mark(r, y));
    parts.push(s("rect", { x: 0, y: top, width, height: rowHeight, class: "hit" }));
    const group = s("g", {}, parts);
    if (r.about) tip(group, r.about);
    svg.append(group);
  });
  return svg;
}

/** Draw again with the width there is. */
export function responsive(draw) {
  const box = h("div", {});
  let drawn = 0;
  const observer = new ResizeObserver(([entry]) => {
    const width = Math.round(entry.contentRect.width);
    if (width < 40 || width === drawn) return;
    drawn = width;
    box.replaceChildren(draw(width));
  });
  observer.observe(box);
  return box;
}
