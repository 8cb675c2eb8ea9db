// One tooltip for the page: on hover, on keyboard focus and on touch, never cut off at an edge.

import { h, replace } from "./dom.js";
import { STATUSES, TERMS } from "../glossary.js";

const contents = new WeakMap();
const bubble = h("div", { class: "tip", role: "tooltip", id: "tip", hidden: true });
let owner = null;

function place(x, y) {
  const { width, height } = bubble.getBoundingClientRect();
  const left = Math.max(8, Math.min(x - width / 2, innerWidth - width - 8));
  const above = y - height - 12;
  bubble.style.left = `${left}px`;
  bubble.style.top = `${above > 6 ? above : y + 20}px`;
}

function show(node, x, y) {
  const content = contents.get(node);
  if (!content) return;
  const built = typeof content === "function" ? content() : content;
  if (!built) return;
  replace(bubble, built);
  bubble.hidden = false;
  owner = node;
  const box = node.getBoundingClientRect();
  place(x ?? box.left + box.width / 2, y ?? box.top);
}

function hide() {
  bubble.hidden = true;
  owner = null;
}

export function installTips() {
  document.body.append(bubble);
  const find = (target) => {
    for (let node = target; node instanceof Element; node = node.parentElement) if (contents.has(node)) return node;
    return null;
  };
  document.addEventListener("pointerover", (event) => {
    const node = find(event.target);
    if (node) show(node);
    else hide();
  });
  document.addEventListener("focusin", (event) => {
    const node = find(event.target);
    if (node && event.target.matches(":focus-visible")) show(node);
    else hide();
  });
  document.addEventListener("scroll", hide, { capture: true, passive: true });
  document.addEventListener("keydown", (event) => event.key === "Escape" && hide());
  new MutationObserver(() => owner && !owner.isConnected && hide()).observe(document.body, { childList: true, subtree: true });
}

/** Give a node a tooltip: text, node, or a function that makes one. */
export function tip(node, content) {
  contents.set(node, content);
  if (typeof content === "string" && !node.hasAttribute("aria-label")) node.setAttribute("aria-description", content);
  return node;
}

/** A term of the glossary: dotted underline, explained on hover, focus or tap. */
export function term(key, label) {
  const [name, text] = TERMS[key];
  return tip(h("span", { class: "term", tabindex: "0" }, label ?? name), text);
}

/** A number that is not there: a dash that says why. */
export function dash(status) {
  return tip(h("span", { class: "soft blank", tabindex: "0" }, "–"), STATUSES[status] ?? "Not known.");
}

/** Rows of a tooltip: [[label, value], ...], empty ones left out. */
export function tipTable(title, rows) {
  return h("div", {}, title && h("div", { class: "tip-title" }, title),
    h("dl", { class: "tip-table" }, rows.filter((r) => r && r[1] !== "" && r[1] !== undefined).map(([label, value, color]) => [
      h("dt", {}, color && h("span", { class: "swatch", style: { background: color } }), label), h("dd", {}, value)])));
}
