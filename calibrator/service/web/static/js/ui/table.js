// A table that sorts, keeps its rows (and the focus in them) across updates, and moves with j and k.

import { h, replace } from "./dom.js";
import { tip } from "./tip.js";
import { go } from "../router.js";

/**
 * Columns: {key, label, about?, num?, wrap?, tools?, sort?: row => value, cell: row => node}.
 * The first column leads the card that a row becomes on a phone.
 */
export class Table {
  constructor({ columns, key, href, caption, empty, sort = null, onSort = null, limit = 60 }) {
    Object.assign(this, { columns, key, href, empty, sort, onSort, limit });
    this.rows = new Map();
    this.head = h("tr", {});
    this.body = h("tbody", {});
    this.none = h("div", { class: "empty", hidden: true });
    this.table = h("table", { class: "cards" }, h("caption", { class: "visually-hidden" }, caption), h("thead", {}, this.head), this.body);
    this.more = h("button", { class: "button small quiet", type: "button", onclick: () => { this.limit = Infinity; this.update(this.items); } });
    this.rest = h("div", { class: "table-more", hidden: true }, this.more);
    this.el = h("div", { class: "table-wrap" }, this.table, this.none, this.rest);
    this.body.addEventListener("click", (event) => this.#open(event));
    this.body.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && event.target.tagName === "TR") this.#open(event);
    });
    this.#drawHead();
  }

  update(items) {
    this.items = items;
    const sorted = this.#sorted(items).slice(0, this.limit);
    const seen = new Set();
    let before = null;
    for (const item of sorted) {
      const id = String(this.key(item));
      seen.add(id);
      const row = this.#row(id, item);
      const place = before ? before.nextSibling : this.body.firstChild;
      if (place !== row) this.body.insertBefore(row, place);
      before = row;
    }
    for (const [id, entry] of this.rows) {
      if (seen.has(id)) continue;
      entry.row.remove();
      this.rows.delete(id);
    }
    this.table.hidden = sorted.length === 0;
    this.none.hidden = sorted.length > 0;
    this.rest.hidden = sorted.length === items.length;
    this.more.textContent = `Show all ${items.length}`;
    if (!sorted.length) replace(this.none, typeof this.empty === "function" ? this.empty() : this.empty ?? "Nothing yet.");
    const first = this.body.querySelector("tr.current") ?? this.body.querySelector("tr");
    if (first) first.tabIndex = 0;
  }

  /** Move the current row; answers whether there was one to move to. */
  move(by) {
    const rows = [...this.body.children];
    if (!rows.length) return false;
    const at = rows.findIndex((row) => row.classList.contains("current") && row.contains(document.activeElement));
    const next = rows[at < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.max(0, Math.min(rows.length - 1, at + by))];
    for (const row of rows) {
      row.classList.toggle("current", row === next);
      row.tabIndex = row === next ? 0 : -1;
    }
    next.focus();
    next.scrollIntoView({ block: "nearest" });
    return true;
  }

  #row(id, item) {
    const text = JSON.stringify(item);
    const entry = this.rows.get(id) ?? { row: h("tr", { tabindex: "-1" }), text: null };
    this.rows.set(id, entry);
    // Ages change although the row does not, so cells with `live` are drawn every time.
    if (entry.text === text && !this.columns.some((c) => c.live)) return entry.row;
    const whole = entry.text !== text;
    entry.text = text;
    if (this.href) {
      const url = this.href(item);
      if (url) entry.row.dataset.href = url;
      else delete entry.row.dataset.href;
    }
    if (!whole) {
      this.columns.forEach((column, i) => column.live && replace(entry.row.children[i].firstChild, column.cell(item)));
      return entry.row;
    }
    const focused = entry.row.contains(document.activeElement) ? document.activeElement.dataset.action : null;
    replace(entry.row, this.columns.map((column, i) => {
      const content = column.cell(item);
      const classes = [column.num && "num", column.wrap && "wrap", column.tools && "tools", i === 0 && "lead-cell", content === null && "empty-cell"];
      return h("td", { class: classes.filter(Boolean).join(" "), "data-label": column.short ?? column.label }, h("div", { class: "cell" }, content));
    }));
    if (focused) entry.row.querySelector(`[data-action="${focused}"]`)?.focus();
    return entry.row;
  }

  #open(event) {
    if (event.target.closest("a, button, summary, input, select")) return;
    const url = event.target.closest("tr")?.dataset.href;
    if (url && !getSelection().toString()) go(url);
  }

  #sorted(items) {
    const column = this.sort && this.columns.find((c) => c.key === this.sort.key);
    if (!column?.sort) return items;
    const sign = this.sort.dir === "desc" ? -1 : 1;
    // What is not known goes last, whichever way the rest is sorted.
    return [...items].sort((a, b) => {
      const [x, y] = [column.sort(a), column.sort(b)];
      const [noX, noY] = [x === null || x === undefined, y === null || y === undefined];
      if (noX || noY) return noX - noY;
      return sign * (typeof x === "string" ? x.localeCompare(y) : x - y);
    });
  }

  #drawHead() {
    replace(this.head, this.columns.map((column) => {
      const mine = this.sort?.key === column.key;
      const label = h("span", {}, column.label);
      if (column.about) tip(label, column.about);
      const arrow = h("span", { class: "arrow", "aria-hidden": "true" }, mine ? (this.sort.dir === "desc" ? "↓" : "↑") : "");
      const inside = column.sort
        ? h("button", { type: "button", onclick: () => this.#sortBy(column) }, label, arrow)
        : label;
      return h("th", { scope: "col", class: column.num ? "num" : "", "aria-sort": mine ? (this.sort.dir === "desc" ? "descending" : "ascending") : null }, inside);
    }));
  }

  #sortBy(column) {
    const flip = this.sort?.key === column.key && this.sort.dir === (column.num ? "desc" : "asc");
    this.sort = { key: column.key, dir: flip === Boolean(column.num) ? "asc" : "desc" };
    this.#drawHead();
    this.update(this.items ?? []);
    this.onSort?.(this.sort);
    [...this.head.children][this.columns.indexOf(column)].querySelector("button")?.focus();
  }
}
