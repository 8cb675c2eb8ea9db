"""How fast should the sample forget? The closed loop under a steady mix, and under code, chat, code.

Every refresh interval serves whole recorded requests under the asynchronous scheduler with the set in force,
explores, and offers the rows to the weighted sample (bottom-k by priority with forward decay, as collectors
keep it). The refresh is the full one: cross-fitted, gated, judged. With --forget an alarm of calibration
drift drops what came before the drift began. What is reported is judged with all labels of the traffic being
served. Half-lives and ages are in served rounds.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from calibrator.core.affine import fit_affine
from calibrator.core.candidate import ProposalOptions
from calibrator.core.drift import DriftRules, DriftSums, Watch
from calibrator.core.labels import at_risk, prefix_labels
from calibrator.core.parameter_set import ParameterSet
from calibrator.core.proposal import propose
from calibrator.core.report import mean_ece, mean_noise_floor, position_report
from calibrator.core.sample import inclusion_probability, keep_smallest, priority_key
from serving_adapter.contract import Rounds
from serving_adapter.engines.replay import Machine, load_recording
from serving_adapter.scheduler import Asynchronous

SLACK = 0.005
"""Half a point above the best attainable error counts as back."""

OPTIONS = ProposalOptions(form="affine", folds=3, resamples=60)


@dataclass
class Loop:
    """Serve, keep a sample, refresh: one deployment with one half-life."""

    served: Rounds
    half_life: float
    interval: int
    seed: int
    explore: float = 0.01
    sample_rows: int = 10_000
    forgets: bool = False
    batch: int = 64
    in_force: ParameterSet = field(init=False)
    published: int = 0

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.in_force = ParameterSet.identity(self.served.gamma)
        self.cost = Machine.with_knee(256).cost
        self.scheduler = Asynchronous()
        self.now = 0.0
        self.requests = 0
        self.kept: dict[str, np.ndarray] = {}
        self.threshold = np.inf
        self.watch = Watch.start(self.served.gamma)
        self.alarms = 0

    def serve(self, requests: list[np.ndarray]) -> None:
        """One interval: rows of ``requests`` (indices into the served rows) drawn with replacement."""
        parts, owners = [], []
        while sum(map(len, parts)) < self.interval:
            parts.append(requests[int(self.random.integers(len(requests)))])
            owners.append(np.full(len(parts[-1]), self.requests))
            self.requests += 1
        order = self.random.permutation(sum(map(len, parts)))[: self.interval]
        index, owner = np.concatenate(parts)[order], np.concatenate(owners)[order]
        a = self.in_force.survival(self.served.take(index))
        scheduled = np.concatenate(
            [
                self.scheduler.lengths(a[i : i + self.batch], self.cost)
                for i in range(0, len(index), self.batch)
            ]
        )
        verified = np.where(self.random.random(len(index)) < self.explore, self.served.gamma, scheduled)
        arrival = self.now + np.arange(1, len(index) + 1)
        self.now = float(arrival[-1])
        fresh = {
            "index": index,
            "request": owner,
            "scheduled": scheduled,
            "verified": verified,
            "arrival": arrival,
            "key": priority_key(self.random.random(len(index)), arrival, self.half_life),
        }
        if self.forgets:
            self.forget(fresh, a)
        pool = {n: np.concatenate([self.kept[n], v]) if self.kept else v for n, v in fresh.items()}
        chosen, threshold = keep_smallest(pool["key"], self.sample_rows)
        self.threshold = min(self.threshold, threshold)
        self.kept = {n: v[chosen] for n, v in pool.items()}

    def forget(self, fresh: dict[str, np.ndarray], predicted: np.ndarray) -> None:
        """Drop what came before a drift of calibration began, as soon as its alarm is raised."""
        rows = self.served.take(fresh["index"])
        rounds = Rounds.build(
            rows.logits,
            np.minimum(rows.accepted, fresh["verified"]),
            verified=fresh["verified"],
            draft_stop=rows.draft_stop,
        )
        looks = [slice(i, i + 100) for i in range(0, len(rounds), 100)]
        evidence = np.stack([DriftSums.fold(rounds.take(s), predicted[s]).evidence for s in looks])
        at = [float(fresh["arrival"][s][-1]) for s in looks]
        self.watch, events = self.watch.extend(evidence, at, DriftRules().log_threshold(rounds.gamma))
        starts = [event.since for event in events if event.kind == "start"]
        if starts and self.kept:
            self.alarms += 1
            recent = self.kept["arrival"] > max(starts)
            self.kept = {name: values[recent] for name, values in self.kept.items()}

    def refresh(self) -> None:
        kept = self.kept
        rows = self.served.take(kept["index"])
        rounds = Rounds.build(
            rows.logits,
            np.minimum(rows.accepted, kept["verified"]),
            verified=kept["verified"],
            scheduled=kept["scheduled"],
            request=kept["request"],
            explore=np.full(len(rows), self.explore),
            draft_stop=rows.draft_stop,
            sampling=rows.sampling,
        )
        age = self.now - kept["arrival"]
        inclusion = inclusion_probability(self.threshold, kept["arrival"], self.half_life)
        weights = 0.5 ** (age / self.half_life) / inclusion
        proposal = propose(rounds, self.in_force, OPTIONS, weights / weights.mean())
        if proposal.publish:
            self.in_force = proposal.parameters
            self.published += 1
            self.watch = Watch.start(self.served.gamma, self.now)  # a new set, a new question


def split(name: str, segment: str | None) -> tuple[Rounds, list[np.ndarray], Rounds]:
    """All rows, the requests of a segment as row indices, and its rows, which judge with all labels.

    The rows that judge are those that are served: the question is how fast a set of eight numbers follows
    the traffic, not how it does on prompts it has not seen (docs/statistics.md answers that).
    """
    rounds = load_recording(name).rounds
    names = np.array(rounds.segment_names())
    mine = np.ones(len(rounds), dtype=bool) if segment is None else names == segment
    serving = [np.flatnonzero(rounds.request == r) for r in np.unique(rounds.request[mine])]
    return rounds, serving, rounds.take(mine)


def error(parameters: ParameterSet, judge: Rounds) -> float:
    return float(mean_ece(position_report(parameters.survival(judge), judge, 15)) or 0.0)


def attainable(rounds: Rounds, serving: list[np.ndarray], judge: Rounds) -> tuple[float, float]:
    """Error of a fit to every served row of the segment with all labels, and the noise floor."""
    rows = rounds.take(np.concatenate(serving))
    fit = fit_affine(rows.logits, prefix_labels(rows), at_risk(rows))
    parameters = ParameterSet("affine", fit.temperatures, fit.offsets)
    report = position_report(parameters.survival(judge), judge, 15)
    return float(mean_ece(report) or 0.0), float(mean_noise_floor(report) or 0.0)


def steady(name: str, half_life: float, refreshes: int, interval: int, seed: int) -> dict[str, Any]:
    """Band of the parameters over refreshes, the first five left out."""
    rounds, serving, judge = split(name, None)
    loop = Loop(rounds, half_life, interval, seed)
    slopes, offsets, errors = [], [], []
    for _ in range(refreshes):
        loop.serve(serving)
        loop.refresh()
        slopes.append(1.0 / loop.in_force.temperatures[0])
        offsets.append(loop.in_force.offsets)
        errors.append(error(loop.in_force, judge))
    late = slice(5, None)
    return {
        "half_life": half_life,
        "published": loop.published,
        "temperature": [1.0 / max(slopes[late]), 1.0 / min(slopes[late])],
        "largest offset band": float(np.ptp(np.array(offsets)[late], axis=0).max()),
        "error": float(np.mean(errors[late])),
        "worst error": float(np.max(errors[late])),
        "attainable": attainable(rounds, serving, judge),
    }


def switching(
    name: str,
    phases: list[str],
    half_life: float,
    refreshes: int,
    interval: int,
    seed: int,
    forgets: bool = False,
) -> list[dict[str, Any]]:
    """Rounds until the error is back at what is attainable plus half a point, phase by phase."""
    loop: Loop | None = None
    results = []
    for phase in phases:
        rounds, serving, judge = split(name, phase)
        best, floor = attainable(rounds, serving, judge)
        loop = loop or Loop(rounds, half_life, interval, seed, forgets=forgets)
        target = max(best, floor) + SLACK
        errors = [error(loop.in_force, judge)]
        for _ in range(refreshes):
            loop.serve(serving)
            loop.refresh()
            errors.append(error(loop.in_force, judge))
        back = next((i for i, e in enumerate(errors) if e <= target), None)
        results.append(
            {
                "phase": phase,
                "target": target,
                "floor": floor,
                "at switch": errors[0],
                "rounds": None if back is None else back * interval,
                "mean error": float(np.mean(errors[1:])),
                "at end": errors[-1],
            }
        )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--recording", default="typical")
    parser.add_argument("--phases", default="code,chat,code")
    parser.add_argument("--half-lives", default="2000,8000,32000,128000", help="in rounds")
    parser.add_argument("--interval", type=int, default=2000, help="rounds between refreshes")
    parser.add_argument("--refreshes", type=int, default=50)
    parser.add_argument("--phase-refreshes", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--forget", action="store_true", help="drop older rows when drift raises an alarm")
    parser.add_argument("--only", default="steady,switching", help="which parts to run")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    options = parser.parse_args()
    parts = options.only.split(",")
    half_lives = [float(h) for h in options.half_lives.split(",")]
    phases = options.phases.split(",")
    bands = [
        steady(options.recording, h, options.refreshes, options.interval, 0)
        for h in half_lives
        if "steady" in parts
    ]
    switches = {
        h: [
            switching(
                options.recording, phases, h, options.phase_refreshes, options.interval, seed, options.forget
            )
            for seed in range(options.seeds)
        ]
        for h in half_lives
        if "switching" in parts
    }
    if options.json:
        json.dump({"benchmark": "recency", "steady": bands, "switching": switches}, sys.stdout)
        print()
        return
    print(f"steady mix, {options.refreshes} refreshes: published, temperature, offset band, error (worst)")
    for row in bands:
        low, high = row["temperature"]
        best, floor = row["attainable"]
        print(
            f"  half-life {row['half_life']:8.0f}: {row['published']:3d}  T {low:.2f} to {high:.2f}  "
            f"{row['largest offset band']:.2f}  {row['error']:.4f} ({row['worst error']:.4f}), "
            f"attainable {best:.4f}, floor {floor:.4f}"
        )
    print(f"{' -> '.join(phases)}: rounds until the error is back (per seed), error over the phase")
    for h, seeds in switches.items():
        for i, phase in enumerate(phases):
            rows = [seed[i] for seed in seeds]
            print(
                f"  half-life {h:8.0f} {phase:6}: {[r['rounds'] for r in rows]}  "
                f"mean {np.mean([r['mean error'] for r in rows]):.4f}, "
                f"at the switch {np.mean([r['at switch'] for r in rows]):.4f}, "
                f"at the end {np.mean([r['at end'] for r in rows]):.4f}, target {rows[0]['target']:.4f} "
                f"(floor {rows[0]['floor']:.4f})"
            )


if __name__ == "__main__":
    main()
