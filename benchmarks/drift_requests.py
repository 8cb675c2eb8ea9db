"""Drift alarms on whole recorded requests, whose rounds share their luck: how often they are false, how late.

Streams are those of ``drift_streams``: as long as the gap of a position is inside the tolerance, every alarm
is false. Tempering is estimated by each run from its own rounds, as the service does it. The z-tests and
river's ADWIN see the same streams; each z-test also comes with a variance over requests, which knows of the
dependence, and at the level at which as few calibrated runs have an alarm as with the e-process.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import numpy as np
from scipy.stats import beta

from benchmarks import drift
from benchmarks.drift_streams import Served, chunks, first_alarms, powers_of
from calibrator.core.drift import DriftRules


def interval(alarms: int, runs: int) -> tuple[float, float]:
    """Clopper-Pearson interval of a share, 95 %.

    >>> [round(end, 4) for end in interval(0, 2000)]
    [0.0, 0.0018]
    """
    low = beta.ppf(0.025, alarms, runs - alarms + 1) if alarms else 0.0
    high = beta.ppf(0.975, alarms + 1, runs - alarms) if alarms < runs else 1.0
    return float(low), float(high)


def recorded_alarms(
    name: str,
    runs: int,
    rounds: int,
    rules: DriftRules,
    concurrency: int,
    tempered: str = "service",
    calm: float | None = None,
    gap: float = 0.0,
    onset: int = 5000,
) -> dict[str, Any]:
    """Share of runs with an alarm per position, with its interval, and the median tempering at the end.

    ``calm`` is the gap that every position has from the start (None: that of the fit). From ``onset`` on
    predictions are ``gap`` higher: with none, every alarm is false.
    """
    served = Served.load(name, calm)
    bets = [(0, served.bets(served.predicted, rules)), (onset, served.bets(served.shifted(gap), rules))]
    residuals = served.labels - served.predicted
    found, last = [], []
    for size, random in chunks(runs, 0):
        rows, owner = served.streams(size, rounds, concurrency, random)
        powers = powers_of(served, residuals, rows, owner, tempered, random)
        found.append(first_alarms(bets, rows, powers, rules.log_threshold()))
        last.append(powers[-1][1])
    first = np.concatenate(found)
    alarms = (first >= 0).sum(axis=0)
    return {
        "recording": name,
        "concurrency": concurrency,
        "tempered": tempered,
        "runs": runs,
        "rounds": rounds,
        "gaps": served.gaps.tolist(),
        "powers": np.median(np.concatenate(last), axis=0).tolist(),
        "per position": (alarms / runs).tolist(),
        "interval": [interval(int(count), runs) for count in alarms],
        "delays": [drift.delay_figures(row, onset) for row in first.T] if gap else None,
    }


def compared(
    name: str,
    position: int,
    concurrency: int,
    runs: int,
    rounds: int,
    rules: DriftRules,
    horizons: dict[float, int],
    delay_runs: int,
    adwin_runs: int,
    onset: int = 5000,
) -> dict[str, Any]:
    """False alarms and delays of every detector at one position, on the same streams.

    From the onset on predictions are ``gap`` too high.
    """
    served = Served.load(name)
    k = position - 1
    one = Served(served.predicted[:, [k]], served.labels[:, [k]], served.starts, served.gaps[[k]])
    calm = one.bets(one.predicted, rules)
    residuals = one.labels - one.predicted
    alarms = 0
    adwin: list[int] = []
    highest: dict[str, list[np.ndarray]] = {}
    for size, random in chunks(runs, 1):
        rows, owner = one.streams(size, rounds, concurrency, random)
        a, y = one.predicted[rows, 0], one.labels[rows, 0] > 0
        powers = powers_of(one, residuals, rows, owner, "service", random)
        alarms += int((first_alarms([(0, calm)], rows, powers, rules.log_threshold()) >= 0).sum())
        for test, path in drift.z_tests(a, y, owner).items():
            highest.setdefault(test, []).append(path.max(axis=0))
        left = adwin_runs - len(adwin)
        adwin.extend(drift.first_alarm_adwin(a[:, :left], y[:, :left]).tolist() if left > 0 else [])
    share = max(alarms, 1) / runs
    levels = {test: float(np.quantile(np.concatenate(parts), 1.0 - share)) for test, parts in highest.items()}
    false = {"e-process": alarms / runs, "ADWIN": float((np.array(adwin) >= 0).mean()) if adwin else None}
    false |= {test: float((np.concatenate(parts) > 1.96).mean()) for test, parts in highest.items()}
    late = {}
    for gap, horizon in horizons.items():
        wrong = one.shifted(gap)
        firsts: dict[str, list[np.ndarray]] = {}
        for size, random in chunks(delay_runs, 2):
            rows, owner = one.streams(size, onset + horizon, concurrency, random)
            a, y = one.predicted[rows, 0], one.labels[rows, 0] > 0
            a[onset:] = wrong[rows[onset:], 0]
            powers = powers_of(one, residuals, rows, owner, "service", random)
            tables = [(0, calm), (onset, one.bets(wrong, rules))]
            found = {"e-process": first_alarms(tables, rows, powers, rules.log_threshold())[:, 0]}
            for test, path in drift.z_tests(a, y, owner).items():
                found[f"{test}, 5 % per look"] = drift.first_alarm_z(path, 1.96)
                found[f"{test}, matched"] = drift.first_alarm_z(path, levels[test])
            left = adwin_runs - sum(map(len, firsts.get("ADWIN", [])))
            if left > 0:
                found["ADWIN"] = drift.first_alarm_adwin(a[:, :left], y[:, :left])
            for detector, first in found.items():
                firsts.setdefault(detector, []).append(first)
        late[f"{gap:.0%}"] = {
            detector: drift.delay_figures(np.concatenate(parts), onset) for detector, parts in firsts.items()
        }
    return {
        "recording": name,
        "position": position,
        "runs": runs,
        "delay runs": delay_runs,
        "false": false,
        "levels": levels,
        "delay": late,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--recording", nargs="+", default=["typical", "hard"])
    parser.add_argument("--concurrency", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--position", nargs="*", type=int, default=[1], help="of the delays")
    parser.add_argument("--runs", type=int, default=2000, help="calibrated runs")
    parser.add_argument("--untempered-runs", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=50_000, help="rounds per calibrated run")
    parser.add_argument("--delay-runs", type=int, default=400)
    parser.add_argument("--adwin-runs", type=int, default=50, help="0: leave river out")
    parser.add_argument("--share", type=float, default=0.05, help="nominal share of false alarms per run")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    options = parser.parse_args()
    rules = DriftRules(false_alarm_rounds=options.rounds / options.share)
    cells: list[tuple[str, float | None, int]] = [
        ("none", None, options.untempered_runs),
        ("service", None, options.runs),
        ("service", rules.tolerance, options.runs),  # as wrong as it may be, on either side
        ("service", -rules.tolerance, options.runs),
    ]
    false = [
        recorded_alarms(name, runs, options.rounds, rules, concurrency, how, calm)
        for name in options.recording
        for concurrency in options.concurrency
        for how, calm, runs in cells
    ]
    horizons = {0.02: 60_000, 0.05: 40_000, 0.1: 20_000}
    late = [
        compared(
            name, position, max(options.concurrency), options.runs, options.rounds, rules, horizons,
            options.delay_runs, options.adwin_runs,
        )
        for name in options.recording
        for position in options.position
    ]  # fmt: skip
    if options.json:
        json.dump({"benchmark": "drift_requests", "results": {"false": false, "delay": late}}, sys.stdout)
        print()
        return
    print(f"calibrated: share of runs of {options.rounds} rounds with an alarm, per position")
    for row in false:
        shares = " ".join(f"{share:6.2%}" for share in row["per position"])
        print(
            f"  {row['recording']:8} {row['concurrency']:3} at a time, tempering {row['tempered']:8} "
            f"gap {max(row['gaps'], key=abs):6.4f}, {row['runs']} runs: {shares}"
        )
    print("rounds from the onset of a gap to the alarm: median (90 %), share before the onset, never")
    for each in late:
        print(f"  {each['recording']}, position {each['position']}; calibrated runs with an alarm:")
        for detector, share in each["false"].items():
            print(f"       {detector:58} {share}")
        for gap, rows in each["delay"].items():
            for detector, row in rows.items():
                print(
                    f"  {gap:>4} {detector:58} {row['median']} ({row['p90']})  "
                    f"{row['before']:.1%}  {row['missed']:.1%}"
                )


if __name__ == "__main__":
    main()
