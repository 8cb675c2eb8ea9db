// Apache ECharts, loaded when the first chart needs it, drawn in the theme of the moment.

import { h } from "../ui/dom.js";
import { tipTable } from "../ui/tip.js";
import { colors, onTheme } from "../theme.js";

let loading = null;

function library() {
  loading ??= new Promise((resolve, reject) => {
    const script = h("script", { src: "/static/vendor/echarts/echarts.min.js" });
    script.addEventListener("load", () => resolve(globalThis.echarts));
    script.addEventListener("error", () => reject(new Error("the chart library could not be loaded")));
    document.head.append(script);
  });
  return loading;
}

const merge = (base, extra) => {
  const out = { ...base };
  for (const [key, value] of Object.entries(extra ?? {})) {
    out[key] = value && base[key] && typeof value === "object" && !Array.isArray(value) ? merge(base[key], value) : value;
  }
  return out;
};

/** An axis in this theme; `extra` wins. */
export function axis(c, extra) {
  return merge({
    axisLine: { lineStyle: { color: c["line-strong"] } }, axisTick: { show: false },
    axisLabel: { color: c.soft, fontSize: 11.5, hideOverlap: true },
    splitLine: { lineStyle: { color: c.line } },
    nameTextStyle: { color: c.soft, fontSize: 11.5 }, nameGap: 8,
  }, extra);
}

export const valueAxis = (c, name, extra) => axis(c, merge({
  type: "value", name, nameLocation: "end", nameGap: 13, nameTextStyle: { align: "left", padding: [0, 0, 0, -34] }, axisLine: { show: false },
}, extra));

/** Time in UTC; labels never say what the browser's zone would make of it. */
export const timeAxis = (c, from, to) => axis(c, { type: "time", min: from, max: to, splitLine: { show: false }, axisLabel: { formatter: { second: "{HH}:{mm}:{ss}", minute: "{HH}:{mm}", hour: "{HH}:{mm}", day: "{d} {MMM}" } } });

/** A tooltip from rows: ECharts' own HTML would need inline styles, which the page's policy forbids. */
export function tooltip(c, build, extra) {
  return merge({
    trigger: "axis", confine: true, transitionDuration: 0, backgroundColor: c.raised, borderColor: c["line-strong"], borderWidth: 1, padding: [7, 11],
    textStyle: { color: c.ink, fontSize: 12.5 }, axisPointer: { lineStyle: { color: c["line-strong"] }, crossStyle: { color: c["line-strong"] } },
    formatter: (items) => {
      const made = build(Array.isArray(items) ? items : [items]);
      return made ? tipTable(made.title, made.rows) : "";
    },
  }, extra);
}

/**
 * A chart: `draw(build, label)` with build(colors) => ECharts option. Called again by itself when the
 * theme changes; sized with its element.
 */
export class Chart {
  constructor(height, onClick = null) {
    this.el = h("div", { class: "chart", role: "img", style: { height: `${height}px` } });
    this.onClick = onClick;
    this.build = null;
    this.offTheme = onTheme(() => this.#render());
    this.observer = new ResizeObserver(() => this.instance?.resize());
  }

  async draw(build, label) {
    this.build = build;
    if (label) this.el.setAttribute("aria-label", label);
    const echarts = await library();
    if (this.gone) return;
    if (!this.instance) {
      this.instance = echarts.init(this.el, null, { renderer: "canvas" });
      this.observer.observe(this.el);
      if (this.onClick) this.instance.on("click", this.onClick);
    }
    this.#render();
  }

  #render() {
    if (!this.instance || !this.build) return;
    const font = getComputedStyle(document.body).fontFamily;
    const option = this.build(colors());
    this.instance.setOption({ animation: false, useUTC: true, textStyle: { fontFamily: font }, ...option }, { notMerge: true });
    this.el.dataset.drawn = "true";
  }

  stop() {
    this.gone = true;
    this.offTheme();
    this.observer.disconnect();
    this.instance?.dispose();
  }
}

/** A legend of our own: marks that differ in shape as well as in colour. */
export { legend } from "./legend.js";
