"""Whether a candidate may go on: its rows against the control's, at any look, with a bounded error.

Three things are measured on the two arms and one is derived from them:

* ``acceptance``: accepted draft tokens per round,
* ``step_time``: seconds of a step relative to what one and the same curve says of its number of requests,
* ``calibration``: log loss per position at risk, of both sets on the canary's rows,
* ``throughput``: tokens per round over seconds per step, relative to the control.

A candidate may well accept fewer tokens per round because it stops verifying what is not worth it, or take
longer steps because it verifies more. Where steps are measured, their sum decides, the throughput; where
they are not, acceptance does. Calibration always does.

Every interval is a confidence sequence (:mod:`calibrator.core.confidence_sequence`). The error probability is
divided among the three that decide, calibration in shadow and in canary, and throughput (or acceptance), so
that with probability ``confidence`` all of them hold at all times. A candidate that is worse by more than a
tolerance is then never promoted, and one that is not is never aborted for its figures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from calibrator.core.arms import ArmSums, Mean, ratio_mean
from calibrator.core.confidence_sequence import Interval, interval

Name = Literal["acceptance", "calibration", "step_time", "throughput"]
Verdict = Literal["better", "worse", "undecided"]
Action = Literal["promote", "abort", "wait"]

MIN_GROUPS = 24
"""Random groups with rows in an arm, below which its variance is not believed."""
MIN_ROUNDS = 500
"""Rounds of an arm below which nothing is aborted: the intervals rest on a central limit theorem."""
_DECIDING = 3
"""Among which the error probability is divided: shadow, calibration, throughput (or acceptance)."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What a rollout is decided by.

    Attributes
    ----------
    shadow_rounds, canary_rounds
        Rounds before a stage may end well, the canary's in each arm. 0 shadow rounds: no shadow.
    confidence
        Probability that no interval that decides ever misses.
    acceptance_tolerance, step_time_tolerance
        Relative loss that does not matter: of tokens per round (and per second), of seconds per step.
    calibration_tolerance
        Log loss per position, in nats, that does not matter.
    """

    shadow_rounds: int = 1000
    canary_rounds: int = 2000
    confidence: float = 0.95
    acceptance_tolerance: float = 0.03
    calibration_tolerance: float = 0.002
    step_time_tolerance: float = 0.03

    @property
    def alpha(self) -> float:
        """Error probability of one figure that decides."""
        return (1.0 - self.confidence) / _DECIDING


@dataclass(frozen=True, slots=True)
class Measure:
    """One comparison. ``difference`` is canary less control, ``low`` and ``high`` its interval.

    ``bounded``: the interval excludes a loss as large as ``tolerance``. ``decides``: the rollout ends by it
    (the others explain). For ``acceptance`` figures are tokens per round; for ``step_time`` and
    ``throughput`` logarithms of ratios, so 0.02 is about 2 %; for ``calibration`` nats per position.
    """

    measure: Name
    canary: float | None
    control: float | None
    difference: float | None
    low: float | None
    high: float | None
    n_canary: int
    n_control: int
    verdict: Verdict
    bounded: bool
    decides: bool
    tolerance: float


@dataclass(frozen=True, slots=True)
class _Estimate:
    value: float
    variance: float
    freedom: float


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, why, and what it rests on."""

    action: Action
    reason: str
    measures: tuple[Measure, ...]


def judge_shadow(shadow: ArmSums, rules: Rules) -> Decision:
    """Decide on a candidate that was scored on everybody's rows and applied nowhere.

    >>> decision = judge_shadow(ArmSums.zeros(), Rules())
    >>> decision.action, decision.reason
    ('wait', '0 of 1000 rounds')
    """
    calibration = _calibration(shadow, rules)
    wanted = max(1, rules.shadow_rounds)
    return _decide((calibration,), int(shadow.total("rounds")), wanted)


def judge_canary(control: ArmSums, canary: ArmSums, rules: Rules) -> Decision:
    """Decide on a candidate that part of the replicas run."""
    tokens = _log_ratio(_accepted(control), _accepted(canary))
    timed = control.total("steps") > 0 and canary.total("steps") > 0
    measures = [
        _acceptance(control, canary, tokens, rules, decides=not timed),
        _calibration(canary, rules),
    ]
    if timed:
        steps = _difference(_step_ratio(control), _step_ratio(canary))
        measures.append(_step_time(control, canary, steps, rules))
        measures.append(_throughput(control, canary, tokens, steps, rules))
    rounds = int(min(control.total("rounds"), canary.total("rounds")))
    return _decide(tuple(measures), rounds, rules.canary_rounds)


def _decide(measures: tuple[Measure, ...], rounds: int, wanted: int) -> Decision:
    deciding = [m for m in measures if m.decides]
    worse = [m for m in deciding if m.verdict == "worse"]
    if worse and rounds >= min(MIN_ROUNDS, wanted):
        return Decision("abort", "; ".join(_in_words(m) for m in worse), measures)
    if rounds < wanted:
        return Decision("wait", f"{rounds} of {wanted} rounds", measures)
    unsure = [m for m in deciding if not m.bounded]
    if unsure:
        names = ", ".join(f"{m.measure} (interval {_ends(m)})" for m in unsure)
        return Decision("wait", f"not yet known to within the tolerance: {names}", measures)
    better = [m.measure for m in deciding if m.verdict == "better"]
    found = f"better in {', '.join(better)}" if better else "no difference that matters"
    return Decision("promote", f"{found}, nothing worse, over {rounds} rounds", measures)


def _acceptance(
    control: ArmSums, canary: ArmSums, tokens: _Estimate | None, rules: Rules, *, decides: bool
) -> Measure:
    tolerance = rules.acceptance_tolerance
    ratio = _interval(tokens, rules.alpha, tolerance)
    other = _accepted(control)
    shown = None
    if ratio is not None and other is not None:
        per_round = 1.0 + other.value  # the bonus token included
        shown = Interval(*(per_round * math.expm1(x) for x in (ratio.estimate, ratio.low, ratio.high)))
    harm = None if ratio is None else -ratio
    return _measure("acceptance", _accepted(canary), other, shown, harm, tolerance, decides=decides)


def _calibration(canary: ArmSums, rules: Rules) -> Measure:
    """Compare both sets on the same rows, so that there is one mean, of differences."""
    mean = ratio_mean(canary, "candidate_log_loss", "at_risk")
    other = ratio_mean(canary, "control_log_loss", "at_risk")
    change = ratio_mean(canary, "candidate_log_loss", "at_risk", less="control_log_loss")
    estimate = None
    if change is not None and change.groups >= MIN_GROUPS:
        estimate = _Estimate(change.value, change.variance, change.groups - 1.0)
    tolerance = rules.calibration_tolerance
    found = _interval(estimate, rules.alpha, tolerance)
    return _measure("calibration", mean, other, found, found, tolerance, decides=True)


def _step_time(control: ArmSums, canary: ArmSums, steps: _Estimate | None, rules: Rules) -> Measure:
    tolerance = rules.step_time_tolerance
    found = _interval(steps, rules.alpha, tolerance)
    means = _step_ratio(canary), _step_ratio(control)
    return _measure("step_time", *means, found, found, tolerance, decides=False)


def _throughput(
    control: ArmSums, canary: ArmSums, tokens: _Estimate | None, steps: _Estimate | None, rules: Rules
) -> Measure:
    """Tokens over seconds.

    The two are taken as independent. They are not where a longer verification brings more tokens and takes
    longer; their difference then varies less than is allowed for.
    """
    estimate = None
    if tokens is not None and steps is not None:
        estimate = _Estimate(
            tokens.value - steps.value,
            tokens.variance + steps.variance,
            min(tokens.freedom, steps.freedom),
        )
    tolerance = max(rules.acceptance_tolerance, rules.step_time_tolerance)
    found = _interval(estimate, rules.alpha, tolerance)
    harm = None if found is None else -found
    means = _accepted(canary), _accepted(control)
    measure = _measure("throughput", *means, found, harm, tolerance, decides=True)
    # Relative to the control: neither arm has a figure of its own.
    return replace(measure, canary=None, control=None)


def _accepted(arm: ArmSums) -> Mean | None:
    return ratio_mean(arm, "accepted", "rounds")


def _step_ratio(arm: ArmSums) -> Mean | None:
    return ratio_mean(arm, "log_step_ratio", "steps")


def _measure(
    name: Name,
    canary: Mean | None,
    control: Mean | None,
    shown: Interval | None,
    harm: Interval | None,
    tolerance: float,
    *,
    decides: bool,
) -> Measure:
    verdict: Verdict = "undecided"
    if harm is not None:
        verdict = "worse" if harm.low > tolerance else "better" if harm.high < 0 else "undecided"
    return Measure(
        measure=name,
        canary=None if canary is None else canary.value,
        control=None if control is None else control.value,
        difference=None if shown is None else shown.estimate,
        low=None if shown is None else shown.low,
        high=None if shown is None else shown.high,
        n_canary=0 if canary is None else canary.units,
        n_control=0 if control is None else control.units,
        verdict=verdict,
        bounded=harm is not None and harm.high <= tolerance,
        decides=decides,
        tolerance=tolerance,
    )


def _log_ratio(control: Mean | None, canary: Mean | None) -> _Estimate | None:
    """Logarithm of tokens per round (accepted and bonus), canary over control."""
    freedom = _freedom(control, canary)
    if control is None or canary is None or freedom is None:
        return None
    ours, theirs = 1.0 + canary.value, 1.0 + control.value
    variance = canary.variance / ours**2 + control.variance / theirs**2
    return _Estimate(math.log(ours / theirs), variance, freedom)


def _difference(control: Mean | None, canary: Mean | None) -> _Estimate | None:
    freedom = _freedom(control, canary)
    if control is None or canary is None or freedom is None:
        return None
    return _Estimate(canary.value - control.value, canary.variance + control.variance, freedom)


def _interval(estimate: _Estimate | None, alpha: float, tolerance: float) -> Interval | None:
    """Tightest where the interval of no difference at all just fits within the tolerance."""
    if estimate is None:
        return None
    return interval(estimate.value, estimate.variance, alpha, tolerance, estimate.freedom)


def _freedom(control: Mean | None, canary: Mean | None) -> float | None:
    """Degrees of freedom of the variance of a difference: those of the poorer arm; None for too few."""
    if control is None or canary is None:
        return None
    groups = min(control.groups, canary.groups)
    return groups - 1.0 if groups >= MIN_GROUPS else None


def _in_words(measure: Measure) -> str:
    return f"{measure.measure} is worse: {measure.difference:+.4g} {_ends(measure)}"


def _ends(measure: Measure) -> str:
    if measure.low is None or measure.high is None:
        return "undefined"
    return f"[{measure.low:+.4g}, {measure.high:+.4g}]"
