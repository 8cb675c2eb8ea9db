// An address that leads nowhere.

import { h } from "../ui/dom.js";

export function open() {
  document.title = "Not found · DSpark Calibrator";
  return { el: h("div", { class: "empty" }, h("h1", {}, "Nothing here"), h("p", {}, "This address leads to no page. ", h("a", { href: "/" }, "To the fleet"))) };
}
