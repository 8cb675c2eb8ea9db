"""Drift alarms: how often they are false, and how many rounds they take, against two common detectors.

Streams are residuals of one draft position: predictions as they are served on recorded traffic (affine form),
labels drawn from them (calibrated), or from them less a gap that sets in after a while. Every detector sees
the same streams. The e-process is watched at every round; the z-test (mean residual since the start, or over
a window) looks every 500 rounds, at 5 % per look as people do, and at the level that makes its share of false
alarms that of the e-process; river's ADWIN looks every 32 rounds, as it comes.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import numpy as np

from calibrator.core.affine import fit_affine
from calibrator.core.drift import DriftRules, Watch
from calibrator.core.drift.sums import bet_index, bet_table
from calibrator.core.labels import at_risk, prefix_labels
from serving_adapter.contract import conditional_confidence, prefix_survival
from serving_adapter.engines.replay import load_recording

BLOCK = 250
LOOK = 500
WINDOW = 2000
LEAST_REQUESTS = 30
"""Requests from which the z-test with a variance over requests looks."""


def predictions(name: str, position: int) -> np.ndarray:
    """Predicted survival at one position over a recording, by an affine fit to it."""
    return survival(name)[:, position - 1]


def survival(name: str) -> np.ndarray:
    rounds = load_recording(name).rounds
    fit = fit_affine(rounds.logits, prefix_labels(rounds), at_risk(rounds))
    return prefix_survival(conditional_confidence(rounds.logits, fit.temperatures, fit.offsets))


def streams(
    source: np.ndarray, runs: int, rounds: int, gap: float, onset: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Predictions and labels, shape ``[rounds, runs]``; labels lie ``gap`` below from ``onset`` on."""
    random = np.random.default_rng(seed)
    a = random.choice(source, size=(rounds, runs)).astype(np.float32)
    shift = np.where(np.arange(rounds) >= onset, gap, 0.0)[:, None]
    return a, random.random((rounds, runs), dtype=np.float32) < a - shift


def first_alarm_e(a: np.ndarray, y: np.ndarray, rules: DriftRules, watch: Watch | None = None) -> np.ndarray:
    """Round of the first alarm per run, watched at every round; -1 without one."""
    table = bet_table(rules.tolerance)
    rounds, runs = a.shape
    watch = watch or Watch.start(runs)
    first = np.full(runs, -1)
    for start in range(0, rounds, BLOCK):
        part = slice(start, start + BLOCK)
        evidence = table[bet_index(a[part], y[part])]
        at = np.arange(start, start + len(evidence))
        watch, events = watch.extend(evidence, at, rules.log_threshold())
        for event in events:
            if event.kind == "start" and first[event.stream] < 0:
                first[event.stream] = int(event.at)
    return first


def z_paths(a: np.ndarray, y: np.ndarray, window: int | None) -> np.ndarray:
    """|z| of the mean residual at every look, shape ``[looks, runs]``."""
    sums = np.cumsum(y - a, axis=0, dtype=np.float64)[LOOK - 1 :: LOOK]
    variances = np.cumsum(a * (1.0 - a), axis=0, dtype=np.float64)[LOOK - 1 :: LOOK]
    if window is not None:
        back = window // LOOK
        sums[back:] = sums[back:] - sums[:-back]
        variances[back:] = variances[back:] - variances[:-back]
    return np.abs(sums) / np.sqrt(variances)


def clustered_z(residuals: np.ndarray, owner: np.ndarray, window: int | None) -> np.ndarray:
    """|z| of the mean residual at every look with a variance over requests, shape ``[looks, runs]``.

    The variance of the sum is that of what each request adds to it beyond its rounds' share of the mean.
    """
    rounds, runs = residuals.shape
    looks = rounds // LOOK
    z = np.zeros((looks, runs))
    block = np.repeat(np.arange(looks), LOOK)
    for run in range(runs):
        mine = owner[: len(block), run]
        requests = int(mine.max()) + 1
        cell = block * requests + mine
        sums, counts = (
            np.cumsum(np.bincount(cell, weights, looks * requests).reshape(looks, requests), axis=0)
            for weights in (residuals[: len(block), run], None)
        )
        if window is not None:
            back = window // LOOK
            sums[back:] = sums[back:] - sums[:-back]
            counts[back:] = counts[back:] - counts[:-back]
        total = sums.sum(axis=1)
        beyond = sums - counts * (total / counts.sum(axis=1))[:, None]
        seen = np.count_nonzero(counts, axis=1)
        variance = (beyond**2).sum(axis=1) * seen / np.maximum(seen - 1, 1)
        z[:, run] = np.where(seen >= LEAST_REQUESTS, np.abs(total) / np.sqrt(np.maximum(variance, 1e-9)), 0.0)
    return z


def z_tests(a: np.ndarray, y: np.ndarray, owner: np.ndarray) -> dict[str, np.ndarray]:
    """|z| at every look of each repeated test."""
    residuals = y - a
    paths = {}
    for name, window in (("since start", None), ("window", WINDOW)):
        paths[f"z-test {name}"] = z_paths(a, y, window)
        paths[f"z-test {name}, variance over requests"] = clustered_z(residuals, owner, window)
    return paths


def first_alarm_z(paths: np.ndarray, threshold: float) -> np.ndarray:
    over = paths > threshold
    return np.where(over.any(axis=0), (np.argmax(over, axis=0) + 1) * LOOK - 1, -1)


def first_alarm_adwin(a: np.ndarray, y: np.ndarray, delta: float = 0.002) -> np.ndarray:
    from river.drift import ADWIN

    first = np.full(a.shape[1], -1)
    for run in range(a.shape[1]):
        detector = ADWIN(delta=delta)
        for i, x in enumerate((y[:, run] - a[:, run]).tolist()):
            detector.update(x)
            if detector.drift_detected:
                first[run] = i
                break
    return first


def false_alarms(
    source: np.ndarray, runs: int, rounds: int, rules: DriftRules, adwin_runs: int
) -> dict[str, Any]:
    """Share of calibrated runs with an alarm, and the z-levels that would match the e-process."""
    alarms = {"e-process": 0}
    z: dict[str, list[np.ndarray]] = {"since start": [], "window": []}
    block = max(1, min(runs, 20_000_000 // rounds))
    done = 0
    for seed in range(-(-runs // block)):
        count = min(block, runs - done)
        done += count
        a, y = streams(source, count, rounds, 0.0, rounds, seed)
        alarms["e-process"] += int((first_alarm_e(a, y, rules) >= 0).sum())
        z["since start"].append(z_paths(a, y, None).max(axis=0))
        z["window"].append(z_paths(a, y, WINDOW).max(axis=0))
    result: dict[str, Any] = {
        "runs": runs,
        "rounds": rounds,
        "nominal": rounds / rules.false_alarm_rounds,
        "e-process": alarms["e-process"] / runs,
    }
    matching = {}
    for name, parts in z.items():
        highest = np.concatenate(parts)
        result[f"z-test {name}, 5 % per look"] = float((highest > 1.96).mean())
        share = max(alarms["e-process"] / runs, 1.0 / runs)
        matching[name] = float(np.quantile(highest, 1.0 - share))
    result["matching z"] = matching
    if adwin_runs:
        a, y = streams(source, adwin_runs, rounds, 0.0, rounds, 999)
        result["ADWIN"] = float((first_alarm_adwin(a, y) >= 0).mean())
    return result


def delays(
    source: np.ndarray,
    gap: float,
    runs: int,
    onset: int,
    horizon: int,
    rules: DriftRules,
    matching: dict[str, float],
    adwin_runs: int,
) -> dict[str, Any]:
    """Rounds from onset to alarm: median, 90 % quantile, share before the onset and share that never came."""
    a, y = streams(source, runs, onset + horizon, gap, onset, 77)
    detectors = {
        "e-process": first_alarm_e(a, y, rules),
        "z-test since start, matched": first_alarm_z(z_paths(a, y, None), matching["since start"]),
        "z-test window, matched": first_alarm_z(z_paths(a, y, WINDOW), matching["window"]),
        "z-test window, 5 % per look": first_alarm_z(z_paths(a, y, WINDOW), 1.96),
    }
    if adwin_runs:
        detectors["ADWIN"] = first_alarm_adwin(a[:, :adwin_runs], y[:, :adwin_runs])
    return {name: delay_figures(first, onset) for name, first in detectors.items()}


def delay_figures(first: np.ndarray, onset: int) -> dict[str, float | None]:
    """Median and 90 % quantile from the onset, share before it, and share that never came."""
    early, never = (first >= 0) & (first < onset), first < 0
    after = np.where(never, np.inf, first - onset)[~early]
    return {
        "median": _finite(np.quantile(after, 0.5, method="lower")) if len(after) else None,
        "p90": _finite(np.quantile(after, 0.9, method="lower")) if len(after) else None,
        "before": float(early.mean()),
        "missed": float(never.mean()),
    }


def stored_form(
    runs: int, rounds: int, looks: int, rules: DriftRules, source: np.ndarray
) -> dict[str, float]:
    """Alarms when totals are read only now and then: the stored form of the same process."""
    a, y = streams(source, runs, rounds, 0.05, 5000, 5)
    table = bet_table(rules.tolerance)
    every = rounds // looks
    evidence = np.stack(
        [table[bet_index(a[i : i + every], y[i : i + every])].sum(axis=0) for i in range(0, rounds, every)]
    )
    _, events = Watch.start(runs).extend(
        evidence, np.arange(1, len(evidence) + 1) * every, rules.log_threshold()
    )
    first = {e.stream: e.at for e in reversed(events) if e.kind == "start"}
    return {"every": every, "median delay": float(np.median([at - 5000 for at in first.values()]))}


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--recording", default="typical")
    parser.add_argument("--position", type=int, default=1)
    parser.add_argument("--runs", type=int, default=2000, help="calibrated runs")
    parser.add_argument("--rounds", type=int, default=50_000, help="rounds per calibrated run")
    parser.add_argument("--delay-runs", type=int, default=400)
    parser.add_argument("--adwin-runs", type=int, default=50, help="0: leave river out")
    parser.add_argument("--tolerance", type=float, default=0.01)
    parser.add_argument("--share", type=float, default=0.05, help="nominal share of false alarms per run")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    options = parser.parse_args()
    rules = DriftRules(tolerance=options.tolerance, false_alarm_rounds=options.rounds / options.share)
    source = predictions(options.recording, options.position)
    false = false_alarms(source, options.runs, options.rounds, rules, options.adwin_runs)
    horizons = {0.02: 60_000, 0.05: 20_000, 0.1: 10_000}
    late = {
        f"{gap:.0%}": delays(
            source, gap, options.delay_runs, 5000, horizon, rules, false["matching z"], options.adwin_runs
        )
        for gap, horizon in horizons.items()
    }
    stored = stored_form(200, 25_000, 250, rules, source)
    results = {"false": false, "delay": late, "stored": stored}
    if options.json:
        json.dump({"benchmark": "drift", "tolerance": options.tolerance, "results": results}, sys.stdout)
        print()
        return
    print(f"calibrated: share of runs of {options.rounds} rounds with an alarm (nominal {options.share:.0%})")
    for name, value in false.items():
        if isinstance(value, float) and name != "nominal":
            print(f"  {name:32} {value:8.2%}")
    print("rounds from the onset of a gap to the alarm: median (90 %), share before the onset, never")
    for gap, rows in late.items():
        for name, row in rows.items():
            print(
                f"  {gap:>4} {name:32} {row['median']} ({row['p90']})  "
                f"{row['before']:.1%}  {row['missed']:.1%}"
            )
    print(f"totals read every {stored['every']} rounds, gap 5 %: median delay {stored['median delay']:.0f}")


if __name__ == "__main__":
    main()
