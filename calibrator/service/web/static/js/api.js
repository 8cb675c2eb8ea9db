// The REST API: bearer token, problem documents, pages by cursor, idempotent mutations.

import { observe } from "./clock.js";
import { askForToken, token } from "./session.js";

export class ApiError extends Error {
  constructor(status, problem) {
    super(problem?.detail || problem?.title || (status ? `the service answered ${status}` : "the service cannot be reached"));
    this.status = status;
    this.problem = problem;
  }
}

function randomKey() {
  // randomUUID exists on secure origins only; a service behind plain HTTP has the older call.
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (b) => b.toString(16).padStart(2, "0")).join("");
}

export function address(path, query = {}) {
  const pairs = new URLSearchParams();
  for (const [key, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null && one !== "") pairs.append(key, one);
    }
  }
  const text = pairs.toString();
  return `/v1${path}${text ? `?${text}` : ""}`;
}

/** Fetch with the token; on 401 ask for one and try again. */
export async function request(url, options = {}) {
  for (let attempt = 0; ; attempt += 1) {
    const used = token();
    const headers = { Accept: "application/json", ...options.headers, ...(used && { Authorization: `Bearer ${used}` }) };
    let response;
    try {
      response = await fetch(url, { cache: "no-store", ...options, headers });
    } catch (cause) {
      if (cause.name === "AbortError") throw cause;
      throw new ApiError(0, null);
    }
    observe(response.headers.get("Date"));
    if (response.status !== 401 || attempt > 8) return response;
    // Somebody else may have given one in the meantime.
    if (token() === used) await askForToken(Boolean(used));
  }
}

async function read(response) {
  const text = await response.text();
  let body = null;
  try {
    body = text ? JSON.parse(text) : null;
  } catch {
    body = null;
  }
  if (!response.ok) throw new ApiError(response.status, body);
  return body;
}

export async function get(path, query, signal) {
  return read(await request(address(path, query), { signal }));
}

/** All items of a list, up to `most`. */
export async function list(path, query = {}, most = 1000, signal) {
  const items = [];
  let cursor = null;
  do {
    const page = await get(path, { limit: Math.min(500, most), ...query, cursor }, signal);
    items.push(...page.items);
    cursor = page.next_cursor;
  } while (cursor && items.length < most);
  return items;
}

/** A mutation. Sent again after a lost answer, it is still done once. */
export async function send(method, path, body = {}) {
  const options = {
    method,
    body: JSON.stringify(body),
    headers: { "Content-Type": "application/json", "Idempotency-Key": randomKey() },
  };
  try {
    return await read(await request(address(path), options));
  } catch (cause) {
    if (!(cause instanceof ApiError) || cause.status !== 0) throw cause;
    return read(await request(address(path), options));
  }
}

/** Fetch a file with the token and hand it to the browser's downloads; answers what must be known about it. */
export async function download(path, query) {
  const response = await request(address(path, query));
  if (!response.ok) return read(response);
  const name = /filename="?([^";]+)"?/.exec(response.headers.get("Content-Disposition") ?? "")?.[1];
  const url = URL.createObjectURL(await response.blob());
  const anchor = document.createElement("a");
  anchor.href = url;
  anchor.download = name ?? "parameters.json";
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
  return response.headers.get("Export-Note");
}

export const deploymentPath = (name) => `/deployments/${encodeURIComponent(name)}`;
