"""Safe rollout: how often a canary ends wrongly, and how many rounds it takes, by simulation.

Two arms that differ by a known amount: requests of many dependent rounds, blocks of dependent steps. Rules
look after every batch of requests, as the controller does. "Wrongly" is an abort of a candidate that is not
worse, or a promotion of one that is worse by the tolerance.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrator.core.arms import ARM_SUMS, GROUPS, STEP_BLOCK, ArmSums
from calibrator.core.canary import Rules, judge_canary
from calibrator.core.sums import UNIT

GAMMA = 7
TOKENS = 2.5
"""Accepted per round under the control."""


@dataclass(frozen=True)
class Difference:
    """What the candidate changes: tokens per round and seconds relatively, log loss in nats."""

    tokens: float = 0.0
    seconds: float = 0.0
    loss: float = 0.0


@dataclass(frozen=True)
class Ending:
    """How a simulated canary ended, at which look, after how many canary rounds."""

    action: str
    look: int
    rounds: int


def traffic(rng: np.random.Generator, requests: int, difference: Difference) -> ArmSums:
    """Sums of so many requests, 20 rounds each on average, each request with an acceptance of its own."""
    values = np.zeros((GROUPS, len(ARM_SUMS)), dtype=np.int64)
    rounds = rng.geometric(1 / 20, requests)
    group = rng.integers(0, GROUPS, requests)
    mean = ((1 + TOKENS) * (1 + difference.tokens) - 1) * rng.gamma(16.0, 1 / 16.0, requests)
    accepted = rng.binomial(GAMMA * rounds, np.clip(mean / GAMMA, 0.0, 1.0))
    at_risk = 3 * rounds
    control = at_risk * 0.4
    own = difference.loss + rng.normal(0.0, 0.02, requests)
    candidate = control + at_risk * own + rng.normal(0.0, 0.05, requests) * np.sqrt(at_risk)
    blocks = max(1, int(rounds.sum()) // (32 * STEP_BLOCK))
    # Steps of a block share most of what makes them slow.
    ratio = np.log1p(difference.seconds) + rng.normal(0.0, 0.04, blocks)
    steps_group = rng.integers(0, GROUPS, blocks)
    for name, terms, groups in (
        ("rounds", rounds, group),
        ("accepted", accepted, group),
        ("at_risk", at_risk, group),
        ("control_log_loss", np.rint(control * UNIT), group),
        ("candidate_log_loss", np.rint(candidate * UNIT), group),
        ("steps", np.full(blocks, STEP_BLOCK), steps_group),
        ("log_step_ratio", np.rint(STEP_BLOCK * ratio * UNIT), steps_group),
    ):
        values[:, ARM_SUMS.index(name)] = np.bincount(groups, weights=terms, minlength=GROUPS)
    return ArmSums(values)


def canary(
    rng: np.random.Generator,
    rules: Rules,
    difference: Difference,
    *,
    looks: int = 60,
    requests: int = 60,
    control_requests: int = 180,
) -> Ending:
    """Look after every batch of requests until the rules decide, or the looks are over."""
    control, candidate = ArmSums.zeros(), ArmSums.zeros()
    decision, look = None, 0
    while look < looks:
        look += 1
        control += traffic(rng, control_requests, Difference())
        candidate += traffic(rng, requests, difference)
        decision = judge_canary(control, candidate, rules)
        if decision.action != "wait":
            break
    assert decision is not None
    return Ending(decision.action, look, int(candidate.total("rounds")))


def scenarios(rules: Rules) -> dict[str, Difference]:
    """Candidates that must not be aborted, that must not be promoted, and that ought to be caught."""
    tokens, seconds, loss = rules.acceptance_tolerance, rules.step_time_tolerance, rules.calibration_tolerance
    return {
        "equal": Difference(),
        "better calibrated": Difference(loss=-loss),
        "trims what does not pay": Difference(tokens=-2 * tokens, seconds=-3 * seconds),
        "tokens worse by the tolerance": Difference(tokens=np.expm1(-tokens)),
        "steps worse by the tolerance": Difference(seconds=np.expm1(seconds)),
        "loss worse by the tolerance": Difference(loss=loss),
        "tokens worse by 3 tolerances": Difference(tokens=-3 * tokens),
        "steps worse by 3 tolerances": Difference(seconds=3 * seconds),
        "loss worse by 3 tolerances": Difference(loss=3 * loss),
    }


def outcomes(rules: Rules, difference: Difference, runs: int, looks: int, seed: int) -> dict[str, Any]:
    """Shares of endings, and the canary rounds that deciding took."""
    rng = np.random.default_rng(seed)
    ended = [canary(rng, rules, difference, looks=looks) for _ in range(runs)]
    count = Counter(each.action for each in ended)
    decided = [each.rounds for each in ended if each.action != "wait"]
    return {
        **{action: count[action] / runs for action in ("promote", "abort", "wait")},
        "median canary rounds": float(np.median(decided)) if decided else None,
    }


def main() -> None:
    """Print the table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--looks", type=int, default=150, help="of 1200 canary rounds each")
    parser.add_argument("--scale", type=float, default=1.0, help="tolerances, times the default ones")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    options = parser.parse_args()
    plain = Rules()
    rules = Rules(
        acceptance_tolerance=options.scale * plain.acceptance_tolerance,
        calibration_tolerance=options.scale * plain.calibration_tolerance,
        step_time_tolerance=options.scale * plain.step_time_tolerance,
    )
    results = {
        name: outcomes(rules, difference, options.runs, options.looks, seed=1)
        for name, difference in scenarios(rules).items()
    }
    if options.json:
        json.dump({"benchmark": "rollout", "runs": options.runs, "results": results}, sys.stdout)
        print()
        return
    print(f"{options.runs} canaries each: promoted, aborted, undecided; median canary rounds to a decision")
    for name, row in results.items():
        rounds = "-" if row["median canary rounds"] is None else f"{row['median canary rounds']:.0f}"
        print(f"  {name:32} {row['promote']:7.1%} {row['abort']:7.1%} {row['wait']:7.1%} {rounds:>8}")


if __name__ == "__main__":
    main()
