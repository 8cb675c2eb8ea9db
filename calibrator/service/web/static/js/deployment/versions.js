// Versions: what was published, why, what changed; export, compare, roll back, roll out.

import { h, replace } from "../ui/dom.js";
import { badge } from "../ui/badge.js";
import { confirmWithReason, field, openDialog, toast } from "../ui/dialog.js";
import { panel } from "../ui/panel.js";
import { Table } from "../ui/table.js";
import { deploymentPath, download, get, send } from "../api.js";
import { now } from "../clock.js";
import * as f from "../format.js";
import { deploymentUrl, go } from "../router.js";
import { can, whyNot } from "../session.js";

/** Of the service, for deployments whose settings say nothing of rollouts. */
const DEFAULT_SHARE = 0.1;

const FORMATS = [["document", "parameter document"], ["sglang", "SGLang temperatures"], ["tensorrt", "TensorRT-LLM temperatures"], ["cost", "cost curve"], ["sglang-cost", "SGLang throughput table"], ["tensorrt-cost", "TensorRT-LLM cost table"], ["vllm-cost", "vLLM curves"]];

const mean = (values) => {
  const known = (values ?? []).filter(f.isNumber);
  return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null;
};

/** Versions that were only on trial never served everybody: no step of what is in force. */
export const wasInForce = (v) => !["shadow", "canary", "aborted"].includes(v.state);

export const reasonsList = (reasons, shown = 2) => {
  if (!reasons?.length) return h("span", { class: "soft" }, "–");
  const items = (list) => h("ul", { class: "reasons" }, list.map((r) => h("li", {}, r)));
  if (reasons.length <= shown) return items(reasons);
  return [items(reasons.slice(0, shown)), h("details", {}, h("summary", {}, `${reasons.length - shown} more`), items(reasons.slice(shown)))];
};

export const actionButton = (label, action, run, { role = "operator", danger = false, small = true } = {}) => {
  const allowed = can(role);
  return h("button", { class: `button${small ? " small" : ""}${danger ? " danger" : ""}`, type: "button", "data-action": action, "aria-disabled": allowed ? null : "true", title: allowed ? null : whyNot(role), onclick: () => (allowed ? run() : toast(whyNot(role), true)) }, label);
};

export function versionsPanel(name, load, changed) {
  let newest = 0;
  let newestOther = 0;
  const path = deploymentPath(name);
  const columns = [
    { key: "version", label: "Version", num: false, sort: (v) => v.version, cell: (v) => [h("span", { class: "name" }, `v${v.version} `), v.version === newest && badge("published", "in force", "The newest published version: engines apply this one."), h("span", { class: "sub" }, `${v.form}${v.previous ? `, after v${v.previous}` : ""}`)] },
    { key: "state", label: "State", cell: (v) => badge(v.state) },
    { key: "at", label: "Published", live: true, sort: (v) => f.seconds(v.created_at), cell: (v) => h("span", { class: "nowrap", title: f.fullTime(v.created_at) }, f.time(v.created_at, now()), h("span", { class: "sub" }, f.ago(v.created_at, now()))) },
    { key: "ece", label: "Mean ECE, before to after", short: "Mean ECE", about: "Mean over positions on rows that the fit has not seen, and the noise floor below it.", cell: (v) => (v.ece_after?.length ? h("span", { class: "nowrap" }, `${f.error(mean(v.ece_before))} → ${f.error(mean(v.ece_after))}`, h("span", { class: "sub" }, `floor ${f.error(mean(v.noise_floor))}`)) : h("span", { class: "soft" }, "–")) },
    { key: "reasons", label: "Why", wrap: true, cell: (v) => reasonsList(v.reasons) },
    { key: "tools", label: "", tools: true, cell: (v) => h("span", { class: "chips" },
      v.previous > 0 && h("button", { class: "button small", type: "button", "data-action": "diff", onclick: () => showDiff(v) }, "Diff"),
      h("button", { class: "button small", type: "button", "data-action": "export", onclick: () => exportVersion(v) }, "Export"),
      v.version !== newest && actionButton("Roll back", "rollback", () => rollBack(v), { danger: true })) },
  ];
  const table = new Table({ columns, key: (v) => v.version, caption: "Parameter versions", sort: { key: "version", dir: "desc" }, empty: "No version was published yet. The first refresh that beats the raw head publishes one." });

  const made = panel({
    title: "Versions", id: "versions", flush: true, live: true, load,
    tools: actionButton("Start a rollout", "rollout", startRollout),
    draw: (body, versions) => {
      if (!body.firstChild) body.append(table.el);
      const was = newest;
      newest = Math.max(0, ...versions.filter(wasInForce).map((v) => v.version));
      newestOther = Math.max(0, ...versions.map((v) => v.version).filter((v) => v !== newest));
      if (was !== newest) table.rows.forEach((entry) => { entry.text = null; });
      table.update(versions);
    },
  });

  async function showDiff(v) {
    const against = h("input", { type: "number", min: 1, value: String(v.previous), "aria-label": "Compare with version" });
    const out = h("div", { class: "diff" });
    const load_ = async () => {
      try {
        const { changes } = await get(`${path}/versions/${v.version}/diff`, { against: against.value });
        const show = (x) => (typeof x === "number" ? String(Number(x.toPrecision(6))) : x === null || x === undefined ? "–" : typeof x === "object" ? JSON.stringify(x) : String(x));
        replace(out, [h("span", { class: "head" }, "what"), h("span", { class: "head" }, `v${against.value}`), h("span", { class: "head" }, `v${v.version}`)],
          changes.map((c) => [h("code", {}, c.path), h("span", { class: "from" }, show(c.from)), h("span", { class: "to" }, show(c.to))]), changes.length === 0 && "No difference.");
      } catch (cause) {
        replace(out, cause.message);
      }
    };
    against.addEventListener("change", load_);
    load_();
    await openDialog({ title: `Changes of version ${v.version}`, wide: true, only: true, confirm: "Close", body: [field("Against version", against), out] });
  }

  async function exportVersion(v) {
    const format = h("select", {}, FORMATS.map(([key, text]) => h("option", { value: key }, text)));
    await openDialog({ title: `Export version ${v.version}`, confirm: "Download", body: field("Format", format), act: async () => {
      const note = await download(`${path}/versions/${v.version}/export`, { format: format.value });
      if (note) toast(note);
    } });
  }

  async function rollBack(v) {
    await confirmWithReason({
      title: `Roll back to version ${v.version}?`, confirm: "Roll back", danger: true,
      text: `A new version with the parameters of version ${v.version} is published; engines apply it within a moment. Nothing is deleted.`,
      act: async (reason) => {
        const made_ = await send("POST", `${path}/rollback`, { version: v.version, reason });
        toast(`Version ${made_.version} carries the parameters of version ${v.version}.`);
        changed();
      },
    });
  }

  async function startRollout() {
    const { settings } = await get(path).catch(() => ({ settings: {} }));
    const own = settings.rollout?.share ?? DEFAULT_SHARE;
    const version = h("input", { type: "number", min: 1, required: true, value: String(newestOther || newest || 1) });
    const share = h("input", { type: "number", min: 0.01, max: 100, step: "any", value: String(Number((own * 100).toPrecision(6))) });
    const done = await openDialog({
      title: "Start a rollout", confirm: "Start",
      body: [h("p", {}, "Shadow first: the version is scored on live rows and applied nowhere. Then a share of the replicas applies it, and evidence decides."),
        field("Version", version, newestOther ? "the newest that is not in force" : "there is none but the one in force"), field("Canary share, per cent", share, settings.rollout?.share ? "as this deployment's settings say" : "what applies where a deployment's settings say nothing")],
      act: () => send("POST", `${path}/rollouts`, { version: Number(version.value), share: Number(share.value) / 100 }),
    });
    if (done) go(deploymentUrl(name, "rollouts"));
  }

  return { ...made, table };
}
