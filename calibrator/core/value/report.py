"""Expected tokens per second of every policy, with intervals, from logged rounds and a cost curve."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrator.core.bootstrap import Interval, resample_counts
from calibrator.core.labels import EndOfSequence
from calibrator.core.parameter_set import ParameterSet
from calibrator.core.propensity import kish
from calibrator.core.value.batches import SCHEDULERS, SchedulerName, draw_batches
from calibrator.core.value.outcome import Outcomes
from calibrator.core.value.policies import (
    FORESIGHT,
    IDENTITY,
    VERIFY_ALL,
    VERIFY_NONE,
    monotone_survival,
    standard_policies,
)
from calibrator.core.value.rates import KNOWN, Rates, interval
from calibrator.core.value.replay import Replayed, replay
from serving_adapter.contract import Rounds
from serving_adapter.step_cost import StepCost

Float = NDArray[np.float64]
Cost = StepCost | Callable[[int], StepCost]

CONCURRENCIES = (1, 8, 32, 128)
MIN_FORESIGHT_ROUNDS = 200
MIN_FORESIGHT_N_EFF = 30.0
"""Kish's effective number of rounds verified in full: exploration's few count for many."""
MOST_GROUPS = 2000
"""Requests beyond this number are resampled in random groups: the same interval at bounded cost."""


@dataclass(frozen=True, slots=True)
class PolicyValue:
    """What one policy is worth at one concurrency.

    Ratios are of tokens per second on the same resamples, so that what both have in common cancels.
    ``regret`` is the share of perfect foresight's tokens per second that the policy misses. Averages are
    per round; ``accepted`` excludes the bonus token. ``supported`` is the share of the positions the policy
    would verify whose label can be seen at all. Below :data:`calibrator.core.value.rates.KNOWN` the log
    cannot say what the policy yields: intervals have no estimate and are bounds that hold whatever the unseen
    labels are, ``accepted`` and ``regret`` are None. ``regret`` is None, too, and perfect foresight left
    out, where full verification was the scheduler's choice or too rare.
    """

    policy: str
    concurrency: int
    tokens_per_second: Interval
    against_identity: Interval
    against_verify_all: Interval
    against_verify_none: Interval
    regret: Interval | None
    accepted: float | None
    verified: float
    supported: float

    @property
    def wasted(self) -> float | None:
        """Share of verified tokens that were not accepted; 0 when nothing was verified, None: unknown."""
        if self.accepted is None:
            return None
        return 1.0 - self.accepted / self.verified if self.verified else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class ValueReport:
    """All policies at all concurrencies, and the notes a reader needs."""

    rounds: int
    requests: int
    values: tuple[PolicyValue, ...]
    notes: tuple[str, ...]
    confidence: float
    rates: Rates

    @property
    def concurrencies(self) -> tuple[int, ...]:
        """In the order asked for."""
        return tuple(dict.fromkeys(v.concurrency for v in self.values))

    def value(self, policy: str, concurrency: int) -> PolicyValue:
        """One entry. Raises KeyError where there is none."""
        for entry in self.values:
            if entry.policy == policy and entry.concurrency == concurrency:
                return entry
        raise KeyError((policy, concurrency))

    def compare(self, policy: str, other: str, concurrency: int) -> Interval:
        """Ratio of tokens per second, less one, on the same resamples; no estimate where unknown."""
        ratio = self.rates.ratio(policy, other, concurrency)
        estimate, low, high = (
            None if x is None else x - 1.0 for x in (ratio.estimate, ratio.low, ratio.high)
        )
        return Interval(estimate, low, high)

    def worse(self, policy: str, other: str) -> str | None:
        """Why ``policy`` must not replace ``other``: slower beyond its interval somewhere; else None."""
        for concurrency in self.concurrencies:
            change = self.compare(policy, other, concurrency)
            if change.low is not None and change.high is not None and change.high < 0:
                estimate = "" if change.estimate is None else f"{change.estimate:+.2%} "
                return (
                    f"replayed throughput of {policy} against {other} at {concurrency} requests: "
                    f"{estimate}[{change.low:+.2%}, {change.high:+.2%}]"
                )
        return None


def value_report(
    rounds: Rounds,
    cost: Cost,
    policies: Mapping[str, ParameterSet] | None = None,
    concurrencies: Sequence[int] = CONCURRENCIES,
    *,
    scheduler: SchedulerName = "early-stop",
    weights: ArrayLike | None = None,
    end_of_sequence: EndOfSequence = "draft_stop",
    resamples: int = 400,
    confidence: float = 0.95,
    seed: int = 0,
) -> ValueReport:
    """Replay Algorithm 1 over logged rounds under several parameter sets.

    Batches of as many rounds as requests run at a time are drawn from the log; each policy chooses
    lengths for the same batches; the yield of a length comes from the labels, under truncation through
    exploration weights (:class:`calibrator.core.value.outcome.Outcomes`).

    Parameters
    ----------
    rounds
        Logged rounds of one gamma.
    cost
        What a step takes, for any concurrency or by concurrency.
    policies
        Parameter sets by name, such as ``in force`` and ``candidate``. Verify all, verify none, the
        identity, the best monotone map and perfect foresight are always there.
    concurrencies
        Requests running at a time.
    scheduler
        ``early-stop`` (Algorithm 1) or ``asynchronous``, which is not caught by a stair of the curve.
    weights
        Weight of each round, shape ``[rows]``: inverse sampling probability times recency.
    end_of_sequence
        See :meth:`Outcomes.build`.
    resamples, confidence
        Of the bootstrap over requests.

    Raises
    ------
    ValueError
        No rounds, no positive weight, a concurrency below 1, an unknown scheduler, or what
        :func:`standard_policies` raises.

    >>> rounds = Rounds.build([[2.0], [-2.0]] * 200, [1, 0] * 200)  # one in two drafts is worth verifying
    >>> report = value_report(rounds, StepCost([1, 100], [0.1, 1.09]), concurrencies=[4], resamples=50)
    >>> report.value("identity", 4).accepted, report.value("verify all", 4).wasted
    (0.5, 0.5)
    >>> report.compare("identity", "verify all", 4).low > 0
    True
    """
    if scheduler not in SCHEDULERS:
        raise ValueError(f"scheduler: got {scheduler!r}, expected {' or '.join(SCHEDULERS)}")
    weight = np.ones(len(rounds)) if weights is None else np.asarray(weights, dtype=np.float64)
    if weight.shape != (len(rounds),) or not (np.isfinite(weight) & (weight >= 0)).all():
        raise ValueError(f"weights: got shape {weight.shape}, expected [{len(rounds)}] finite weights >= 0")
    if not weight.any():
        raise ValueError(f"rounds: got {len(rounds)} with no weight, expected some")
    if not concurrencies or min(concurrencies) < 1:
        raise ValueError(f"concurrencies: got {list(concurrencies)}, expected numbers of requests >= 1")
    monotone = monotone_survival(rounds, weight, end_of_sequence)
    outcomes = Outcomes.build(rounds, monotone, end_of_sequence)
    chosen = standard_policies(rounds, policies or {}, monotone)
    requests, owner = np.unique(rounds.request, return_inverse=True)
    groups = len(requests)
    if groups > MOST_GROUPS:
        owner = np.random.default_rng(seed).permutation(groups)[owner] % MOST_GROUPS
        groups = MOST_GROUPS
    counts = resample_counts(groups, resamples, seed)
    foresight_weight = weight * outcomes.full
    missing = _no_foresight(outcomes, weight)
    complete = bool((outcomes.full == 1).all())

    replayed: dict[tuple[str, int], Replayed] = {}
    for concurrency in dict.fromkeys(concurrencies):
        random = np.random.default_rng([seed, concurrency])
        step_cost = cost if isinstance(cost, StepCost) else cost(concurrency)
        batches = draw_batches(weight, concurrency, random)
        for policy in chosen:
            mine = batches
            if policy.rule == "foresight":
                if missing is not None:
                    continue
                mine = batches if complete else draw_batches(foresight_weight, concurrency, random)
            replayed[policy.name, concurrency] = replay(policy, mine, step_cost, outcomes, scheduler)
    rates = Rates(outcomes, np.asarray(owner, dtype=np.int64), counts, confidence, replayed)
    values = [_value(policy, concurrency, rates) for policy, concurrency in replayed]
    return ValueReport(
        rounds=len(rounds),
        requests=len(requests),
        values=tuple(values),
        notes=_notes(values, missing, cost, concurrencies, rounds.gamma),
        confidence=confidence,
        rates=rates,
    )


def _no_foresight(outcomes: Outcomes, weight: Float) -> str | None:
    """Why nothing can be said of perfect foresight, if so."""
    unknowable = float(weight[~outcomes.knowable].sum() / weight.sum())
    if unknowable > 1 - KNOWN:
        return (
            f"perfect foresight and regret are not known: {unknowable:.0%} of the rounds could never be "
            "verified in full without exploration, and those that were are the scheduler's choice"
        )
    of = weight * outcomes.full
    if np.count_nonzero(of) < MIN_FORESIGHT_ROUNDS or kish(of) < MIN_FORESIGHT_N_EFF:
        return "too few rounds were verified in full for perfect foresight"
    return None


def _value(policy: str, concurrency: int, rates: Rates) -> PolicyValue:
    replayed = rates.replayed[policy, concurrency]
    rounds = len(replayed.rows)
    known = rates.known(policy, concurrency)
    regret = None
    if (FORESIGHT, concurrency) in rates.replayed and known:
        missed = 1.0 - rates.points(policy, concurrency) / rates.points(FORESIGHT, concurrency)
        regret = interval(missed, rates.confidence)
    return PolicyValue(
        policy=policy,
        concurrency=concurrency,
        tokens_per_second=rates.rate(policy, concurrency),
        against_identity=rates.ratio(policy, IDENTITY, concurrency),
        against_verify_all=rates.ratio(policy, VERIFY_ALL, concurrency),
        against_verify_none=rates.ratio(policy, VERIFY_NONE, concurrency),
        regret=regret,
        accepted=replayed.accepted / rounds if known else None,
        verified=replayed.verified / rounds,
        supported=replayed.supported,
    )


def _notes(
    values: Sequence[PolicyValue], missing: str | None, cost: Cost, concurrencies: Sequence[int], gamma: int
) -> tuple[str, ...]:
    notes = []
    worst = min(v.supported for v in values)
    if worst < KNOWN:
        unknown = dict.fromkeys(v.policy for v in values if v.supported < KNOWN)
        notes.append(
            f"verified traffic only: {1 - worst:.0%} of the positions some policy would verify can never be "
            f"seen without exploration; no figure but bounds for {', '.join(unknown)}"
        )
    if missing is not None:
        notes.append(missing)
    for concurrency in concurrencies:
        step_cost = cost if isinstance(cost, StepCost) else cost(concurrency)
        if concurrency * (1 + gamma) > step_cost.measured_to:
            notes.append(
                f"{concurrency} requests: cost beyond {step_cost.measured_to} batch tokens is extrapolated"
            )
    return tuple(notes)
