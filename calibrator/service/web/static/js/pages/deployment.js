// One deployment: head with status and actions, and a tab each for calibration, throughput, parameters,
// activity and rollouts.

import { h, replace } from "../ui/dom.js";
import { badge } from "../ui/badge.js";
import { panel } from "../ui/panel.js";
import { term } from "../ui/tip.js";
import { deploymentPath, get } from "../api.js";
import { now } from "../clock.js";
import * as f from "../format.js";
import { deploymentUrl, query, withQuery } from "../router.js";
import { onMe } from "../session.js";
import { actionBar, recalibrate } from "../deployment/actions.js";
import { controls, defaultRange, reader } from "../deployment/view.js";
import * as tabs from "../deployment/tabs.js";

const TABS = [["calibration", "Calibration"], ["throughput", "Throughput"], ["parameters", "Parameters"], ["activity", "Activity"], ["rollouts", "Rollouts"]];

const ROWS_EVERY = 4_000;

export function open(params) {
  const { name } = params;
  let tab = params.tab ?? "calibration";
  let deployment = null;
  let shown = null;
  let looked = performance.now();
  const view = reader(() => (deployment ? defaultRange(deployment.created_at) : "1h"));

  const facts = h("div", { class: "facts" });
  const status = h("span", { class: "chips" });
  const actions = h("div", {});
  const nav = h("nav", { class: "tabs", "aria-label": "Parts of the deployment" });
  const content = h("div", {});
  const missing = h("div", { class: "empty", hidden: true });
  let bar = null;

  const head = panel({
    live: true,
    load: (signal) => get(deploymentPath(name), {}, signal),
    draw: (_body, next) => {
      const first = deployment === null;
      deployment = next;
      drawHead();
      bar?.update(next);
      if (first) openTab();
    },
  });
  head.el.classList.remove("card");
  head.el.classList.add("quiet-panel");

  function drawHead() {
    const d = deployment;
    replace(status, badge(d.status), d.frozen && d.status !== "frozen" && badge("frozen"), d.drift.open > 0 && d.drift.kinds.map((kind) => badge(kind, `${kind} drift`)), d.rollout && h("a", { href: deploymentUrl(name, "rollouts") }, badge("canary", `rollout: ${d.rollout.stage}`)));
    replace(facts,
      h("span", {}, term("spread", "version"), " ", h("b", {}, d.version === null ? "none yet" : `v${d.version}, ${d.form}`)),
      h("span", {}, term("gamma"), " ", h("b", {}, d.gamma)),
      d.replicas && h("span", {}, h("b", {}, f.count(d.replicas.live)), d.replicas.live === 1 ? " replica" : " replicas", d.replicas.refusing > 0 && [", ", h("b", {}, `${d.replicas.refusing} refusing`)]),
      h("span", {}, h("b", {}, f.count(d.rounds)), " rounds"),
      h("span", { title: f.fullTime(d.last_seen_at) }, "last row ", h("b", {}, f.since(d.last_seen_at, now()))),
      d.schedule && h("span", {}, term("schedule", "recalibrated"), " ", h("b", {}, d.schedule.paused ? "paused" : f.schedule(d.schedule)), !d.schedule.paused && d.schedule.next_run_at && `, next ${f.ago(d.schedule.next_run_at, now())}`),
      h("span", {}, term("fingerprint", "fingerprint"), " ", h("span", { class: "mono" }, d.fingerprint)));
    drawActions();
  }

  function drawActions() {
    if (!deployment || actions.contains(document.activeElement)) {
      const button = actions.querySelector('[data-action="freeze"]');
      if (!deployment || button?.textContent === (deployment.frozen ? "Unfreeze" : "Freeze")) return;
    }
    replace(actions, actionBar(name, deployment, changed));
  }

  function drawTabs() {
    document.title = `${name} · ${TABS.find(([key]) => key === tab)[1]} · DSpark Calibrator`;
    const kept = Object.fromEntries(Object.entries(query()).filter(([key]) => ["range", "from", "to", "segment", "sampling", "position"].includes(key)));
    replace(nav, TABS.map(([key, text]) => h("a", { href: deploymentUrl(name, key === "calibration" ? "" : key) + withQuery({}, kept), "aria-current": key === tab ? "page" : null }, text)));
  }

  function openTab() {
    shown?.stop();
    drawTabs();
    bar = tab === "rollouts" || tab === "activity" || tab === "parameters" ? null : controls(view, { filters: tab === "calibration" });
    shown = tabs[tab](name, view, changed);
    replace(content, bar?.el, shown.el);
    bar?.update(deployment);
    shown.refresh();
  }

  function changed() {
    head.refresh();
    shown?.refresh();
  }

  // Things that say what is chosen are drawn at once; what needs other data asks for it.
  let lastChoice = location.search;
  function chosen() {
    if (location.search === lastChoice) return;
    lastChoice = location.search;
    drawTabs();
    bar?.update(deployment);
    shown?.redraw();
    shown?.refresh(true);
  }

  const offMe = onMe(() => deployment && replace(actions, actionBar(name, deployment, changed)));
  drawTabs();
  head.refresh();

  return {
    el: h("div", {},
      h("div", { class: "page-head" },
        h("div", {}, h("p", { class: "crumbs" }, h("a", { href: "/" }, "Fleet"), " / "), h("div", { class: "title-line" }, h("h1", {}, name), status), facts), actions),
      head.el, missing, nav, content),
    tables: () => shown?.tables() ?? [],
    tabs: () => TABS.map(([key]) => deploymentUrl(name, key === "calibration" ? "" : key) + location.search),
    recalibrate: () => recalibrate(name, false, changed),
    chosen,
    happened: ({ types, names, everything }) => {
      if (!everything && !names.has(name)) return;
      // Rows come in all the time; what somebody decided is shown at once.
      const decided = [...types].some((type) => type !== "deployment" && type !== "tick");
      if (!decided && performance.now() - looked < ROWS_EVERY) return;
      looked = performance.now();
      changed();
    },
    adopt: (page, next) => {
      if (page !== "deployment" || next.name !== name) return false;
      tab = next.tab ?? "calibration";
      lastChoice = location.search;
      if (deployment) openTab();
      return true;
    },
    stop: () => { shown?.stop(); head.stop(); offMe(); },
  };
}
