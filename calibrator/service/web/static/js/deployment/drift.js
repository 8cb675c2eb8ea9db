// Drift episodes: what changed, since when, and what usually helps.

import { h, replace } from "../ui/dom.js";
import { badge } from "../ui/badge.js";
import { panel, segmented } from "../ui/panel.js";
import { Table } from "../ui/table.js";
import { deploymentPath, list } from "../api.js";
import { now } from "../clock.js";
import * as f from "../format.js";
import { TERMS } from "../glossary.js";
import { choose } from "../router.js";

const WAYS = {
  calibration: { above: "acceptance above the confidence", below: "acceptance below the confidence" },
  acceptance: { above: "above its reference", below: "below its reference" },
  cost: { slower: "slower than the curve", faster: "faster than the curve" },
};

function where(e) {
  return [e.segment && `segment ${e.segment}`, e.position && `position ${e.position}`, f.isNumber(e.load_regime) && f.loadRegime(e.load_regime), f.isNumber(e.context_bucket) && `context ${f.count(e.context_bucket)}`].filter(Boolean).join(", ") || "whole deployment";
}

const gap = (e) => (f.isNumber(e.gap) ? (e.kind === "cost" ? f.change(e.gap) : f.signed(e.gap)) : "");

const COLUMNS = [
  { key: "kind", label: "Kind", sort: (e) => e.kind, cell: (e) => badge(e.kind, null, `${e.kind} drift`) },
  { key: "state", label: "State", live: true, sort: (e) => (e.ended_at ? 1 : 0), cell: (e) => [badge(e.ended_at ? "closed" : "open"),
    h("span", { class: "sub nowrap", title: `started ${f.fullTime(e.started_at)}, alarm ${f.fullTime(e.alarmed_at)}${e.ended_at ? `, ended ${f.fullTime(e.ended_at)}` : ""}` },
      e.ended_at ? `${f.time(e.started_at, now())} to ${f.time(e.ended_at, now())}` : `since ${f.time(e.started_at, now())}`),
    h("span", { class: "sub nowrap" }, `alarm ${f.time(e.alarmed_at, now())}`)] },
  { key: "where", label: "Where", cell: where },
  { key: "summary", label: "What happened", wrap: true, cell: (e) => [e.summary, h("span", { class: "sub" }, [gap(e) && `gap ${gap(e)}`, WAYS[e.kind]?.[e.direction], f.isNumber(e.version) && `under v${e.version}`].filter(Boolean).join(", "))] },
  { key: "remedy", label: "Remedy", about: TERMS.remedy[1], wrap: true, cell: (e) => e.remedy },
];

/** Whether an episode is of the chosen segment and position; one that names none concerns them all. */
export function concerns(e, { segment, position }) {
  return (!segment || !e.segment || e.segment === segment) && (!position || !e.position || e.position === position);
}

/** What is listed and what is not, in words. */
function scope({ segment, position, sampling }, hidden) {
  const chosen = [segment && `segment ${segment}`, position && `position ${position}`].filter(Boolean).join(", ");
  const left = hidden ? `; ${f.count(hidden)} of other segments or positions not shown` : "";
  const listed = chosen ? `Of ${chosen}, or of all${left}.` : "Of all segments and positions.";
  return sampling ? `${listed} No episode is of one sampling alone.` : listed;
}

export function driftPanel(name, view) {
  const listed = h("span", {});
  const table = new Table({ columns: COLUMNS, key: (e) => e.id, caption: "Drift episodes", sort: { key: "state", dir: "asc" }, empty: () => (view().segment || view().position ? "No such episode." : view().drift === "open" ? "No open episode." : "No episode yet: no alarm was raised.") });
  const tools = segmented("Episodes", [["all", "All"], ["open", "Open"]], view().drift, (drift) => choose({ drift: drift === "all" ? null : drift }));
  const made = panel({
    title: "Drift episodes", id: "drift", tools, note: listed, flush: true, live: true,
    load: (signal) => list(`${deploymentPath(name)}/drift`, { state: view().drift }, 200, signal),
    draw: (body, items) => {
      if (!body.firstChild) body.append(table.el);
      const mine = items.filter((e) => concerns(e, view()));
      replace(listed, scope(view(), items.length - mine.length));
      table.update(mine);
    },
  });
  return { ...made, table };
}
