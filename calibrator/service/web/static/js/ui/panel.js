// One part of a page: fetches its data, draws it, says what went wrong, and keeps the old picture meanwhile.

import { h } from "./dom.js";
import { answered } from "../events.js";

/**
 * @param {object} o title, note?, tools?, width? (w4..w8), flush?, load(signal), draw(body, data).
 *   `draw` is called when the data changed, or always with `live`.
 */
export function panel({ title, note, tools, width = "", flush = false, id, load, draw, live = false }) {
  const body = h("div", { class: `panel-body${flush ? " flush" : ""}` });
  const problem = h("div", { class: "panel-problem", role: "alert", hidden: true });
  const el = h("section", { class: `card panel ${width}`, id, "aria-label": typeof title === "string" ? title : null, "aria-busy": "true" },
    title && h("div", { class: "panel-head" }, h("h2", {}, title), tools),
    note && h("p", { class: "panel-note" }, note), problem, body);
  let last = null;
  let running = null;
  let again = false;

  /** News waits for the answer that is under way; another choice (`anew`) makes that answer worthless. */
  async function refresh(anew = false) {
    if (running && !anew) {
      again = true;
      return;
    }
    running?.abort();
    again = false;
    const mine = new AbortController();
    running = mine;
    try {
      const data = await load(mine.signal);
      if (mine.signal.aborted) return;
      answered(true);
      problem.hidden = true;
      const text = JSON.stringify(data);
      if (live || text !== last) {
        last = text;
        draw(body, data);
      }
    } catch (cause) {
      if (cause.name === "AbortError" || mine.signal.aborted) return;
      if (cause.status === 0) answered(false);
      problem.textContent = last === null ? `Not available: ${cause.message}` : `Not refreshed: ${cause.message}. What you see is older.`;
      problem.hidden = false;
      if (cause.status === undefined) console.error(cause);
    } finally {
      if (running === mine) {
        running = null;
        el.setAttribute("aria-busy", "false");
        if (again && el.isConnected) refresh();
      }
    }
  }

  return { el, refresh, stop: () => running?.abort() };
}

/** A tile of the head of a page: label, value, line below. */
export function tile(label, value, sub) {
  return h("div", { class: "card tile" }, h("div", { class: "label" }, label), h("div", { class: "value" }, value), h("div", { class: "sub" }, sub ?? "\u00a0"));
}

/** Buttons of which one is pressed. */
export function segmented(label, options, chosen, onChoose) {
  const group = h("div", { class: "segmented", role: "group", "aria-label": label });
  const set = (value) => {
    for (const button of group.children) button.setAttribute("aria-pressed", String(button.dataset.value === String(value)));
  };
  for (const [value, text, about] of options) {
    group.append(h("button", { type: "button", "data-value": value, title: about, onclick: () => { set(value); onChoose(value); } }, text));
  }
  set(chosen);
  group.set = set;
  return group;
}
