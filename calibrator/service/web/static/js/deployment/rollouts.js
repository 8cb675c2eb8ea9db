// Rollouts: where each stands, the evidence for and against, and the three buttons.

import { h, replace } from "../ui/dom.js";
import { badge } from "../ui/badge.js";
import { confirmWithReason, field, toast } from "../ui/dialog.js";
import { panel } from "../ui/panel.js";
import { Table } from "../ui/table.js";
import { term, tipTable } from "../ui/tip.js";
import { deploymentPath, list, send } from "../api.js";
import { forest, responsive } from "../charts/interval.js";
import { now } from "../clock.js";
import * as f from "../format.js";
import { deploymentUrl } from "../router.js";
import { actionButton } from "./versions.js";

const STAGES = ["shadow", "canary", "all"];
const points = (digits) => [(x) => f.fixed(x, digits), (x) => f.signed(x, digits)];
/** Logs of ratios, as changes in per cent. */
const ratio = (x) => (f.isNumber(x) ? f.change(Math.expm1(x), 2) : f.DASH);

/** Without a curve the figures of both sides are logs of plain seconds. */
const PLAIN_STEPS = ["Step time", "seconds of a step (no curve is known to relate them to), less is better", -1, (x) => (f.isNumber(x) ? f.duration(Math.exp(x)) : f.DASH), ratio];

// Name, what it is, which way is better, how to show a value and a difference.
const MEASURES = {
  acceptance: ["Acceptance", "accepted tokens per round, more is better", 1, ...points(3)],
  calibration: ["Calibration", "log loss of both sets on the same rows, less is better", -1, ...points(4)],
  step_time: ["Step time", "seconds of a step against what the curve promises, less is better", -1, ratio, ratio],
  throughput: ["Throughput", "tokens per second, more is better", 1, ratio, ratio],
};

function stages({ stage, state, history }) {
  const last = history?.map((e) => e.stage).filter((st) => STAGES.includes(st)).at(-1) ?? "shadow";
  const at = STAGES.indexOf(stage === "aborted" ? last : stage);
  const seen = new Set(history?.map((e) => e.stage));
  return h("ol", { class: "steps", "aria-label": `Stage: ${stage}` }, STAGES.map((name, i) => {
    const passed = i < at || (state === "done" && i <= at);
    const skipped = passed && seen.size > 0 && !seen.has(name);
    const done = passed && !skipped;
    const failed = state === "aborted" && i === at;
    const kind = failed ? "failed" : done ? "done" : skipped ? "skipped" : i === at ? "now" : "";
    return h("li", { class: kind, "aria-current": i === at && state === "running" ? "step" : null }, h("span", { class: "dot", "aria-hidden": "true" }, failed ? "×" : done ? "✓" : skipped ? "–" : i + 1), h("span", {}, name === "all" ? "all" : term(name, name), skipped && " (skipped)"));
  }));
}

/** Where the tolerated loss lies in the unit of the difference, on the side of what is worse. */
function toleratedLoss(row) {
  if (!f.isNumber(row.tolerance)) return null;
  // Of acceptance it is relative, and the difference is in tokens (the bonus token included).
  if (row.measure === "acceptance") return f.isNumber(row.control) ? (1 + row.control) * Math.expm1(-row.tolerance) : null;
  return -row.tolerance;
}

function noDifference(row) {
  if (!row.n_canary && !row.n_control) return "no rows yet";
  return `too few to compare yet: n ${f.count(row.n_canary)}, ${f.count(row.n_control)}`;
}

/** Each measure on a scale of its own (tokens and times share no axis), better to the right. */
function evidence(rows, curve) {
  return rows.map((row) => {
    const plain = row.measure === "step_time" && curve === false;
    const [label, what, sign, show, showChange] = plain ? PLAIN_STEPS : MEASURES[row.measure] ?? [row.measure, "", 1, f.figure, f.figure];
    const turned = (x) => (f.isNumber(x) ? sign * x : null);
    const [low, high] = sign > 0 ? [row.low, row.high] : [turned(row.high), turned(row.low)];
    const sides = f.isNumber(row.canary) && f.isNumber(row.control) ? `: ${show(row.canary)} against ${show(row.control)}` : "";
    return h("div", { class: "evidence-row" },
      h("div", {}, h("b", {}, label), " ", badge(row.verdict), row.decides === false && h("span", { class: "soft small-note" }, " explains, does not decide"), h("span", { class: "sub soft" }, what, sides)),
      responsive((width) => forest([{
        label: "", value: turned(row.difference), low, high, verdict: row.verdict,
        tolerance: toleratedLoss(row),
        about: () => tipTable(label, [["candidate", show(row.canary)], ["control", show(row.control)], ["difference", showChange(row.difference)], ["interval", f.interval(row.low, row.high, showChange)],
          ["n candidate, control", `${f.count(row.n_canary)}, ${f.count(row.n_control)}`], f.isNumber(row.tolerance) && ["tolerated loss", row.measure === "calibration" ? f.fixed(row.tolerance, 4) : f.share(row.tolerance)], ["such a loss is", row.bounded ? "excluded" : "not excluded yet"]]),
        text: f.isNumber(row.difference) ? `${showChange(row.difference)} ${f.interval(row.low, row.high, showChange)}` : noDifference(row),
      }], { label: `${label}: difference of candidate and control`, width, format: showChange, labelWidth: 8, textWidth: 250, symmetric: true, zeroText: "no difference" })));
  });
}

/** How many replicas take part, and what was asked for where that is not possible. */
function canaryShare(r, sides) {
  const live = sides ? sides.canary + sides.control : 0;
  if (!live) return `${f.share(r.share_asked, 0)} of the replicas asked for`;
  const counted = `${sides.canary} of ${live} live replicas, ${sides.applied} run it`;
  return r.share_asked === r.share ? `${f.share(r.share_asked, 0)} asked for: ${counted}` : `${f.share(r.share_asked, 0)} asked for, the nearest possible is ${counted}`;
}

export function rolloutCard(r, changed, withName) {
  const promote = () => {
    const stage = h("select", {}, r.stage === "shadow" && h("option", { value: "canary" }, `canary: ${f.share(r.share_asked, 0)} of the replicas`), h("option", { value: "all" }, "all replicas"));
    return confirmWithReason({
      title: `Promote version ${r.version}?`, confirm: "Promote", text: "Replicas apply it from now on, whether the evidence has decided or not.", more: field("To", stage),
      act: async (reason) => {
        await send("POST", `/rollouts/${r.id}/promote`, { stage: stage.value, ...(reason && { reason }) });
        changed();
      },
    });
  };
  const abort = () => confirmWithReason({
    title: `Abort the rollout of version ${r.version}?`, confirm: "Abort", danger: true, text: "Replicas that run it get what they ran before, under a new version number.",
    act: async (reason) => {
      await send("POST", `/rollouts/${r.id}/abort`, reason ? { reason } : {});
      changed();
    },
  });
  const rollBack = () => confirmWithReason({
    title: `Roll back to version ${r.control_version}?`, confirm: "Roll back", danger: true,
    text: `A new version with the parameters of version ${r.control_version} is published for all replicas.`,
    act: async (reason) => {
      const made = await send("POST", `${deploymentPath(r.deployment)}/rollback`, { version: r.control_version, ...(reason && { reason }) });
      toast(`Version ${made.version} carries the parameters of version ${r.control_version}.`);
      changed();
    },
  });
  const running = r.state === "running";
  const canary = r.evidence?.canary ?? [];
  const shadow = r.evidence?.shadow ?? null;
  const sides = r.evidence?.replicas;
  return h("article", { class: "card rollout", "aria-label": `Rollout ${r.id}` },
    h("div", { class: "panel-head" },
      h("h2", {}, withName && [h("a", { href: deploymentUrl(r.deployment, "rollouts") }, r.deployment), ": "], `version ${r.version}`, h("span", { class: "soft" }, ` against ${r.control_version ? `version ${r.control_version}` : "the raw head"}`)), badge(r.state),
      running && r.stage !== "all" && actionButton("Promote", "promote", promote),
      running && actionButton("Abort", "abort", abort, { danger: true }),
      f.isNumber(r.control_version) && r.control_version > 0 && actionButton("Roll back", "rollback", rollBack, { danger: !running })),
    h("div", { class: "panel-body" },
      h("div", { class: "rollout-top" }, stages(r), h("p", { class: "soft" }, running && r.stage === "canary" && `${canaryShare(r, sides)} · `, running ? `in this stage since ${f.time(r.stage_since, now())}` : `ended ${f.time(r.finished_at, now())}`, r.reason && ` · ${r.reason}`)),
      h("div", { class: "grid" },
        h("div", { class: "w8" }, h("h3", {}, canary.length || !shadow ? "Canary against control" : "Shadow against the version in force"),
          r.evidence?.decision && h("p", { class: "small-note" }, h("b", {}, { promote: "Promote", abort: "Abort", wait: "Wait" }[r.evidence.decision.action]), h("span", { class: "soft" }, `: ${r.evidence.decision.reason}`)),
          (canary.length > 0 || shadow) && h("p", { class: "small-note soft" }, "Better lies to the right of no difference; the dashed line is the loss that would be tolerated."),
          canary.length ? evidence(canary, r.evidence.curve) : shadow ? evidence([shadow]) : h("p", { class: "soft" }, "No evidence yet: rows are being scored.")),
        h("div", { class: "w4" }, h("h3", {}, "History"), h("ol", { class: "timeline" }, (r.history ?? []).map((e) => h("li", {}, h("time", { title: f.fullTime(e.at) }, f.time(e.at, now())), badge(e.stage), h("span", {}, e.reason, e.by && h("span", { class: "soft" }, ` (${e.by})`)))))))));
}

const PAST = (withName) => [
  { key: "id", label: "Rollout", sort: (r) => r.id, cell: (r) => h("span", { class: "name" }, `#${r.id}`) },
  withName && { key: "deployment", label: "Deployment", sort: (r) => r.deployment, cell: (r) => h("a", { href: deploymentUrl(r.deployment, "rollouts") }, r.deployment) },
  { key: "version", label: "Version", num: true, sort: (r) => r.version, cell: (r) => `v${r.version}` },
  { key: "state", label: "Ended", sort: (r) => r.state, cell: (r) => badge(r.state) },
  { key: "at", label: "When", live: true, sort: (r) => f.seconds(r.finished_at), cell: (r) => h("span", { class: "nowrap", title: f.fullTime(r.finished_at) }, f.time(r.finished_at, now())) },
  { key: "reason", label: "Reason", wrap: true, cell: (r) => r.reason ?? r.history?.at(-1)?.reason ?? "–" },
].filter(Boolean);

/** Running rollouts as cards, ended ones as a table; of one deployment or of all. */
export function rolloutPanels({ deployment = null, id = null, changed = () => {} }) {
  const table = new Table({ columns: PAST(!deployment), key: (r) => r.id, caption: "Ended rollouts", sort: { key: "id", dir: "desc" }, href: (r) => (deployment ? null : `/rollouts/${r.id}`), empty: "None yet." });
  const cards = h("div", { class: "grid" });
  const load = (signal) => list("/rollouts", { deployment }, 200, signal);
  let drawn = "";
  const running = panel({
    live: true, load,
    draw: (body, items) => {
      const going = items.filter((r) => (id ? r.id === id : r.state === "running"));
      // With none under way the last one is worth a look: what came of it?
      const shown = going.length || id ? going : items.slice(0, 1);
      if (!body.firstChild) body.append(cards);
      table.update(items.filter((r) => r.state !== "running"));
      const text = JSON.stringify(shown);
      if (text === drawn) return;
      drawn = text;
      const focused = cards.contains(document.activeElement) ? document.activeElement.dataset.action : null;
      replace(cards, shown.length ? shown.map((r) => rolloutCard(r, again, !deployment)) : h("div", { class: "card empty" }, "No rollout. A new version can be tried on a share of the replicas first: ", deployment ? h("a", { href: deploymentUrl(deployment, "parameters") }, "start one from the versions") : "start one on a deployment's parameters page", "."));
      if (focused) cards.querySelector(`[data-action="${focused}"]`)?.focus();
    },
  });
  running.el.classList.remove("card");
  running.el.classList.add("bare");
  running.el.setAttribute("aria-label", "Rollouts");
  const past = panel({ title: "Ended rollouts", flush: true, load: async () => null, draw: (body) => body.firstChild || body.append(table.el) });
  function again() {
    running.refresh();
    changed();
  }
  return [running, { ...past, table }];
}
