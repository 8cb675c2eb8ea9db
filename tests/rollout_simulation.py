"""Two arms that differ by a known amount: requests of many dependent rounds, blocks of dependent steps."""

from __future__ import annotations

from dataclasses import dataclass

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
