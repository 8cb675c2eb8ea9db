// Statuses: a word, a colour and a shape each, so that none of the three is needed alone.

import { h, s } from "./dom.js";
import { tip } from "./tip.js";
import { STATUSES } from "../glossary.js";

const SHAPES = {
  check: () => [s("path", { d: "M2 6.5 5 9.5 10.5 2.8" })],
  triangle: () => [s("path", { d: "M6 1.4 11 10.4H1z", class: "solid" })],
  ring: () => [s("circle", { cx: 6, cy: 6, r: 4.4, "stroke-dasharray": "2.2 1.8" })],
  clock: () => [s("circle", { cx: 6, cy: 6, r: 4.8 }), s("path", { d: "M6 3.2V6l2 1.4" })],
  snow: () => [s("path", { d: "M6 1v10M1.7 3.5l8.6 5M10.3 3.5l-8.6 5" })],
  dash: () => [s("path", { d: "M2.5 6h7" })],
  cross: () => [s("path", { d: "M2.5 2.5l7 7M9.5 2.5l-7 7" })],
  dot: () => [s("circle", { cx: 6, cy: 6, r: 3.6, class: "solid" })],
  diamond: () => [s("path", { d: "M6 1.2 10.8 6 6 10.8 1.2 6z" })],
  up: () => [s("path", { d: "M6 10.5v-9M2.4 5 6 1.4 9.6 5" })],
};

const LOOKS = {
  ok: ["ok", "check"], drifting: ["bad", "triangle"], insufficient: ["warn", "ring"], stale: ["mute", "clock"],
  no_data: ["mute", "dash"], frozen: ["info", "snow"], censored: ["warn", "ring"], at_grid_edge: ["warn", "diamond"],
  degenerate: ["warn", "diamond"], mixed_provenance: ["bad", "diamond"],
  measured: ["ok", "dot"], extrapolated: ["warn", "diamond"], flat: ["warn", "dash"], unsupported: ["bad", "cross"],
  published: ["ok", "check"], adopted: ["info", "diamond"], unchanged: ["mute", "dash"], no_rows: ["mute", "dash"],
  busy: ["mute", "clock"], conflict: ["warn", "triangle"],
  waiting: ["mute", "clock"], running: ["info", "dot"], done: ["ok", "check"], failed: ["bad", "cross"], abandoned: ["warn", "triangle"],
  aborted: ["bad", "cross"], shadow: ["mute", "ring"], canary: ["info", "diamond"], all: ["ok", "check"],
  better: ["ok", "up"], worse: ["bad", "triangle"], undecided: ["mute", "ring"],
  open: ["bad", "triangle"], closed: ["mute", "check"], paused: ["warn", "clock"],
  calibration: ["bad", "triangle"], acceptance: ["bad", "diamond"], traffic: ["info", "ring"], cost: ["warn", "clock"],
};

/** Draw one of the shapes. */
export function shape(name) {
  return s("svg", { viewBox: "0 0 12 12", "aria-hidden": "true" }, SHAPES[name]());
}

/** A status in its colour and shape; `text` replaces the word, `about` the explanation. */
export function badge(status, text, about) {
  const [tone, drawn] = LOOKS[status] ?? ["mute", "dot"];
  const node = h("span", { class: `badge ${tone}` }, shape(drawn), text ?? String(status).replaceAll("_", " "));
  const says = about ?? STATUSES[status];
  return says ? tip(node, says) : node;
}
