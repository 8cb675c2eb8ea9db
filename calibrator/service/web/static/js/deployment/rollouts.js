// Rollouts: where each stands, the evidence for and against, and the three buttons.

import { h, replace } from "../ui/dom.js";
import { badge } from "../ui/badge.js";
import { confirmWithReason, toast } from "../ui/dialog.js";
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
const MEASURES = {
  acceptance: ["Acceptance", "accepted share, higher is better", (x) => f.fixed(x, 4), (x) => f.signed(x, 4)],
  calibration: ["Calibration", "error, lower is better", (x) => f.fixed(x, 4), (x) => f.signed(x, 4)],
  step_time: ["Step time", "lower is better", f.duration, (x) => (f.isNumber(x) ? `${x > 0 ? "+" : x < 0 ? "−" : ""}${f.duration(Math.abs(x))}` : f.DASH)],
};
const HIGHER_IS_BETTER = new Set(["acceptance"]);

function stages({ stage, state, history }) {
  const last = history?.map((e) => e.stage).filter((st) => STAGES.includes(st)).at(-1) ?? "shadow";
  const at = STAGES.indexOf(stage === "aborted" ? last : stage);
  return h("ol", { class: "steps", "aria-label": `Stage: ${stage}` }, STAGES.map((name, i) => {
    const done = i < at || state === "done";
    const failed = state === "aborted" && i === at;
    const kind = failed ? "failed" : done ? "done" : i === at ? "now" : "";
    return h("li", { class: kind, "aria-current": i === at && state === "running" ? "step" : null }, h("span", { class: "dot", "aria-hidden": "true" }, failed ? "×" : done ? "✓" : i + 1), name === "all" ? "all" : term(name, name));
  }));
}

/** Each measure on a scale of its own (a share and a time share no axis), better to the right. */
function canaryEvidence(rows) {
  return rows.map((row, i) => {
    const [label, sub, show, showChange] = MEASURES[row.measure] ?? [row.measure, "", f.figure, f.figure];
    const sign = HIGHER_IS_BETTER.has(row.measure) ? 1 : -1;
    const flip = sign > 0 ? [row.low, row.high] : [row.high, row.low].map((x) => (f.isNumber(x) ? -x : null));
    return h("div", { class: "evidence-row" },
      h("div", {}, h("b", {}, label), " ", badge(row.verdict), h("span", { class: "sub soft" }, `${sub}: canary ${show(row.canary)}, control ${show(row.control)}`)),
      responsive((width) => forest([{
        label: "", value: f.isNumber(row.difference) ? sign * row.difference : null, low: flip[0], high: flip[1], verdict: row.verdict,
        about: () => tipTable(label, [["canary", show(row.canary)], ["control", show(row.control)], ["difference", showChange(row.difference)], ["interval", f.interval(row.low, row.high, showChange)], ["n canary, control", `${f.count(row.n_canary)}, ${f.count(row.n_control)}`]]),
        text: f.isNumber(row.difference) ? `${showChange(row.difference)} ${f.interval(row.low, row.high, showChange)}` : "no rows yet",
      }], { label: `${label}: difference of canary and control`, width, format: showChange, labelWidth: 8, textWidth: 250, symmetric: true, zeroText: i === rows.length - 1 ? "no difference" : "" })));
  });
}

function shadowEvidence(shadow) {
  if (!shadow) return h("p", { class: "soft" }, "No evidence yet: rows are being scored.");
  const [value, low, high] = [shadow.improvement ?? shadow.difference ?? shadow.estimate ?? null, shadow.low ?? null, shadow.high ?? null];
  const facts = Object.entries(shadow).filter(([, v]) => v !== null && typeof v !== "object");
  return h("div", {},
    f.isNumber(value) && responsive((width) => forest([{ label: "Score on live rows", sub: "candidate against in force", value, low, high, verdict: shadow.verdict ?? (low > 0 ? "better" : high < 0 ? "worse" : "undecided") }], { label: "Improvement in shadow", width, format: (x) => f.signed(x) })),
    h("p", { class: "soft" }, facts.map(([key, v]) => `${key.replaceAll("_", " ")} ${typeof v === "number" ? f.figure(v) : v}`).join(" · ")));
}

export function rolloutCard(r, changed, withName) {
  const act = (what) => confirmWithReason({
    ...{
      promote: { title: `Promote version ${r.version}?`, confirm: "Promote", text: r.stage === "shadow" ? `It is applied by ${f.share(r.share, 0)} of the replicas from now on.` : "Every replica applies it from now on. Evidence may not have decided yet." },
      abort: { title: `Abort the rollout of version ${r.version}?`, confirm: "Abort", danger: true, required: false, text: `Canary replicas return to version ${r.control_version ?? "in force before"}.` },
    }[what],
    act: async (reason) => {
      await send("POST", `/rollouts/${r.id}/${what}`, reason ? { reason } : {});
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
  return h("article", { class: "card rollout", "aria-label": `Rollout ${r.id}` },
    h("div", { class: "panel-head" },
      h("h2", {}, withName && [h("a", { href: deploymentUrl(r.deployment, "rollouts") }, r.deployment), ": "], `version ${r.version}`, f.isNumber(r.control_version) && h("span", { class: "soft" }, ` against ${r.control_version}`)), badge(r.state),
      running && r.stage !== "all" && actionButton("Promote", "promote", () => act("promote")),
      running && actionButton("Abort", "abort", () => act("abort"), { danger: true }),
      f.isNumber(r.control_version) && r.control_version > 0 && actionButton("Roll back", "rollback", rollBack, { danger: !running })),
    h("div", { class: "panel-body" },
      h("div", { class: "rollout-top" }, stages(r), h("p", { class: "soft" }, running && r.stage === "canary" && `${f.share(r.share, 0)} of the replicas · `, running ? `in this stage for ${f.duration(now() - f.seconds(r.stage_since))}` : `ended ${f.time(r.finished_at, now())}`, r.reason && ` · ${r.reason}`)),
      h("div", { class: "grid" },
        h("div", { class: "w8" }, h("h3", {}, canary.length ? "Canary against control" : "Shadow"), canary.length ? [h("p", { class: "soft small-note" }, "Better lies to the right. Intervals stay valid however often anyone looks."), canaryEvidence(canary)] : shadowEvidence(r.evidence?.shadow)),
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
