"""How much to explore: enough for every position to be known, nothing while the engine is saturated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrator.core.record import MIN_LABELS
from calibrator.core.status import Status
from serving_adapter.contract import Rounds
from serving_adapter.step_cost import StepCost

Float = NDArray[np.float64]

MARGIN = 1.25
"""Effective labels to keep when the probability is lowered, relative to those a figure needs."""

START = 0.01
"""What a probability rises to from nothing, where the floor is nothing too."""

HUNGRY: tuple[Status, ...] = ("insufficient", "censored")


@dataclass(frozen=True, slots=True)
class ExplorationRules:
    """Bounds of the exploration probability.

    Parameters
    ----------
    floor
        Probability while every position is known well enough.
    ceiling
        Largest probability, whatever is missing.
    step
        Factor by which one decision raises or lowers it.
    max_extra_share
        Budget: verified tokens that exploration may add, relative to those verified anyway.
    saturated_above, resume_below
        Saturation (share of the engine's capacity in use) from which nothing is explored, and below which
        exploration comes back.
    """

    floor: float = 0.01
    ceiling: float = 0.1
    step: float = 2.0
    max_extra_share: float = 0.05
    saturated_above: float = 0.95
    resume_below: float = 0.85

    def __post_init__(self) -> None:
        if not 0.0 <= self.floor <= self.ceiling <= 1.0:
            raise ValueError(f"ceiling: got {self.ceiling}, expected a probability of at least {self.floor}")
        if not self.step > 1.0:
            raise ValueError(f"step: got {self.step}, expected a factor above 1")
        if not 0.0 < self.resume_below <= self.saturated_above:
            raise ValueError(
                f"resume_below: got {self.resume_below}, expected at most {self.saturated_above}"
            )


@dataclass(frozen=True, slots=True)
class ExplorationCost:
    """What exploring with a probability costs, per round and in speed.

    ``extra_verified`` and ``extra_accepted`` are draft tokens per round, ``extra_share`` the first relative
    to what is verified anyway. ``tokens_per_second`` is the change in output of the engine, None where
    nothing is known of its step times.
    """

    explore: float
    extra_verified: float
    extra_accepted: float
    extra_share: float
    tokens_per_second: float | None
    relative_speed: float | None


@dataclass(frozen=True, slots=True)
class ExplorationDecision:
    """The probability to publish, and why."""

    explore: float
    reason: str


def decide_exploration(
    current: float,
    statuses: Sequence[Status],
    *,
    extra_per_round: float = 0.0,
    verified_per_round: float = 0.0,
    saturation: float | None = None,
    before_saturation: float | None = None,
    n_eff: Sequence[float] | None = None,
    rules: ExplorationRules | None = None,
) -> ExplorationDecision:
    """Decide the exploration probability of a deployment until the next decision.

    Parameters
    ----------
    current
        Probability in force.
    statuses
        Of every position's figure of record.
    extra_per_round, verified_per_round
        Draft tokens that one explored round verifies beyond its schedule, and that rounds verify on
        average: of :func:`trimmed_tokens`. They bound the probability by the budget.
    saturation
        Share of the engine's capacity in use; None: unknown, taken as not saturated.
    before_saturation
        The probability to come back to when saturation ends; ``floor`` when left out.
    n_eff
        Effective labels of every position that exploration is needed for. They grow with the probability, so
        it is lowered only as far as leaves enough of them: otherwise it would be raised again at once.
    rules
        See :class:`ExplorationRules`.

    Raises
    ------
    ValueError
        For a number that is none, or negative; naming it.

    >>> decide_exploration(0.01, ["ok", "censored"]).explore
    0.02
    >>> decide_exploration(0.04, ["ok", "ok"]).explore
    0.02
    >>> decide_exploration(0.04, ["ok", "ok"], n_eff=[400.0, 150.0]).explore
    0.04
    >>> decide_exploration(0.04, ["ok", "ok"], saturation=0.99)
    ExplorationDecision(explore=0.0, reason='saturated: 99 % of capacity in use')
    """
    rules = rules or ExplorationRules()
    _check_numbers(
        current=current,
        extra_per_round=extra_per_round,
        verified_per_round=verified_per_round,
        saturation=saturation,
        before_saturation=before_saturation,
    )
    for each in n_eff or ():
        _check_numbers(n_eff=each)
    resting = current <= 0.0
    if saturation is not None:
        limit = rules.resume_below if resting else rules.saturated_above
        if saturation >= limit:
            return ExplorationDecision(
                0.0, f"saturated: {saturation:.0%} of capacity in use".replace("%", " %")
            )
    bound, bounded = rules.ceiling, "the ceiling"
    if extra_per_round > 0.0:
        budget = rules.max_extra_share * verified_per_round / extra_per_round
        if budget < bound:
            bound, bounded = budget, f"the budget of {rules.max_extra_share:.0%} more verified tokens"
    base = before_saturation if resting and before_saturation is not None else current
    hungry = [k for k, status in enumerate(statuses, start=1) if status in HUNGRY]
    if hungry:
        wanted = max(base, rules.floor) * (1.0 if resting else rules.step) or START
        names = ", ".join(str(k) for k in hungry)
        raised = "raised: " if min(wanted, bound) > current else ""
        reason = f"{raised}position {names} {'is' if len(hungry) == 1 else 'are'} not known well enough"
    else:
        wanted = max(rules.floor, base / rules.step)
        reason = "every position is known well enough"
        least = min(n_eff, default=np.inf) if n_eff is not None else np.inf
        if wanted < base and least * wanted / base < MIN_LABELS * MARGIN:
            wanted, reason = base, f"{reason}, and would not be with less"
    if wanted > bound:
        return ExplorationDecision(bound, f"{reason}; held at {bounded}")
    return ExplorationDecision(wanted, reason)


def _check_numbers(**values: float | None) -> None:
    for name, number in values.items():
        if number is not None and not (np.isfinite(number) and number >= 0.0):
            raise ValueError(f"{name}: got {number}, expected a number of at least 0")


def trimmed_tokens(rounds: Rounds, sample_weights: ArrayLike | None = None) -> tuple[float, float]:
    """Draft tokens per round that are trimmed, and that are scheduled; means over rows.

    >>> trimmed_tokens(Rounds.build([[0.0] * 4] * 2, [0, 0], verified=[1, 4], scheduled=[1, 3]))
    (2.0, 2.0)
    """
    if not len(rounds):
        return 0.0, 0.0
    scheduled = _mean(rounds.scheduled.astype(np.float64), sample_weights)
    # A weighted mean may exceed the number that it is a mean of, by a rounding.
    scheduled = min(scheduled, float(rounds.gamma))
    return rounds.gamma - scheduled, scheduled


def exploration_cost(
    explore: float,
    rounds: Rounds,
    survival: Float,
    *,
    requests: float = 1.0,
    cost: StepCost | None = None,
    sample_weights: ArrayLike | None = None,
) -> ExplorationCost:
    """Estimate what exploring costs on traffic like these rows.

    Parameters
    ----------
    explore
        Probability to price.
    rounds
        Recent rows; their ``scheduled`` says what would be verified anyway.
    survival
        Predicted prefix survival in force, shape ``[rows, gamma]``: what exploration wins back.
    requests
        Mean number of requests per step.
    cost
        Step times of the engine.
    sample_weights
        Row weights, shape ``[rows]``.

    >>> rounds = Rounds.build(np.zeros((2, 4)), [0, 0], verified=[2, 2])
    >>> step = StepCost([1, 100], [0.1, 1.09])
    >>> priced = exploration_cost(0.1, rounds, np.full((2, 4), 0.5), requests=10, cost=step)
    >>> round(priced.extra_verified, 2), round(priced.extra_share, 2), round(priced.relative_speed, 3)
    (0.2, 0.1, -0.001)
    """
    if not 0.0 <= explore <= 1.0:
        raise ValueError(f"explore: got {explore}, expected a probability in [0, 1]")
    if not len(rounds):
        return ExplorationCost(explore, 0.0, 0.0, 0.0, None, None)
    trimmed, scheduled = trimmed_tokens(rounds, sample_weights)
    behind = np.arange(1, rounds.gamma + 1) > rounds.scheduled[:, None]
    won = explore * _mean((survival * behind).sum(axis=1), sample_weights)
    kept = _mean((survival * ~behind).sum(axis=1), sample_weights)
    extra = explore * trimmed
    change = relative = None
    if cost is not None:
        before = requests * (1.0 + kept) / float(cost.seconds(requests * (1.0 + scheduled)))
        after = requests * (1.0 + kept + won) / float(cost.seconds(requests * (1.0 + scheduled + extra)))
        change, relative = after - before, after / before - 1.0
    share = extra / scheduled if scheduled > 0 else float("inf") if extra > 0 else 0.0
    return ExplorationCost(explore, extra, won, share, change, relative)


def _mean(values: Float, weights: ArrayLike | None) -> float:
    if weights is None:
        return float(values.mean())
    w = np.asarray(weights, dtype=np.float64)
    return float(w @ values / w.sum())
