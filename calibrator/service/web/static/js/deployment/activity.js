// What happened and who runs what: replicas, refreshes with all their reasons, accounting of rows.

import { h, replace } from "../ui/dom.js";
import { badge } from "../ui/badge.js";
import { openDialog } from "../ui/dialog.js";
import { panel, tile } from "../ui/panel.js";
import { Table } from "../ui/table.js";
import { dash, term } from "../ui/tip.js";
import { deploymentPath, get, list } from "../api.js";
import { now } from "../clock.js";
import * as f from "../format.js";
import { TERMS } from "../glossary.js";
import { forest, responsive } from "../charts/interval.js";
import { reasonsList } from "./versions.js";

const REPLICAS = [
  { key: "replica", label: "Replica", sort: (r) => r.replica, cell: (r) => [h("span", { class: "name" }, r.replica), r.boot && h("span", { class: "sub mono" }, `boot ${r.boot.slice(0, 8)}`)] },
  { key: "version", label: "Applied", sort: (r) => r.version ?? null, cell: (r) => (f.isNumber(r.version) ? [`v${r.version}`, h("span", { class: "sub", title: f.fullTime(r.applied_at) }, f.ago(r.applied_at, now()))] : dash("no_data")), live: true },
  { key: "refused", label: "Refused", wrap: true, sort: (r) => r.refused_version ?? null, cell: (r) => (f.isNumber(r.refused_version) || r.reason ? [badge("failed", f.isNumber(r.refused_version) ? `v${r.refused_version}` : "refused"), h("span", { class: "sub" }, r.reason)] : h("span", { class: "soft blank" }, "nothing")) },
  { key: "arm", label: "Arm", about: TERMS.arm[1], sort: (r) => r.arm ?? "", cell: (r) => (r.arm ? badge(r.arm === "canary" ? "canary" : "unchanged", r.arm) : h("span", { class: "soft blank" }, "–")) },
  { key: "forms", label: "Forms", about: "What the replica's engine can apply.", cell: (r) => (r.forms ?? []).join(", ") },
  { key: "seen", label: "Last seen", num: true, live: true, sort: (r) => f.seconds(r.last_seen_at), cell: (r) => h("span", { title: f.fullTime(r.last_seen_at) }, f.since(r.last_seen_at, now())) },
];

export function replicasPanel(name) {
  const table = new Table({ columns: REPLICAS, key: (r) => r.replica, caption: "Replicas", sort: { key: "replica", dir: "asc" }, empty: "No replica has reported. Sidecars report what their engine applied." });
  const made = panel({
    title: "Replicas", id: "replicas", flush: true, live: true,
    load: (signal) => list(`${deploymentPath(name)}/replicas`, {}, 2000, signal),
    draw: (body, items) => {
      if (!body.firstChild) body.append(table.el);
      table.update(items);
    },
  });
  return { ...made, table };
}

export function refreshesPanel(name) {
  const columns = [
    { key: "at", label: "Started", live: true, sort: (r) => f.seconds(r.started_at), cell: (r) => h("span", { class: "nowrap", title: f.fullTime(r.started_at) }, f.time(r.started_at, now()), h("span", { class: "sub" }, f.ago(r.started_at, now()))) },
    { key: "outcome", label: "Outcome", sort: (r) => r.outcome ?? "", cell: (r) => [badge(r.outcome ?? "running"), f.isNumber(r.version) && h("span", { class: "sub" }, `version ${r.version}`)] },
    { key: "took", label: "Took", num: true, cell: (r) => (r.finished_at ? f.duration(f.seconds(r.finished_at) - f.seconds(r.started_at)) : "…") },
    { key: "reasons", label: "Reasons", wrap: true, cell: (r) => reasonsList(r.reasons, 4) },
    { key: "tools", label: "", tools: true, cell: (r) => h("button", { class: "button small", type: "button", "data-action": "evidence", onclick: () => showEvidence(name, r) }, "Evidence") },
  ];
  const table = new Table({ columns, key: (r) => r.id, caption: "Refreshes", sort: { key: "at", dir: "desc" }, empty: "No refresh yet. Recalibrate now, or wait for the schedule." });
  const made = panel({
    title: "Refreshes", id: "refreshes", flush: true, live: true,
    note: "Every refresh with what came of it. A set is published only when it beats the set in force on requests that the fit has not seen, in error or in log loss beyond the 95 % interval, and the other does not speak against it.",
    load: (signal) => list(`${deploymentPath(name)}/refreshes`, {}, 200, signal),
    draw: (body, items) => {
      if (!body.firstChild) body.append(table.el);
      table.update(items);
    },
  });
  return { ...made, table };
}

/** The evidence of one refresh: gates and errors of every position, and the judgement. */
export async function showEvidence(name, refresh) {
  const box = h("div", {}, h("p", { class: "soft" }, "Loading …"));
  const dialog = openDialog({ title: `Refresh ${refresh.id}`, wide: true, only: true, confirm: "Close", body: box });
  try {
    const { evidence, reasons, outcome } = await get(`${deploymentPath(name)}/refreshes/${refresh.id}`);
    replace(box, badge(outcome ?? "running"), reasonsList(reasons, 12), evidenceTable(evidence ?? {}), judgement(evidence?.judgement));
  } catch (cause) {
    replace(box, h("p", { class: "panel-problem" }, cause.message));
  }
  return dialog;
}

function judgement(j) {
  if (!j) return null;
  // Differences candidate minus set in force: below zero is better, and better is drawn to the right.
  const row = (label, value, low, high) => ({
    label, sub: `over ${f.count(j.requests)} requests`, value: -value, low: f.isNumber(high) ? -high : null, high: f.isNumber(low) ? -low : null,
    verdict: high < 0 ? "better" : low > 0 ? "worse" : "undecided", text: `${f.signed(value)} ${f.interval(low, high, f.signed)}`,
  });
  const rows = [row("Mean ECE", j.ece_difference, j.ece_low, j.ece_high), row("Log loss", j.log_loss_difference, j.log_loss_low, j.log_loss_high)].filter((r) => f.isNumber(r.value) && !Number.isNaN(r.value));
  if (!rows.length) return null;
  return h("div", {}, h("h3", { class: "below" }, "Candidate against the set in force; better lies to the right"),
    rows.map((r) => responsive((width) => forest([r], { label: r.label, width, format: f.signed, symmetric: true, zeroText: "no difference" }))));
}

function evidenceTable({ gates = [], raw = [], before = [], after = [], rows, requests, form }) {
  if (!gates.length) return h("p", { class: "soft" }, "It ended before anything was fitted.");
  const at = (list_, k) => list_.find((r) => r.position === k);
  return h("div", {},
    h("p", { class: "soft" }, `${f.count(rows)} rows of ${f.count(requests)} requests; form judged: ${form}.`),
    h("div", { class: "table-wrap" }, h("table", { class: "cards" }, h("thead", {}, h("tr", {}, ["Position", "Status", "n_eff", "ECE raw", "before", "after", "floor", "Reasons"].map((t, i) => h("th", { scope: "col", class: i > 1 && i < 7 ? "num" : "" }, t)))),
      h("tbody", {}, gates.map((g) => h("tr", {},
        h("td", { class: "lead-cell" }, `Position ${g.position}`), h("td", { "data-label": "Status" }, badge(g.status)),
        [["n_eff", f.count(g.n_eff)], ["ECE raw", f.error(at(raw, g.position)?.ece)], ["before", f.error(at(before, g.position)?.ece)], ["after", f.error(at(after, g.position)?.ece)], ["floor", f.error(at(after, g.position)?.noise_floor)]].map(([label, text]) => h("td", { class: "num", "data-label": label }, text)),
        h("td", { class: "wrap", "data-label": "Reasons" }, [g.borrows && "borrows from the other positions", ...g.reasons].filter(Boolean).join("; ") || "–")))))));
}

export function accountingPanel(name) {
  const tiles = h("div", { class: "tiles" });
  const table = new Table({
    columns: [
      { key: "replica", label: "Replica", sort: (b) => b.replica, cell: (b) => [h("span", { class: "name" }, b.replica), h("span", { class: "sub mono" }, b.boot.slice(0, 12))] },
      { key: "folded", label: "Folded", num: true, about: TERMS.folded[1], sort: (b) => b.folded, cell: (b) => f.count(b.folded) },
      { key: "lost", label: "Lost", num: true, about: TERMS.lost[1], sort: (b) => b.lost, cell: (b) => f.count(b.lost) },
      { key: "dead", label: "Dead-lettered", num: true, about: TERMS.dead_lettered[1], sort: (b) => b.dead_lettered, cell: (b) => f.count(b.dead_lettered) },
      { key: "seen", label: "Seen", live: true, num: true, sort: (b) => f.seconds(b.last_seen_at), cell: (b) => f.since(b.last_seen_at, now()) },
    ],
    key: (b) => `${b.replica}/${b.boot}`, caption: "Rows by replica and boot", sort: { key: "seen", dir: "desc" }, empty: "No rows yet.",
  });
  const made = panel({
    title: "Accounting of rounds", id: "accounting", live: true, note: "Every row that an engine numbered is folded, lost or dead-lettered: nothing disappears unseen.",
    load: (signal) => get(`${deploymentPath(name)}/accounting`, {}, signal),
    draw: (body, { rounds, boots }) => {
      if (!body.firstChild) body.append(tiles, h("details", {}, h("summary", {}, "By replica and boot"), table.el));
      replace(tiles, tile(term("folded"), f.count(rounds.folded), "exactly once"), tile(term("lost"), f.count(rounds.lost), f.isNumber(rounds.lost) && rounds.folded + rounds.lost > 0 ? f.share(rounds.lost / (rounds.folded + rounds.lost), 3) : ""),
        tile(term("dead_lettered"), f.count(rounds.dead_lettered), "kept with the reason"), tile(term("duplicates"), f.count(rounds.duplicates), "recognised and discarded"),
        f.isNumber(rounds.in_flight) && tile(term("in_flight"), f.count(rounds.in_flight), "on their way"));
      table.update(boots);
    },
  });
  return { ...made, table };
}
