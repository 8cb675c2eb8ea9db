// Server-sent events through fetch, because EventSource cannot send a bearer token; polling when they fail.

import { address, request } from "./api.js";

const SILENCE = 45_000; // the service sends a comment more often than that
const POLL = 5_000;
const REFRESH = 15_000; // windows fill even while no event comes
const FIRST_RETRY = 2_000;
const LAST_RETRY = 30_000;

const listeners = new Set();
const watchers = new Set();
let state = "connecting";
let heard = null;

export const connection = () => ({ state, heard });

/** Call with {type, data} for every event; type "tick" when it is time to look again. */
export function subscribe(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function onConnection(watcher) {
  watchers.add(watcher);
  watcher(state);
}

function become(next) {
  if (next === state) return;
  state = next;
  for (const watcher of watchers) watcher(state);
}

function emit(type, data = {}) {
  for (const listener of listeners) listener({ type, data });
}

/** Told by whoever fetched something, so that the indicator knows when the service last answered. */
export function answered(ok) {
  if (ok) heard = Date.now();
  if (state === "polling" && !ok) become("offline");
  if (state === "offline" && ok) become("polling");
}

function parse(block) {
  let type = "message";
  const data = [];
  for (const line of block.split(/\r\n|\r|\n/)) {
    if (line.startsWith("event:")) type = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
  }
  if (!data.length) return;
  try {
    emit(type, JSON.parse(data.join("\n")));
  } catch {
    // An event nobody can read is a hint lost; the next tick makes up for it.
  }
}

async function stream() {
  const abort = new AbortController();
  let silence = setTimeout(() => abort.abort(), SILENCE);
  try {
    const response = await request(address("/events"), { signal: abort.signal, headers: { Accept: "text/event-stream" } });
    if (!response.ok || !response.body) return false;
    become("live");
    heard = Date.now();
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return true;
      clearTimeout(silence);
      silence = setTimeout(() => abort.abort(), SILENCE);
      heard = Date.now();
      const blocks = (rest + value).split(/\r\n\r\n|\n\n|\r\r/);
      rest = blocks.pop();
      for (const block of blocks) parse(block);
    }
  } catch {
    return false;
  } finally {
    clearTimeout(silence);
  }
}

async function keepStreaming() {
  let wait = FIRST_RETRY;
  for (;;) {
    const before = performance.now();
    await stream();
    if (performance.now() - before > LAST_RETRY) wait = FIRST_RETRY;
    if (state !== "offline") become("polling");
    emit("tick");
    await new Promise((done) => setTimeout(done, wait));
    wait = Math.min(LAST_RETRY, wait * 1.7);
  }
}

export function start() {
  keepStreaming();
  let last = 0;
  setInterval(() => {
    if (document.hidden || Date.now() - last < (state === "live" ? REFRESH : POLL)) return;
    last = Date.now();
    emit("tick");
  }, 1000);
  document.addEventListener("visibilitychange", () => document.hidden || emit("tick"));
}
