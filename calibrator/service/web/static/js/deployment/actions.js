// What an operator does to a deployment: recalibrate, freeze, explore.

import { h } from "../ui/dom.js";
import { confirmWithReason, field, openDialog, toast } from "../ui/dialog.js";
import { deploymentPath, get, send } from "../api.js";
import { actionButton } from "./versions.js";

const ENDED = ["done", "failed", "abandoned"];

/** Ask for a run, say so, and say again how it ended. */
export async function recalibrate(name, dryRun, changed) {
  try {
    const run = await send("POST", `${deploymentPath(name)}/recalibrate`, { dry_run: dryRun });
    toast(`${dryRun ? "Dry run" : "Recalibration"} ${run.id} of ${name} is ${run.state}.`);
    changed();
    await follow(run.id, changed);
  } catch (cause) {
    toast(cause.message, true);
  }
}

async function follow(id, changed) {
  for (let look = 0; look < 150; look += 1) {
    await new Promise((done) => setTimeout(done, look < 10 ? 500 : 2000));
    const run = await get(`/runs/${id}`);
    if (!ENDED.includes(run.state)) continue;
    const why = run.reasons?.at(-1);
    toast(`Run ${id}: ${run.outcome ?? run.state}${run.version ? `, version ${run.version}` : ""}${why ? `. ${why}` : ""}`, run.state !== "done");
    changed();
    return;
  }
}

async function freeze(name, frozen, changed) {
  await confirmWithReason({
    title: frozen ? `Freeze ${name}?` : `Unfreeze ${name}?`, confirm: frozen ? "Freeze" : "Unfreeze",
    text: frozen ? "Engines keep the parameters of now; nothing new is published until it is unfrozen. Telemetry goes on." : "Scheduled refreshes publish again when they find something better.",
    act: async (reason) => {
      await send("PUT", `${deploymentPath(name)}/frozen`, { frozen, ...(reason && { reason }) });
      changed();
    },
  });
}

async function explore(name, changed) {
  const { settings = {}, explore: now } = await get(`${deploymentPath(name)}/exploration`);
  const percent = (x, otherwise) => String(Number(((x ?? otherwise) * 100).toPrecision(4)));
  const mode = h("select", {}, [["auto", "automatic: as much as labels are worth"], ["fixed", "fixed"]].map(([key, text]) => h("option", { value: key }, text)));
  mode.value = settings.mode ?? "auto";
  const number = (value) => h("input", { type: "number", min: 0, max: 100, step: "any", value });
  const fixed = number(percent(settings.explore ?? now, 0.01));
  const floor = number(percent(settings.floor, 0.001));
  const ceiling = number(percent(settings.ceiling, 0.05));
  const [a, b, c] = [field("Explored share, per cent", fixed), field("At least, per cent", floor), field("At most, per cent", ceiling)];
  const show = () => { a.hidden = mode.value !== "fixed"; b.hidden = c.hidden = mode.value === "fixed"; };
  mode.addEventListener("change", show);
  show();
  await openDialog({
    title: `Exploration of ${name}`, confirm: "Set",
    body: [h("p", {}, "A share of rounds is verified in full, so that positions the scheduler skips keep getting labels. Engines read it with the next version."), field("Mode", mode), a, b, c],
    act: async () => {
      const body = mode.value === "fixed" ? { mode: "fixed", explore: Number(fixed.value) / 100 } : { mode: "auto", floor: Number(floor.value) / 100, ceiling: Number(ceiling.value) / 100 };
      await send("PUT", `${deploymentPath(name)}/exploration`, body);
      toast("Exploration is set.");
      changed();
    },
  });
}

export function actionBar(name, deployment, changed) {
  const big = { small: false };
  return h("div", { class: "actions" },
    actionButton("Recalibrate now", "recalibrate", () => recalibrate(name, false, changed), big),
    actionButton("Dry run", "dry-run", () => recalibrate(name, true, changed), big),
    actionButton("Exploration …", "explore", () => explore(name, changed).catch((cause) => toast(cause.message, true)), big),
    actionButton(deployment.frozen ? "Unfreeze" : "Freeze", "freeze", () => freeze(name, !deployment.frozen, changed), big));
}
