"""How fast should the sample forget? The closed loop under a steady mix, and under code, chat, code.

Every interval serves whole recorded requests under the asynchronous scheduler with the set in force,
explores, and offers the rows to the weighted sample; then a full refresh: cross-fitted, gated, judged
(:mod:`benchmarks.recency_loop`). What is reported is judged with all labels of the traffic being served.
Half-lives and ages are in served rounds.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.recency_loop import Loop, LoopOptions
from calibrator.core.affine import fit_affine
from calibrator.core.doubly_robust import doubly_robust
from calibrator.core.labels import at_risk, prefix_labels
from calibrator.core.parameter_set import ParameterSet
from calibrator.core.report import mean_ece, mean_noise_floor, position_report
from serving_adapter.contract import Rounds
from serving_adapter.engines.replay import load_recording

SLACK = 0.005
"""Half a point."""
BINS = 15
SETTLED = 5
"""Refreshes after which a steady loop is looked at."""


@dataclass(frozen=True, slots=True)
class Attainable:
    """What a set can reach on rows that it was fitted to with all labels.

    ``error`` is that of such a fit; ``rounds`` and ``requests`` are what a perfect predictor would read, if
    rounds were independent, and with requests as clusters.
    """

    error: float
    rounds: float
    requests: float

    @property
    def targets(self) -> dict[str, float]:
        """Errors that count as back, by name."""
        return {
            "floor of rounds": self.rounds + SLACK,
            "floor of requests": self.requests + SLACK,
            "attainable": max(self.error, self.rounds) + SLACK,
        }


@cache
def split(name: str, segment: str | None) -> tuple[Rounds, list[NDArray[Any]], Rounds]:
    """All rows, the requests of a segment as row indices, and its rows, which judge with all labels.

    The rows that judge are those that are served: the question is how fast a set of eight numbers follows
    the traffic, not how it does on prompts it has not seen (docs/statistics.md answers that).
    """
    rounds = load_recording(name).rounds
    names = np.array(rounds.segment_names())
    mine = np.ones(len(rounds), dtype=bool) if segment is None else names == segment
    serving = [np.flatnonzero(rounds.request == r) for r in np.unique(rounds.request[mine])]
    return rounds, serving, rounds.take(mine)


@cache
def attainable(name: str, segment: str | None) -> Attainable:
    """Fit every row of the segment with all labels."""
    judge = split(name, segment)[2]
    fit = fit_affine(judge.logits, prefix_labels(judge), at_risk(judge))
    survival = ParameterSet("affine", fit.temperatures, fit.offsets).survival(judge)
    report = position_report(survival, judge, BINS)
    floors = [table.noise_floor for table in doubly_robust(survival, judge, BINS)]
    return Attainable(
        float(mean_ece(report) or 0.0),
        float(mean_noise_floor(report) or 0.0),
        float(np.mean(floors)),
    )


def error(parameters: ParameterSet, judge: Rounds) -> float:
    """Mean ECE over positions, with all labels."""
    return float(mean_ece(position_report(parameters.survival(judge), judge, BINS)) or 0.0)


def steady(name: str, options: LoopOptions, refreshes: int, seed: int) -> dict[str, Any]:
    """Band of the parameters over refreshes under the mix of all segments, the first five left out."""
    rounds, serving, judge = split(name, None)
    loop = Loop(rounds, options, seed)
    parameters, errors, versions = [], [], []
    for _ in range(refreshes):
        loop.serve(serving)
        loop.refresh()
        parameters.append(_by_name(loop.in_force))
        errors.append(error(loop.in_force, judge))
        versions.append(loop.published)
    late = parameters[SETTLED:]
    names = [n for n in late[-1] if all(n in each for each in late)]
    bands = [np.ptp([each[n] for each in late], axis=0) for n in names]
    temperatures = [float(np.exp(each["pooled"][0])) for each in late]
    reached = attainable(name, None)
    return {
        "published": versions[-1],
        "published late": versions[-1] - versions[SETTLED - 1],
        "sets": len(late[-1]),
        "temperature": [min(temperatures), max(temperatures)],
        "largest temperature band": float(np.exp(max(b[0] for b in bands))),
        "largest offset band": float(max(b[1:].max() for b in bands)),
        "error": float(np.mean(errors[SETTLED:])),
        "worst error": float(np.max(errors[SETTLED:])),
        "explore": loop.explored[-1],
        "attainable": reached.error,
        "floors": [reached.rounds, reached.requests],
        "within": {t: float(np.mean(np.array(errors[SETTLED:]) <= v)) for t, v in reached.targets.items()},
    }


def switching(
    name: str, phases: Sequence[str], options: LoopOptions, refreshes: int, seed: int
) -> list[dict[str, Any]]:
    """Rounds until the error is back at each target, phase by phase, and for how much of its second half."""
    loop = Loop(split(name, None)[0], options, seed)
    results = []
    for phase in phases:
        _, serving, judge = split(name, phase)
        reached = attainable(name, phase)
        errors = [error(loop.in_force, judge)]
        for _ in range(refreshes):
            loop.serve(serving)
            loop.refresh()
            errors.append(error(loop.in_force, judge))
        end = np.array(errors[-(refreshes // 2) :])
        results.append(
            {
                "phase": phase,
                "targets": reached.targets,
                "attainable": reached.error,
                "at switch": errors[0],
                "back": {
                    target: next((i * options.interval for i, e in enumerate(errors) if e <= value), None)
                    for target, value in reached.targets.items()
                },
                "within": {target: float((end <= value).mean()) for target, value in reached.targets.items()},
                "mean error": float(np.mean(errors[1:])),
                "late error": float(end.mean()),
                "at end": errors[-1],
                "explore": loop.explored[-1],
                "errors": errors,
            }
        )
    return results


def _by_name(parameters: ParameterSet) -> dict[str, NDArray[np.float64]]:
    """Log temperature of position 1 and the offsets, of the pooled set and of those per segment."""
    sets = {"pooled": (parameters.temperatures[0], parameters.offsets)}
    sets |= {
        f"{e.segment}/{e.sampling}": (e.temperatures[0], np.array(e.offsets)) for e in parameters.entries
    }
    return {name: np.array([np.log(t), *offsets]) for name, (t, offsets) in sets.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--recording", default="typical")
    parser.add_argument("--phases", default="code,chat,code")
    parser.add_argument("--half-lives", default="2000,8000,32000,128000", help="in rounds")
    parser.add_argument("--interval", type=int, default=2000, help="rounds between refreshes")
    parser.add_argument("--refreshes", type=int, default=50)
    parser.add_argument("--phase-refreshes", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--explore", default="control", help="a probability, or control: as the service does")
    parser.add_argument("--soft", action="store_true", help="engines report acceptance probabilities")
    parser.add_argument("--forget", action="store_true", help="drop older rows when drift raises an alarm")
    parser.add_argument("--anew", action="store_true", help="every version begins the evidence of drift anew")
    parser.add_argument("--segments", action="store_true", help="rounds bear the name of their segment")
    parser.add_argument("--only", default="steady,switching", help="which parts to run")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    given = parser.parse_args()
    parts, phases = given.only.split(","), given.phases.split(",")
    half_lives = [float(h) for h in given.half_lives.split(",")]
    base = LoopOptions(
        interval=given.interval,
        explore=None if given.explore == "control" else float(given.explore),
        soft=given.soft,
        forget=given.forget,
        carry=not given.anew,
        segments=given.segments,
    )

    def runs(run: Callable[[LoopOptions, int], Any], part: str) -> dict[float, list[Any]]:
        return {
            h: [run(replace(base, half_life=h), seed) for seed in range(given.seeds)]
            for h in half_lives
            if part in parts
        }

    name = given.recording
    bands = runs(lambda o, seed: steady(name, o, given.refreshes, seed), "steady")
    switches = runs(lambda o, seed: switching(name, phases, o, given.phase_refreshes, seed), "switching")
    if given.json:
        json.dump({"benchmark": "recency", "steady": bands, "switching": switches}, sys.stdout)
        print()
        return
    print(f"{name}, steady mix, {given.refreshes} refreshes, per seed; after the fifth:")
    for h, rows in bands.items():
        print(f"  half-life {h:8.0f}: {_bands(rows)}")
    print(f"{' -> '.join(phases)}: rounds until the error is back, per seed")
    for h, seeds in switches.items():
        for i, phase in enumerate(phases):
            print(f"  half-life {h:8.0f} {phase:6}: {_returns([seed[i] for seed in seeds])}")


def _bands(rows: list[dict[str, Any]]) -> str:
    first = rows[0]
    return (
        f"published {[r['published'] for r in rows]}, late {[r['published late'] for r in rows]}, "
        f"T x{max(r['largest temperature band'] for r in rows):.2f}, "
        f"offsets {max(r['largest offset band'] for r in rows):.2f}, "
        f"error {np.mean([r['error'] for r in rows]):.4f} ({max(r['worst error'] for r in rows):.4f}), "
        f"attainable {first['attainable']:.4f}, floors {first['floors'][0]:.4f} {first['floors'][1]:.4f}, "
        f"sets {[r['sets'] for r in rows]}, explored {[round(r['explore'], 4) for r in rows]}"
    )


def _returns(rows: list[dict[str, Any]]) -> str:
    back = "; ".join(
        f"{target} {value:.4f}: {[r['back'][target] for r in rows]} "
        f"({np.mean([r['within'][target] for r in rows]):.0%} of the second half)"
        for target, value in rows[0]["targets"].items()
    )
    return (
        f"{back}; error {np.mean([r['mean error'] for r in rows]):.4f}, at the switch "
        f"{np.mean([r['at switch'] for r in rows]):.4f}, "
        f"second half {np.mean([r['late error'] for r in rows]):.4f}, "
        f"attainable {rows[0]['attainable']:.4f}, explored {[round(r['explore'], 4) for r in rows]}"
    )


if __name__ == "__main__":
    main()
