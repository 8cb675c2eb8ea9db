// Jobs: when each deployment is recalibrated by itself, and what every run came to.

import { h } from "../ui/dom.js";
import { badge } from "../ui/badge.js";
import { field, openDialog, toast } from "../ui/dialog.js";
import { panel } from "../ui/panel.js";
import { Table } from "../ui/table.js";
import { deploymentPath, list, send } from "../api.js";
import { now } from "../clock.js";
import * as f from "../format.js";
import { choose, deploymentUrl, query } from "../router.js";
import { actionButton, reasonsList } from "../deployment/versions.js";
import { recalibrate } from "../deployment/actions.js";

async function editSchedule(job, changed) {
  const plan = job.schedule ?? {};
  const kind = h("select", {}, [["interval", "every so many seconds"], ["cron", "cron expression (UTC)"]].map(([key, text]) => h("option", { value: key }, text)));
  kind.value = plan.cron ? "cron" : "interval";
  const seconds = h("input", { type: "number", min: 1, step: "any", value: String(plan.interval_seconds ?? 300) });
  const cron = h("input", { type: "text", value: plan.cron ?? "*/5 * * * *", spellcheck: "false", class: "mono" });
  const paused = h("input", { type: "checkbox", checked: Boolean(plan.paused) });
  const [a, b] = [field("Seconds between two runs", seconds), field("Minute, hour, day, month, weekday", cron)];
  const show = () => { a.hidden = kind.value !== "interval"; b.hidden = kind.value === "interval"; };
  kind.addEventListener("change", show);
  show();
  await openDialog({
    title: `Schedule of ${job.deployment}`, confirm: "Save",
    body: [field("Recalibrate", kind), a, b, h("label", { class: "check" }, paused, "Paused")],
    act: async () => {
      const when = kind.value === "cron" ? { cron: cron.value.trim() } : { interval_seconds: Number(seconds.value) };
      await send("PUT", `${deploymentPath(job.deployment)}/schedule`, { ...when, paused: paused.checked });
      toast(`The schedule of ${job.deployment} is saved.`);
      changed();
    },
  });
}

async function pause(job, changed) {
  const { interval_seconds, cron, paused } = job.schedule;
  try {
    await send("PUT", `${deploymentPath(job.deployment)}/schedule`, { ...(cron ? { cron } : { interval_seconds }), paused: !paused });
    changed();
  } catch (cause) {
    toast(cause.message, true);
  }
}

const outcome = (run) => [badge(run.state === "done" ? run.outcome ?? "done" : run.state), run.dry_run && " ", run.dry_run && badge("no_data", "dry run", "Nothing is published, whatever it finds.")];

export function open() {
  document.title = "Jobs · DSpark Calibrator";
  const jobs = new Table({
    columns: [
      { key: "deployment", label: "Deployment", sort: (j) => j.deployment, cell: (j) => h("a", { class: "name", href: deploymentUrl(j.deployment, "activity") }, j.deployment) },
      { key: "schedule", label: "Schedule", sort: (j) => j.schedule?.interval_seconds ?? null, cell: (j) => [h("span", { class: j.schedule?.cron ? "mono" : "" }, f.schedule(j.schedule)), j.schedule && h("span", { class: "sub" }, j.schedule.source === "set" ? "set for this deployment" : "the service's default")] },
      { key: "next", label: "Next run", live: true, sort: (j) => f.seconds(j.schedule?.next_run_at), cell: (j) => (j.schedule?.paused ? badge("paused") : h("span", { title: f.fullTime(j.schedule?.next_run_at) }, f.ago(j.schedule?.next_run_at, now()))) },
      { key: "last", label: "Last run", live: true, sort: (j) => f.seconds(j.last_run?.created_at), cell: (j) => (j.last_run ? [outcome(j.last_run), h("span", { class: "sub" }, f.ago(j.last_run.started_at ?? j.last_run.created_at, now()))] : h("span", { class: "soft" }, "none yet")) },
      { key: "tools", label: "", tools: true, cell: (j) => h("span", { class: "chips" }, actionButton("Run now", "run", () => recalibrate(j.deployment, false, refresh)), actionButton(j.schedule?.paused ? "Resume" : "Pause", "pause", () => pause(j, refresh)), actionButton("Edit", "edit", () => editSchedule(j, refresh))) },
    ],
    key: (j) => `${j.kind}/${j.deployment}`, caption: "Schedules", sort: { key: "deployment", dir: "asc" }, empty: "No deployment yet, so nothing is scheduled.",
  });
  const runs = new Table({
    columns: [
      { key: "id", label: "Run", sort: (r) => r.id, cell: (r) => [h("span", { class: "name" }, `#${r.id}`), h("span", { class: "sub" }, r.trigger)] },
      { key: "deployment", label: "Deployment", sort: (r) => r.deployment, cell: (r) => h("a", { href: deploymentUrl(r.deployment, "activity") }, r.deployment) },
      { key: "state", label: "Outcome", sort: (r) => r.outcome ?? r.state, cell: (r) => [outcome(r), f.isNumber(r.version) && h("span", { class: "sub" }, `version ${r.version}`)] },
      { key: "at", label: "Started", live: true, sort: (r) => f.seconds(r.started_at ?? r.created_at), cell: (r) => h("span", { class: "nowrap", title: f.fullTime(r.started_at ?? r.created_at) }, f.time(r.started_at ?? r.created_at, now()), h("span", { class: "sub" }, f.ago(r.started_at ?? r.created_at, now()))) },
      { key: "took", label: "Took", num: true, sort: (r) => r.duration_seconds ?? null, cell: (r) => (f.isNumber(r.duration_seconds) ? f.duration(r.duration_seconds) : r.state === "running" ? "…" : f.DASH) },
      { key: "rows", label: "Rows", num: true, sort: (r) => r.rows ?? null, cell: (r) => f.count(r.rows) },
      { key: "reasons", label: "Reasons", wrap: true, cell: (r) => [reasonsList(r.reasons), r.attempt > 1 && h("span", { class: "sub" }, `attempt ${r.attempt}, taken over`)] },
    ],
    key: (r) => r.id, caption: "Runs", sort: { key: "id", dir: "desc" }, empty: "No run matches.",
  });
  const state = h("select", { "aria-label": "State of runs", onchange: () => choose({ state: state.value }) }, [["", "all states"], ...["waiting", "running", "done", "failed", "abandoned"].map((x) => [x, x])].map(([v, t]) => h("option", { value: v }, t)));
  const which = h("input", { type: "search", class: "search", placeholder: "Search  ( / )", "aria-label": "Deployments of schedules and runs", value: query().q ?? "" });
  which.addEventListener("input", () => choose({ q: which.value }));
  state.value = query().state ?? "";
  let [allJobs, allRuns] = [[], []];

  const matches = (x) => x.deployment.toLowerCase().includes((query().q ?? "").toLowerCase());
  function filter() {
    jobs.update(allJobs.filter(matches));
    runs.update(allRuns.filter(matches));
  }
  const schedules = panel({
    title: "Schedules", flush: true, live: true, load: (signal) => list("/jobs", {}, 2000, signal),
    draw: (body, items) => {
      if (!body.firstChild) body.append(jobs.el);
      allJobs = items;
      filter();
    },
  });
  const history = panel({
    title: "Runs", tools: state, flush: true, live: true, load: (signal) => list("/runs", { state: query().state }, 300, signal),
    draw: (body, items) => {
      if (!body.firstChild) body.append(runs.el);
      allRuns = items;
      filter();
    },
  });
  function refresh() {
    schedules.refresh();
    history.refresh();
  }
  refresh();
  let lastState = query().state;
  return {
    el: h("div", {},
      h("div", { class: "page-head" }, h("div", {}, h("h1", {}, "Jobs"), h("p", { class: "lead" }, "When deployments are recalibrated by themselves, and what every run came to. One service at a time runs a job, however many there are.")), which),
      h("div", { class: "grid" }, schedules.el, history.el)),
    tables: () => [jobs, runs],
    chosen: () => {
      filter();
      if (query().state !== lastState) history.refresh(true);
      lastState = query().state;
    },
    happened: refresh,
    stop: () => { schedules.stop(); history.stop(); },
  };
}
