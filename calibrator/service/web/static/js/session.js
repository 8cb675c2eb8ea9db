// Who is looking. A token lives in sessionStorage: gone with the tab, never in a URL.

import { h } from "./ui/dom.js";
import { openDialog } from "./ui/dialog.js";

const KEY = "dspark-token";
const RANKS = { viewer: 0, operator: 1, admin: 2 };

let asking = null;
let me = { subject: null, role: "viewer", read_only: true };
const listeners = new Set();

export const token = () => sessionStorage.getItem(KEY);

export const who = () => me;

/** Whether the role suffices, and the service takes changes at all. */
export const can = (role) => !me.read_only && (RANKS[me.role] ?? 0) >= RANKS[role];

/** Why a button is grey. */
export const whyNot = (role) => (me.read_only ? "This service is read-only." : `Needs the role ${role}; yours is ${me.role}.`);

export function setMe(next) {
  if (JSON.stringify(next) === JSON.stringify(me)) return;
  me = next;
  for (const listener of listeners) listener(me);
}

export function onMe(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function forget() {
  sessionStorage.removeItem(KEY);
  location.reload();
}

/** Ask for a token, once however many requests were refused; resolves when one was given. */
export function askForToken(refused) {
  asking ??= prompt(refused).finally(() => { asking = null; });
  return asking;
}

async function prompt(refused) {
  const field = h("input", { type: "password", id: "token", autocomplete: "off", spellcheck: "false", required: true, placeholder: "dspark_…" });
  const given = await openDialog({
    title: "Token needed",
    body: [
      h("p", {}, refused ? "The service did not accept this token. Another one?" : "This service asks for a bearer token. It is kept in this tab only, and forgotten when the tab is closed."),
      h("label", { class: "field", for: "token" }, h("span", {}, "Token"), field),
      h("p", {}, "An operator makes one with ", h("code", {}, "dspark-calibrator token create --role viewer"), "."),
    ],
    confirm: "Continue",
    modalOnly: true,
  });
  if (given) sessionStorage.setItem(KEY, field.value.trim());
}
