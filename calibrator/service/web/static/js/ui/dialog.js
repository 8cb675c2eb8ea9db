// Questions before something changes, and what came of it.

import { h } from "./dom.js";
import { ApiError } from "../api.js";

/**
 * Open a dialog; resolves to true, or false when it was dismissed. With `act` the confirmation runs it
 * first, shows what went wrong, and stays open until it succeeds.
 */
export function openDialog({ title, body, confirm = "OK", danger = false, wide = false, act = null, modalOnly = false, only = false }) {
  return new Promise((resolve) => {
    const problem = h("p", { class: "panel-problem", role: "alert", hidden: true });
    const yes = h("button", { class: `button primary${danger ? " danger" : ""}`, type: "submit" }, confirm);
    const no = only || modalOnly ? null : h("button", { class: "button", type: "button", onclick: () => dialog.close() }, "Cancel");
    const form = h("form", { method: "dialog" },
      h("div", { class: "dialog-body" }, h("h2", { id: "dialog-title" }, title), body, problem),
      h("div", { class: "dialog-foot" }, no, yes));
    const dialog = h("dialog", { class: wide ? "wide" : "", "aria-labelledby": "dialog-title" }, form);
    let done = false;
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      if (act) {
        yes.disabled = true;
        problem.hidden = true;
        try {
          await act();
        } catch (cause) {
          problem.textContent = cause.message;
          problem.hidden = false;
          yes.disabled = false;
          if (!(cause instanceof ApiError)) console.warn(cause);
          return;
        }
      }
      done = true;
      dialog.close();
    });
    dialog.addEventListener("cancel", (event) => modalOnly && event.preventDefault());
    dialog.addEventListener("click", (event) => !modalOnly && event.target === dialog && dialog.close());
    dialog.addEventListener("close", () => { dialog.remove(); resolve(done); });
    document.body.append(dialog);
    dialog.showModal();
    (dialog.querySelector("[autofocus], input, select, textarea") ?? yes).focus();
  });
}

/** A labelled field of a dialog. */
export function field(label, input, hint) {
  return h("label", { class: "field" }, h("span", {}, label), input, hint && h("span", {}, hint));
}

/** Confirm with a reason that is kept with the change. */
export async function confirmWithReason({ title, text, confirm, danger, required = false, more = null, act }) {
  const reason = h("textarea", { name: "reason", maxlength: 500, required, placeholder: "kept in the history and the audit log" });
  return openDialog({
    title, confirm, danger,
    body: [text && h("p", {}, text), more, field(required ? "Reason" : "Reason (optional)", reason)],
    act: () => act(reason.value.trim() || undefined),
  });
}

/** A short message at the corner; problems stay longer. */
export function toast(text, bad = false) {
  const node = h("div", { class: `toast${bad ? " bad" : ""}` }, text);
  document.getElementById("toasts").append(node);
  setTimeout(() => node.remove(), bad ? 9000 : 4500);
}
