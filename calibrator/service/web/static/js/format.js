// Numbers and times as people read them. Nothing here ever returns NaN: what is undefined is a dash.

export const DASH = "–";

const known = (x) => typeof x === "number" && Number.isFinite(x);
const groups = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 0 });

/** A calibration error or a gap: four decimals, as everywhere in this product. */
export const error = (x) => (known(x) ? x.toFixed(4) : DASH);

export const fixed = (x, digits = 3) => (known(x) ? x.toFixed(digits) : DASH);

export const signed = (x, digits = 4) => (known(x) ? (x > 0 ? "+" : x < 0 ? "−" : "") + Math.abs(x).toFixed(digits) : DASH);

/** 0.0312 -> "+3.1 %"; changes are signed, shares are not. */
export const change = (x, digits = 1) => (known(x) ? `${signed(x * 100, digits)} %` : DASH);

export const share = (x, digits = 1) => (known(x) ? `${(x * 100).toFixed(digits)} %` : DASH);

/** A count, or an effective count, in groups of three. */
export const count = (x) => (known(x) ? groups.format(Math.round(x)).replaceAll(",", "\u202f") : DASH);

/** Three significant digits, grouped above a thousand. */
export function figure(x) {
  if (!known(x)) return DASH;
  const size = Math.abs(x);
  if (size >= 1000) return count(x);
  if (size === 0) return "0";
  return x.toFixed(Math.min(6, Math.max(0, 2 - Math.floor(Math.log10(size)))));
}

/** Seconds of a step or per token, in the unit that reads best. */
export function duration(x) {
  if (!known(x)) return DASH;
  const size = Math.abs(x);
  if (size === 0) return "0 s";
  if (size < 1e-3) return `${figure(x * 1e6)} µs`;
  if (size < 1) return `${figure(x * 1e3)} ms`;
  if (size < 100) return `${figure(x)} s`;
  if (size < 7200) return `${Math.round(x / 60)} min`;
  if (size < 172800) return `${Math.round(x / 3600)} h`;
  return `${Math.round(x / 86400)} d`;
}

export const interval = (low, high, show = error) => (known(low) && known(high) ? `[${show(low)}, ${show(high)}]` : "");

export const seconds = (text) => (text ? Date.parse(text) / 1000 : null);

const two = (n) => String(n).padStart(2, "0");

/** "22:34:49" of the same day, "28 Nov 22:34" of another; always UTC. */
export function time(at, now = Date.now() / 1000) {
  const t = typeof at === "string" ? seconds(at) : at;
  if (!known(t)) return DASH;
  const d = new Date(t * 1000);
  const clock = `${two(d.getUTCHours())}:${two(d.getUTCMinutes())}`;
  if (Math.floor(t / 86400) === Math.floor(now / 86400)) return `${clock}:${two(d.getUTCSeconds())}`;
  return `${d.getUTCDate()} ${d.toLocaleString("en-GB", { month: "short", timeZone: "UTC" })} ${clock}`;
}

export const fullTime = (at) => (at ? `${String(at).replace("T", " ").replace(/(\.\d+)?(Z|\+00:00)$/, "")} UTC` : DASH);

/** "3 s ago", "in 2 min". */
export function ago(at, now) {
  const t = typeof at === "string" ? seconds(at) : at;
  if (!known(t)) return DASH;
  const age = now - t;
  if (Math.abs(age) < 1) return "now";
  const size = Math.abs(age) < 100 ? `${Math.round(Math.abs(age))} s` : duration(Math.abs(age));
  return age > 0 ? `${size} ago` : `in ${size}`;
}

/** Age of something that has happened: clocks that differ by a second make no future of it. */
export const since = (at, now) => ago(at ? Math.min(typeof at === "string" ? seconds(at) : at, now) : null, now);

/** A bucket of whole numbers in words: "16 to 63 requests". */
export const requestRange = (from, to) => (to > from ? `${from} to ${to} requests` : `${from} ${from === 1 ? "request" : "requests"}`);

/** Loads of step times by regime: each four times the one before. */
export const loadRegime = (from) => requestRange(from, Math.max(1, from) * 4 - 1);

/** What a schedule says, in words. */
export function schedule(plan) {
  if (!plan) return DASH;
  if (plan.cron) return plan.cron;
  return plan.interval_seconds ? `every ${span(plan.interval_seconds)}` : DASH;
}

/** A length of time that somebody chose: "5 min", "90 s", "2 h". */
export function span(x) {
  if (!known(x)) return DASH;
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (x >= size && x % size === 0) return `${x / size} ${unit}`;
  }
  return `${Number(x.toPrecision(3))} s`;
}

export const isNumber = known;
