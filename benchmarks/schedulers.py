"""Tokens per second of scheduling policies on recorded traffic, at several loads and on two machines.

Every policy serves the same requests in the same order (the replay engine's traffic depends on the seed
alone), on a machine without noise, so differences are the policies'. Calibrated confidences are fitted
on full labels of other prompts than are served. Intervals are two standard errors over seeds of the
ratio to the reference, the asynchronous scheduler with raw confidences and the machine's true curve.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.figures import wants_table
from calibrator.core.affine import fit_affine
from calibrator.core.labels import at_risk, prefix_labels
from calibrator.core.temperature import fit_temperatures
from serving_adapter.engines.replay import (
    DriftScript,
    Machine,
    Recording,
    ReplayEngine,
    load_recording,
    split_requests,
)
from serving_adapter.parameters import Parameters
from serving_adapter.scheduler import (
    Asynchronous,
    EarlyStop,
    FixedLength,
    GlobalSearch,
    Scheduler,
    VerifyAll,
)
from serving_adapter.step_cost import StepCost

REFERENCE = "asynchronous, raw"
DESIGN = {  # tokens per second relative to the scheduler with raw confidences, at 4, 32 and 128 requests
    "verify all": (".97 to 1.00", ".76 to .80 (hard .36)", ".62"),
    "verify nothing": (".25 to .48", ".37 to .85", ".99 to 1.00"),
    "asynchronous, temperature": ("1.00", "1.00 to 1.01", "1.01"),
    "asynchronous, affine": ("1.00 to 1.02", "1.01 to 1.03 (hard 1.05)", "1.01"),
    "foresight": ("", "1.25 to 1.35", ""),
}


@dataclass
class FixedParameters:
    """An adapter that offers one set of parameters and keeps nothing."""

    parameters: Parameters
    gamma: int = 7

    def observe(self, logits: Any, accepted: Any, *, request: Any, **columns: Any) -> None: ...

    def segment(self, label: str) -> int:  # noqa: ARG002
        return 0

    def explore_each(self, request: Any, step: Any, probability: float | None = None) -> Any:  # noqa: ARG002
        return np.zeros(np.shape(request), dtype=np.bool_)

    def current(self) -> Parameters:
        return self.parameters

    def applied(self, version: int) -> None: ...

    def refused(self, version: int, reason: str) -> None: ...


class Foresight:
    """The best number of candidates for outcomes that are known: a bound, not a scheduler."""

    engine: ReplayEngine

    def lengths(self, survival: Any, cost: StepCost | None) -> Any:
        traffic = self.engine._traffic
        truth = traffic.rounds.accepted[traffic.rows()]
        known = (np.arange(survival.shape[1]) < truth[:, None]).astype(np.float64)
        assert cost is not None
        largest = truth.size * (1 + survival.shape[1])
        if largest > cost.measured_to:  # whoever knows outcomes may know the machine beyond its samples
            sizes = [*cost.batch_tokens, largest]
            cost = StepCost(sizes, [*cost.at_sizes, float(cost.seconds(largest))], cost.interpolation)
        return GlobalSearch().lengths(known, cost)


def fitted(recording: Recording, served: frozenset[int]) -> dict[str, Parameters]:
    """Raw, temperature-scaled and affine parameters from the requests that are not served."""
    rows = recording.rounds.take(
        ~np.isin(recording.rounds.request, np.array(sorted(served), dtype=np.uint64))
    )
    labels = prefix_labels(rows)
    affine = fit_affine(rows.logits, labels, at_risk(rows))
    gamma = recording.gamma

    def parameters(version: int, temperatures: Any, offsets: Any) -> Parameters:
        return Parameters(version, "affine", np.asarray(temperatures), np.asarray(offsets), 0.0, 1.0, None)

    return {
        "raw": Parameters.identity(gamma),
        "temperature": parameters(1, fit_temperatures(rows.logits, labels).temperatures, np.zeros(gamma)),
        "affine": parameters(2, affine.temperatures, affine.offsets),
    }


def policies(gamma: int) -> dict[str, tuple[Scheduler, str]]:
    """Fresh schedulers, and which confidences each is given."""
    return {
        "verify all": (VerifyAll(), "raw"),
        "verify nothing": (FixedLength(0), "raw"),
        **{f"fixed {k}": (FixedLength(k), "raw") for k in range(1, gamma)},
        "early stop, raw": (EarlyStop(), "raw"),
        "early stop, affine": (EarlyStop(), "affine"),
        REFERENCE: (Asynchronous(), "raw"),
        "asynchronous, temperature": (Asynchronous(), "temperature"),
        "asynchronous, affine": (Asynchronous(), "affine"),
        "foresight": (Foresight(), "raw"),
    }


def tokens_per_second(
    recording: Recording,
    machine: Machine,
    concurrency: int,
    scheduler: Scheduler,
    parameters: Parameters,
    rounds: int,
    seed: int,
) -> float:
    engine = ReplayEngine(
        FixedParameters(parameters, recording.gamma),
        recordings={recording.name: recording},
        script=DriftScript.steady(recording.name),
        concurrency=concurrency,
        scheduler=scheduler,
        machine=machine,
        seed=seed,
    )
    if isinstance(scheduler, Foresight):
        scheduler.engine = engine
    return engine.run(rounds=max(rounds, 30 * concurrency)).tokens_per_second


def measure(
    recording: Recording, machine: Machine, concurrency: int, rounds: int, seeds: int
) -> dict[str, dict[str, float]]:
    served = split_requests(recording, 0.5, seed=7)[0]
    parameters = fitted(recording, served)
    kept = recording.keep(served)
    speeds: dict[str, list[float]] = {}
    for seed in range(seeds):
        for name, (scheduler, confidences) in policies(recording.gamma).items():
            speed = tokens_per_second(
                kept, machine, concurrency, scheduler, parameters[confidences], rounds, seed
            )
            speeds.setdefault(name, []).append(speed)
    fixed = [name for name in speeds if name.startswith(("fixed", "verify"))]
    best = max(fixed, key=lambda name: float(np.mean(speeds[name])))
    for name in [name for name in speeds if name.startswith("fixed")]:
        if name != best:
            del speeds[name]
    speeds["best fixed length"] = speeds[best]
    if best.startswith("fixed"):
        del speeds[best]
    reference = np.array(speeds[REFERENCE])
    table = {}
    for name, values in speeds.items():
        ratio = np.array(values) / reference
        table[name] = {
            "tokens_per_second": float(np.mean(values)),
            "ratio": float(ratio.mean()),
            "interval": float(2 * ratio.std(ddof=1) / np.sqrt(len(ratio))) if len(ratio) > 1 else 0.0,
        }
    length = {"verify all": recording.gamma, "verify nothing": 0}.get(best)
    table["best fixed length"]["length"] = float(best.split()[1]) if length is None else length
    return table


def cell_text(cell: dict[str, float]) -> str:
    return f"{cell['tokens_per_second']:10.1f} ({cell['ratio']:.3f} ±{cell['interval']:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--recordings", default="typical,hard", help="names, separated by commas")
    parser.add_argument("--concurrency", default="1,4,32,128", help="requests, separated by commas")
    parser.add_argument("--rounds", type=int, default=2000, help="rounds served per policy and seed")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", nargs="?", const="-", help="one JSON object on standard output")
    options = parser.parse_args()
    loads = [int(load) for load in options.concurrency.split(",")]
    recorded = Machine.recorded()
    machines = {
        "measured CPU curve": Machine(recorded.cost, np.zeros(0)),
        "knee at 128 tokens": Machine.with_knee(128),
    }
    results: dict[str, Any] = {}
    for name in options.recordings.split(","):
        for kind, machine in machines.items():
            results.setdefault(name, {})[kind] = {
                str(load): measure(load_recording(name), machine, load, options.rounds, options.seeds)
                for load in loads
            }
    report = {"benchmark": "schedulers", "reference": REFERENCE, "design": DESIGN, "results": results}
    if not wants_table(report, options.json):
        return
    for name, kinds in results.items():
        for kind, by_load in kinds.items():
            print(f"\n{name}, {kind}: tokens per second (ratio to {REFERENCE}, two standard errors)")
            print(f"{'':28}" + "".join(f"{load + ' requests':>24}" for load in by_load))
            for policy in next(iter(by_load.values())):
                cells = [by_load[load][policy] for load in by_load]
                print(f"{policy:28}" + "".join(cell_text(cell) for cell in cells))
            lengths = [str(int(by_load[load]["best fixed length"]["length"])) for load in by_load]
            print(f"{'  (best length)':28}" + "".join(f"{length:>24}" for length in lengths))
    print("\ndesign, at 4, 32 and 128 requests:")
    for policy, ranges in DESIGN.items():
        print(f"{policy:28}" + "".join(f"{r:>28}" for r in ranges))


if __name__ == "__main__":
    main()
