// Legends whose marks differ in shape as well as in colour.

import { h, s } from "../ui/dom.js";
import { tip } from "../ui/tip.js";
import { TERMS } from "../glossary.js";

const MARKS = {
  line: (color) => [s("path", { d: "M0 5h22", stroke: color, "stroke-width": 2.2 }), s("circle", { cx: 11, cy: 5, r: 2.8, fill: color })],
  plainLine: (color) => [s("path", { d: "M0 5h22", stroke: color, "stroke-width": 2.2 })],
  dashed: (color) => [s("path", { d: "M0 5h22", stroke: color, "stroke-width": 1.8, "stroke-dasharray": "4 2.5" }), s("rect", { x: 8.5, y: 2.5, width: 5, height: 5, fill: "var(--card)", stroke: color, "stroke-width": 1.4 })],
  dashedLine: (color) => [s("path", { d: "M0 5h22", stroke: color, "stroke-width": 1.8, "stroke-dasharray": "4 2.5" })],
  dotted: (color) => [s("path", { d: "M0 5h22", stroke: color, "stroke-width": 1.6, "stroke-dasharray": "2 2.5" })],
  area: (color) => [s("rect", { x: 2, y: 0, width: 18, height: 10, rx: 2, fill: color })],
  dot: (color) => [s("circle", { cx: 11, cy: 5, r: 3, fill: color })],
  ring: (color) => [s("circle", { cx: 11, cy: 5, r: 3.2, fill: "none", stroke: color, "stroke-width": 1.5 })],
  diamond: (color) => [s("path", { d: "M11 .5 15.5 5 11 9.5 6.5 5z", fill: color })],
  triangle: (color) => [s("path", { d: "M11 .5 15.8 9.2H6.2z", fill: color })],
  rule: (color) => [s("path", { d: "M11 0v10", stroke: color, "stroke-width": 1.6 })],
};

/** Items: [mark, CSS colour, text, glossary key?]. */
export function legend(items) {
  return h("div", { class: "legend" }, items.filter(Boolean).map(([mark, color, text, about]) => {
    const item = h("span", {}, s("svg", { viewBox: "0 0 22 10", "aria-hidden": "true" }, MARKS[mark](color)), about ? h("span", { class: "term", tabindex: "0" }, text) : text);
    if (about) tip(item.lastChild, TERMS[about][1]);
    return item;
  }));
}
