// The fleet: every deployment in a line, the ones that need somebody on top.

import { h, replace } from "../ui/dom.js";
import { badge } from "../ui/badge.js";
import { panel, tile } from "../ui/panel.js";
import { Table } from "../ui/table.js";
import { dash, term, tip, tipTable } from "../ui/tip.js";
import { list } from "../api.js";
import { errorInterval } from "../charts/interval.js";
import { now } from "../clock.js";
import * as f from "../format.js";
import { choose, deploymentUrl, query } from "../router.js";
import { TERMS } from "../glossary.js";
import { versionSpread } from "./spread.js";

const URGENCY = ["drifting", "insufficient", "stale", "no_data", "frozen", "ok"];

const CONNECT = `# beside the engine, in its pod
export DSPARK_DEPLOYMENT=chat
export DSPARK_RING=dspark
export DSPARK_KAFKA_BOOTSTRAP=kafka:9092
export DSPARK_REDIS_URL=redis://redis:6379/0
dspark-calibrator sidecar`;

let most = 0.05;

function worst({ worst: w, status, gamma }) {
  if (!w || w.ece === null) return dash(w?.status ?? status);
  const box = h("div", { class: "figure-line", tabindex: "0" },
    errorInterval({ value: w.ece, low: w.ece_low, high: w.ece_high, floor: w.noise_floor, most }),
    h("span", {}, f.error(w.ece), h("span", { class: "sub" }, `position ${w.position} of ${gamma}`)));
  return tip(box, () => tipTable(`Position ${w.position}`, [
    ["ECE", `${f.error(w.ece)} ${f.interval(w.ece_low, w.ece_high)}`], ["noise floor", f.error(w.noise_floor)],
    ["gap", f.signed(w.gap)], ["n_eff", f.count(w.n_eff)], ["status", w.status.replaceAll("_", " ")]]));
}

function value({ value: v, status }) {
  if (!v) return dash(status === "ok" ? "insufficient" : status);
  const box = h("span", { tabindex: "0" }, f.change(v.relative), h("span", { class: "sub" }, `against ${v.baseline}`));
  return tip(box, () => tipTable("Tokens per second", [
    ["now", f.count(v.tokens_per_second)], [`against ${v.baseline}`, `${f.change(v.relative)} ${f.interval(v.low, v.high, f.change)}`]]));
}

const COLUMNS = [
  { key: "name", label: "Deployment", sort: (d) => d.name, cell: (d) => [
    h("a", { class: "name", href: deploymentUrl(d.name) }, d.name),
    h("span", { class: "sub" }, d.version === null ? "no version yet" : `v${d.version}, ${d.form}`, d.rollout && [" · ", h("a", { href: deploymentUrl(d.name, "rollouts") }, `rollout: ${d.rollout.stage}`)])] },
  { key: "status", label: "Status", sort: (d) => URGENCY.indexOf(d.status), cell: (d) => badge(d.status) },
  { key: "ece", label: "Worst position", about: "ECE with its interval; the grey tick is the noise floor. Orange diamonds lie clearly above it.", num: false, sort: (d) => d.worst?.ece ?? null, cell: worst },
  { key: "drift", label: "Drift", about: TERMS.drift[1], sort: (d) => d.drift.open, cell: (d) => (d.drift.open
    ? h("span", { class: "chips" }, d.drift.kinds.map((kind) => badge(kind))) : h("span", { class: "soft blank" }, "none")) },
  { key: "versions", label: "Versions", about: TERMS.spread[1], sort: (d) => (d.replicas ? Object.keys(d.replicas.versions).length + d.replicas.refusing * 10 : null), cell: (d) => versionSpread(d.replicas) },
  { key: "value", label: "Value", about: TERMS.value[1], num: true, sort: (d) => d.value?.relative ?? null, cell: value },
  { key: "explore", label: "Exploration", about: TERMS.exploration[1], num: true, sort: (d) => d.explore ?? null, cell: (d) => (f.isNumber(d.explore) ? f.share(d.explore) : dash(d.status)) },
  { key: "seen", label: "Last seen", num: true, live: true, sort: (d) => f.seconds(d.last_seen_at), cell: (d) => h("span", { title: f.fullTime(d.last_seen_at) }, f.since(d.last_seen_at, now())) },
  { key: "schedule", label: "Schedule", about: TERMS.schedule[1], live: true, sort: (d) => d.schedule?.interval_seconds ?? null, cell: (d) => (d.schedule
    ? (d.schedule.paused ? badge("paused", "paused") : h("span", { class: "nowrap" }, f.schedule(d.schedule), d.schedule.next_run_at && h("span", { class: "sub" }, `next ${f.ago(d.schedule.next_run_at, now())}`)))
    : dash("no_data")) },
];

export function open() {
  document.title = "Fleet · DSpark Calibrator";
  let rows = [];
  const search = h("input", { type: "search", class: "search", placeholder: "Search  ( / )", "aria-label": "Search deployments", value: query().q ?? "" });
  search.addEventListener("input", () => choose({ q: search.value }));
  const [key, dir] = (query().sort ?? "status.asc").split(".");
  const table = new Table({
    columns: COLUMNS, key: (d) => d.name, href: (d) => deploymentUrl(d.name), caption: "Deployments", sort: { key, dir },
    onSort: ({ key: k, dir: to }) => choose({ sort: `${k}.${to}` }), empty,
  });
  const tiles = h("div", { class: "tiles" });

  function empty() {
    if (rows.length) return "No deployment matches the search.";
    return [h("h2", {}, "No engine has reported yet"),
      h("p", {}, "A deployment appears by itself with the first rounds that an engine sends:"),
      h("pre", {}, CONNECT), h("p", {}, "Then ", h("code", {}, "dspark-calibrator doctor"), " says what is still missing. Without an engine: ", h("code", {}, "dspark-calibrator demo --serve"), ".")];
  }

  function filter() {
    const words = (query().q ?? "").toLowerCase().split(/\s+/).filter(Boolean);
    const found = rows.filter((d) => {
      const text = `${d.name} ${d.fingerprint} ${d.status} ${d.form ?? ""} ${d.drift.kinds.join(" ")}`.toLowerCase();
      return words.every((word) => text.includes(word));
    });
    // One scale for all, so that lengths can be compared; the odd giant does not flatten the others.
    const highs = rows.map((d) => d.worst?.ece_high ?? d.worst?.ece).filter(f.isNumber).sort((a, b) => a - b);
    most = Math.max(0.02, highs[Math.floor(highs.length * 0.9)] ?? 0.05) * 1.05;
    table.update(found);
  }

  function summarize() {
    const with_ = (status) => rows.filter((d) => d.status === status).length;
    const live = rows.reduce((sum, d) => sum + (d.replicas?.live ?? 0), 0);
    const refusing = rows.reduce((sum, d) => sum + (d.replicas?.refusing ?? 0), 0);
    const open_ = rows.reduce((sum, d) => sum + d.drift.open, 0);
    const attention = rows.length - with_("ok") - with_("frozen");
    replace(tiles,
      tile("Deployments", f.count(rows.length), rows.length ? `${with_("ok")} ok` : ""),
      tile("Need attention", f.count(attention), [["drifting", "drifting"], ["insufficient", "insufficient"], ["stale", "stale"], ["no_data", "without rows"]].filter(([st]) => with_(st)).map(([st, word]) => `${with_(st)} ${word}`).join(", ") || "nobody"),
      tile(term("drift", "Open drift episodes"), f.count(open_), [...new Set(rows.flatMap((d) => d.drift.kinds))].join(", ") || "none"),
      tile("Live replicas", f.count(live), refusing ? `${refusing} ${refusing === 1 ? "refuses" : "refuse"} a version` : "none refuses"));
    tiles.hidden = rows.length === 0;
  }

  const main = panel({
    flush: true, live: true,
    load: (signal) => list("/deployments", {}, 2000, signal),
    draw: (body, items) => {
      rows = items;
      if (!body.firstChild) body.append(table.el);
      summarize();
      filter();
    },
  });
  main.el.setAttribute("aria-label", "Deployments");
  main.refresh();

  return {
    el: h("div", {},
      h("div", { class: "page-head" },
        h("div", {}, h("h1", {}, "Fleet"), h("p", { class: "lead" }, "Calibration of every deployment's confidence head, against what its engines really accepted.")), search),
      tiles, main.el),
    tables: () => [table],
    chosen: filter,
    happened: () => main.refresh(),
    stop: main.stop,
  };
}
