"""Does the closed loop pay at every load? Tokens per second of the replay engine, 1 to 256 requests.

    python -m benchmarks.closed_loop [--json] [--steps 200] [--seeds 5] [--telemetry 1500]

One deployment of replicas at different loads. The curve comes from a profile and the telemetry of all of
them (``--telemetry`` steps each between two refreshes: a minute or two of serving), the calibration from
what their schedulers let through; then every policy serves the same traffic. An entry is the mean over
seeds. The rival at each load is the fixed policy that was best on other seeds: the best on the same ones
would owe part of its lead to luck. The interval is that of the paired ratio, by Student's t. Exploration has
a price that is known beforehand, about ``EXPLORATION_BUDGET`` of the step time: BELOW marks loads where the
loop, exploring, lies under its rival less that budget by more than the interval. The last column is the loop
without exploration, and BELOW behind it is against the rival itself.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from benchmarks.figures import wants_table
from calibrator.cli.profile import ReplayTimer
from calibrator.core.candidate import ProposalOptions
from calibrator.core.cost import CostCells, fit_curve
from calibrator.core.parameter_set import ParameterSet
from calibrator.core.proposal import propose
from serving_adapter.contract import CostCurve, Rounds, Steps
from serving_adapter.engines.replay.cost import Machine, measured_curve
from serving_adapter.engines.replay.drift import DriftScript
from serving_adapter.engines.replay.engine import ReplayEngine
from serving_adapter.engines.replay.records import Recording, load_recording, split_requests
from serving_adapter.exploration import exploration_seed, explores_each
from serving_adapter.parameters import Parameters
from serving_adapter.profiling import profile, unseen_sizes
from serving_adapter.scheduler import Asynchronous, FixedLength, Scheduler, VerifyAll
from serving_adapter.step_cost import StepCost

LOADS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
LARGEST = 256 * 8
Float = NDArray[np.float64]
RECORDINGS = ("typical", "hard")
EXPLORE = 0.01
EXPLORATION_BUDGET = 0.002
OTHER_SEEDS = 1000


class Face:
    """The adapter's face for an engine in this process: parameters in, rows out into a list."""

    def __init__(self, parameters: Parameters) -> None:
        self.gamma = parameters.gamma
        self._parameters = parameters
        self._seed = exploration_seed("bench", "")
        self.steps: list[tuple[int, int, float]] = []

    def observe(self, *_arrays: Any, **columns: Any) -> None:
        self.steps.append((columns["requests"], columns["batch_tokens"], columns["step_seconds"]))

    def segment(self, _label: str) -> int:
        return 0

    def explore_each(self, request: Any, step: Any, probability: float | None = None) -> Any:
        wanted = self._parameters.explore if probability is None else probability
        return explores_each(self._seed, request, step, wanted)

    def current(self) -> Parameters:
        return self._parameters

    def applied(self, _version: int) -> None:
        return

    def refused(self, version: int, reason: str) -> None:
        raise RuntimeError(f"version {version}: {reason}")


def machine() -> Machine:
    """The recorded machine, continued to the largest batch at its last marginal cost."""
    curve = measured_curve()
    cost = StepCost.from_curve(curve)
    assert cost is not None
    sizes = [*curve.batch_tokens, LARGEST]
    seconds = [*curve.seconds, float(cost.seconds(LARGEST))]
    return Machine(StepCost(sizes, seconds), Machine.recorded().noise)


def profiled() -> CostCells:
    """What a profile within a budget says of that machine."""
    timer = ReplayTimer()
    timer._machine = machine()
    measured = profile(timer, unseen_sizes(LARGEST), budget_seconds=60.0, repeats=15)
    return CostCells.fold(measured.steps, epoch=0)


def curve_of(cells: CostCells) -> CostCurve:
    fit = fit_curve(cells)
    curve = fit.to_contract()
    assert curve is not None
    assert fit.publishable, fit.reasons
    return curve


def serve(
    recording: Recording, load: int, scheduler: Scheduler, parameters: Parameters, steps: int, seed: int
) -> tuple[float, Rounds, Steps]:
    """Tokens per second after a short start, the rounds and the steps."""
    face = Face(parameters)
    engine = ReplayEngine(
        face, recordings={recording.name: recording}, script=DriftScript.steady(recording.name),
        concurrency=load, scheduler=scheduler, machine=machine(), boot_cost=None, seed=seed,
        exploration_budget=EXPLORATION_BUDGET,
    )  # fmt: skip
    rows = [engine.step().rounds for _ in range(10)]
    tokens, seconds = engine.ledger.tokens, engine.ledger.seconds
    rows += [engine.step().rounds for _ in range(steps)]
    rate = (engine.ledger.tokens - tokens) / (engine.ledger.seconds - seconds)
    requests, batch_tokens, step_seconds = (list(c) for c in zip(*face.steps, strict=True))
    telemetry = Steps.build(step_seconds=step_seconds, batch_tokens=batch_tokens, requests=requests)
    return rate, Rounds.concatenate(rows), telemetry


def calibrated(recording: Recording, steps: int, refreshes: int = 2) -> Parameters:
    """Refreshes of the loop on what replicas at all loads let through and took."""
    cells = profiled()
    chosen, version = ParameterSet.identity(recording.gamma), 0
    for refresh in range(refreshes):
        version += 1
        used = Parameters(
            version, chosen.form, chosen.temperatures, chosen.offsets, EXPLORE, 1.0, curve_of(cells)
        )
        rows = []
        for load in LOADS:
            _, rounds, telemetry = serve(recording, load, Asynchronous(), used, steps, 100 * refresh + load)
            cells = cells + CostCells.fold(telemetry, epoch=0)
            rows.append(rounds)
        proposal = propose(Rounds.concatenate(rows), chosen, ProposalOptions())
        chosen = proposal.parameters if proposal.publish else chosen
    return Parameters(
        version + 1, chosen.form, chosen.temperatures, chosen.offsets, EXPLORE, 1.0, curve_of(cells)
    )


def sweep(name: str, steps: int, seeds: int, telemetry: int) -> list[dict[str, Any]]:
    recording = load_recording(name)
    served, held_out = split_requests(recording, 0.5)
    parameters = calibrated(recording.keep(served), telemetry)
    unexploring = replace(parameters, explore=0.0)
    blind = Parameters.identity(recording.gamma)
    traffic = recording.keep(held_out)
    fixed: dict[str, Scheduler] = {
        "verify all": VerifyAll(),
        **{f"fixed {k}": FixedLength(k) for k in range(recording.gamma)},
    }
    half_width = float(student.ppf(0.975, seeds - 1)) / np.sqrt(seeds)
    table = []
    for load in LOADS:

        def rates(scheduler: Scheduler, used: Parameters, first: int = 0, load: int = load) -> Float:
            return np.array(
                [serve(traffic, load, scheduler, used, steps, first + seed)[0] for seed in range(seeds)]
            )

        elsewhere = {name: float(rates(s, blind, OTHER_SEEDS).mean()) for name, s in fixed.items()}
        best = max(elsewhere, key=lambda name: elsewhere[name])
        here = {name: rates(policy, blind) for name, policy in fixed.items()}
        loop, silent = rates(Asynchronous(), parameters), rates(Asynchronous(), unexploring)
        ratio, without = loop / here[best], silent / here[best]
        half, half_silent = (half_width * each.std(ddof=1) for each in (ratio, without))
        table.append(
            {
                "load": load,
                "verify_all": float(here["verify all"].mean()),
                "verify_none": float(here["fixed 0"].mean()),
                "best_fixed": float(here[best].mean()),
                "best_fixed_policy": best,
                "fixed": {name: float(rate.mean()) for name, rate in here.items()},
                "closed_loop": float(loop.mean()),
                "closed_loop_without_exploration": float(silent.mean()),
                "against_best": float(ratio.mean()),
                "interval": [float(ratio.mean() - half), float(ratio.mean() + half)],
                "without_exploration": float(without.mean()),
                "without_exploration_interval": [
                    float(without.mean() - half_silent),
                    float(without.mean() + half_silent),
                ],
                "below_beyond_interval": bool(ratio.mean() + half < 1.0 - EXPLORATION_BUDGET),
                "below_without_exploration": bool(without.mean() + half_silent < 1.0),
            }
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", nargs="?", const="-")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--telemetry", type=int, default=1500)
    options = parser.parse_args()
    results = {name: sweep(name, options.steps, options.seeds, options.telemetry) for name in RECORDINGS}
    if not wants_table(
        {
            "benchmark": "closed_loop",
            "explore": EXPLORE,
            "exploration_budget": EXPLORATION_BUDGET,
            "results": results,
        },
        options.json,
    ):
        return
    for name, table in results.items():
        names = list(table[0]["fixed"])
        print(f"{name} rows, tokens per second")
        print("  load" + "".join(f"{each:>12}" for each in names) + "  closed loop  best fixed")
        for row in table:
            rates = "".join(f"{row['fixed'][each]:12.1f}" for each in names)
            print(f"  {row['load']:4}{rates}  {row['closed_loop']:11.1f}  {row['best_fixed_policy']}")
        print("  load  against the best fixed              without exploration")
        for row in table:
            low, high = row["interval"]
            silent_low, silent_high = row["without_exploration_interval"]
            print(
                f"  {row['load']:4}  {row['against_best']:.3f} [{low:.3f}, {high:.3f}]"
                f"{'  BELOW' if row['below_beyond_interval'] else '       '}       "
                f"{row['without_exploration']:.3f} [{silent_low:.3f}, {silent_high:.3f}]"
                f"{'  BELOW' if row['below_without_exploration'] else ''}"
            )


if __name__ == "__main__":
    main()
