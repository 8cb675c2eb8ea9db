"""One policy on drawn batches: tokens and seconds, by request."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrator.core.value.batches import (
    SchedulerName,
    asynchronous_lengths,
    best_lengths,
    early_stop_lengths,
)
from calibrator.core.value.outcome import Outcomes
from calibrator.core.value.policies import Policy
from serving_adapter.step_cost import StepCost

Float = NDArray[np.float64]
Lengths = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Replayed:
    """Sums over batches, and the same as shares of each drawn round, shape ``[draws]``.

    ``tokens`` of a round are its own: accepted ones and the bonus token. Its ``seconds`` are an equal
    share of the step at the mean length, plus the marginal cost of what it had verified beyond that. So
    they add up to the time of all steps, and a request that is drawn more often moves the sums as much
    as it would in a replay of its own (to first order: the scheduler stands at its optimum).
    """

    rows: NDArray[np.int64]
    tokens: Float
    seconds: Float
    accepted: float
    verified: float
    supported: float
    lengths: Lengths


def policy_lengths(
    policy: Policy,
    batches: NDArray[np.int64],
    cost: StepCost,
    outcomes: Outcomes,
    scheduler: SchedulerName = "early-stop",
) -> Lengths:
    """Lengths that a policy chooses in each batch, shape ``[batches, R]``."""
    gamma = outcomes.known.shape[1]
    if policy.rule == "all":
        return np.full(batches.shape, gamma, dtype=np.int64)
    if policy.rule == "none":
        return np.zeros(batches.shape, dtype=np.int64)
    if policy.rule == "foresight":
        # Nothing is left to be non-anticipating about: the bound takes the best of all sizes.
        true = outcomes.true_accepted[batches][..., None]
        return best_lengths((np.arange(1, gamma + 1) <= true).astype(np.float64), cost)
    assert policy.survival is not None
    choose = early_stop_lengths if scheduler == "early-stop" else asynchronous_lengths
    return choose(policy.survival[batches], cost)


def replay(
    policy: Policy,
    batches: NDArray[np.int64],
    cost: StepCost,
    outcomes: Outcomes,
    scheduler: SchedulerName = "early-stop",
) -> Replayed:
    """Serve every batch under a policy.

    Parameters
    ----------
    batches
        Rows, shape ``[batches, R]``.
    cost
        What a step takes.
    outcomes
        What rounds yield by length.

    >>> from serving_adapter.contract import Rounds
    >>> outcomes = Outcomes.build(Rounds.build([[0.0] * 2] * 2, [2, 0]), np.full((2, 2), 0.5))
    >>> cost = StepCost([1, 100], [0.1, 1.09])
    >>> served = replay(Policy("verify all", "all"), np.array([[0, 1]]), cost, outcomes)
    >>> served.tokens, served.verified, bool(np.isclose(served.seconds.sum(), cost.seconds([6])[0]))
    (array([3., 1.]), 4.0, True)
    """
    gamma = outcomes.known.shape[1]
    requests = batches.shape[1]
    lengths = policy_lengths(policy, batches, cost, outcomes, scheduler)
    total = requests + lengths.sum(axis=1)
    seconds = cost.seconds(total)
    reach = max(1, requests // 8)
    marginal = (cost.seconds(total + reach) - cost.seconds(np.maximum(total - reach, 1))) / (
        total + reach - np.maximum(total - reach, 1)
    )
    shares = (seconds / requests)[:, None] + marginal[:, None] * (
        lengths - lengths.mean(axis=1, keepdims=True)
    )
    rows, flat = batches.ravel(), lengths.ravel()
    if policy.rule == "foresight":
        accepted = np.minimum(outcomes.true_accepted[rows], flat).astype(np.float64)
    else:
        accepted = outcomes.accepted[rows, flat]
    verified = float(flat.sum())
    inside = np.arange(1, gamma + 1) <= flat[:, None]
    supported = float((outcomes.known[rows] & inside).sum()) / verified if verified else 1.0
    return Replayed(rows, 1.0 + accepted, shares.ravel(), float(accepted.sum()), verified, supported, flat)
