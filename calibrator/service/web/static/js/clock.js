// The service's clock, not the browser's: ages must not depend on whose clock is wrong.

let ahead = 0;

/** Learn the time from an answer's Date header, which tells whole seconds. */
export function observe(date) {
  const t = Date.parse(date) / 1000;
  if (!Number.isFinite(t)) return;
  const seen = t + 0.5 - Date.now() / 1000;
  if (Math.abs(seen - ahead) > 1.5) ahead = Math.abs(seen) > 1.5 ? seen : 0;
}

/** Seconds since 1970, as the service counts them. */
export const now = () => Date.now() / 1000 + ahead;
