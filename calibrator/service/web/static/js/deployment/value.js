// Does it pay? The scheduler replayed on logged rounds under other parameters and rules.

import { h, replace } from "../ui/dom.js";
import { panel } from "../ui/panel.js";
import { term, tipTable } from "../ui/tip.js";
import { deploymentPath, get } from "../api.js";
import { forest, responsive } from "../charts/interval.js";
import { now } from "../clock.js";
import * as f from "../format.js";

const lessOne = (x) => (f.isNumber(x) ? x - 1 : null);

/** The API tells ratios; people read changes. */
const ends = (i) => ({ value: lessOne(i?.estimate), low: lessOne(i?.low), high: lessOne(i?.high) });

const change = ({ value, low, high }) => `${f.change(value, 2)} ${f.interval(low, high, (x) => f.change(x, 2))}`;

/** What policies are called: as in reports. */
const NAMES = { identity: "raw head", "in force": "set in force", candidate: "newest fit", "best monotone map": "best map" };

function verdict({ low, high }) {
  if (low > 0) return "better";
  return high < 0 ? "worse" : "undecided";
}

export function valuePanel(name) {
  let box = null;
  return panel({
    title: "Value of calibration", id: "value", width: "w4",
    note: ["Tokens per second against the raw confidences, replayed on logged rounds. ", term("regret", "What is missing to perfect foresight")],
    load: (signal) => get(`${deploymentPath(name)}/value`, {}, signal),
    draw: (body, { at, values, reasons }) => {
      if (!values?.length) {
        replace(body, h("p", { class: "chart-empty" }, reasons?.[0] ?? "Not replayed yet: it needs labels and a curve."));
        return;
      }
      const concurrency = values[0].concurrency;
      const rows = values.filter((v) => v.concurrency === concurrency).map((v) => ({
        label: NAMES[v.policy] ?? v.policy,
        sub: v.policy === "identity" ? "" : f.interval(lessOne(v.against_identity?.low), lessOne(v.against_identity?.high), (x) => f.change(x)),
        ...ends(v.against_identity), text: f.change(ends(v.against_identity).value),
        verdict: v.policy === "identity" ? "undecided" : verdict(ends(v.against_identity)),
        about: () => tipTable(NAMES[v.policy] ?? v.policy, [["tokens/s", f.count(v.tokens_per_second?.estimate)], ["against raw", change(ends(v.against_identity))],
          v.regret && ["regret", f.share(v.regret.estimate)], ["accepted, verified", `${f.fixed(v.accepted, 2)}, ${f.fixed(v.verified, 2)}`], ["labels can be seen", f.share(v.supported, 0)]]),
      }));
      box = responsive((width) => forest(rows, { label: `Tokens per second against raw at ${concurrency} requests`, width: Math.max(width, 240), format: (x) => f.change(x), zeroText: "as raw", labelWidth: 142, textWidth: 62, below: 280 }));
      replace(body, box, h("p", { class: "soft" }, `At ${concurrency} requests, replayed ${f.ago(at, now())}. `, reasons?.join("; ")));
    },
  });
}
