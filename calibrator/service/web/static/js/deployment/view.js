// What is chosen on a deployment's page, kept in the address: range, segment, sampling, position, measure.

import { h, replace } from "../ui/dom.js";
import { segmented } from "../ui/panel.js";
import { now } from "../clock.js";
import { choose, query } from "../router.js";

export const RANGES = [["5m", "5 min", 300], ["15m", "15 min", 900], ["1h", "1 h", 3600], ["6h", "6 h", 21600], ["24h", "24 h", 86400], ["7d", "7 d", 604800], ["30d", "30 d", 2592000]];

const POINTS = 90;

/** The shortest range that holds all there is, up to an hour: a new deployment should not look empty. */
export function defaultRange(createdAt) {
  const age = now() - Date.parse(createdAt) / 1000;
  return (RANGES.slice(0, 3).find(([, , seconds]) => age < seconds * 0.95) ?? RANGES[2])[0];
}

/** Read the address anew each time; `range` falls back to what suits the deployment. */
export function reader(fallback) {
  return () => {
    const q = query();
    const known = RANGES.some(([key]) => key === q.range);
    const seconds = (RANGES.find(([key]) => key === q.range) ?? RANGES.find(([key]) => key === fallback()) ?? RANGES[2])[2];
    const position = /^\d+$/.test(q.position ?? "") ? Number(q.position) : null;
    const times = () => (q.from || q.to ? { from: q.from, to: q.to } : { from: new Date((now() - seconds) * 1000).toISOString() });
    return {
      position, segment: q.segment ?? null, sampling: q.sampling ?? null,
      range: q.from || q.to ? null : known ? q.range : fallback(),
      unknownRange: q.range && !known ? q.range : null, measure: ["gap", "brier", "log_loss"].includes(q.measure) ? q.measure : "ece",
      drift: q.drift === "open" ? "open" : "all", scale: q.scale === "log" ? "log" : "linear",
      times, filter: () => ({ ...times(), segment: q.segment, sampling: q.sampling }),
      // Fewer points than the service would give: each then rests on more labels, and a chart has no more pixels.
      step: q.from || q.to ? null : seconds / POINTS,
    };
  };
}

const option = (value, text) => h("option", { value }, text);

/** Range, segment, sampling and position; `which` says what this tab needs. */
export function controls(view, which) {
  const range = segmented("Range", RANGES.map(([key, text]) => [key, text]), view().range, (value) => choose({ range: value, from: null, to: null }));
  const pick = (label, key) => {
    const select = h("select", { "aria-label": label, onchange: () => choose({ [key]: select.value }) });
    return { select, el: h("label", { class: "inline" }, label, select) };
  };
  const segment = pick("Segment", "segment");
  const sampling = pick("Sampling", "sampling");
  const position = pick("Position", "position");
  const fallen = h("span", { class: "soft small-note", role: "status" });
  const el = h("div", { class: "controls" }, range, fallen, which.filters && [segment.el, sampling.el, position.el]);
  let drawn = "";
  const update = (deployment) => {
    const { range: shown, unknownRange } = view();
    range.set(shown);
    fallen.hidden = !unknownRange;
    fallen.textContent = unknownRange ? `There is no range “${unknownRange}”; shown is the default.` : "";
    if (!which.filters || !deployment) return;
    // A menu that is open must not be taken away by an update.
    const text = JSON.stringify([deployment.segments, deployment.samplings, deployment.gamma]);
    if (text !== drawn) {
      drawn = text;
      const fill = (target, all, values, chosen) => replace(target.select, option("", all), [...new Set([...values.map(String), ...(chosen ? [String(chosen)] : [])])].map((v) => option(v, v)));
      fill(segment, "all", deployment.segments ?? [], view().segment);
      fill(sampling, "all", deployment.samplings ?? [], view().sampling);
      fill(position, "all", Array.from({ length: deployment.gamma }, (_, k) => k + 1), view().position);
    }
    segment.select.value = view().segment ?? "";
    sampling.select.value = view().sampling ?? "";
    position.select.value = view().position ?? "";
  };
  return { el, update };
}
