"""Confidence sequences: intervals that hold at every look at once, however often anybody looks.

An ordinary interval that is looked at until it excludes zero excludes it sooner or later. These are wider,
by about as much as the looking costs, and may be watched for ever: with probability ``1 - alpha`` the truth
lies inside all of them.

Source: Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas, "Time-uniform central limit theory and asymptotic
confidence sequences", 2021, theorem 2.2 (a normal mixture of Robbins). The estimate is seen as Brownian
motion in its information ``1 / variance``. The variance is itself estimated, with few degrees of freedom,
which the mixture for the t-test allows for (Lai, "On confidence sequences", Annals of Statistics 1976).
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and the ends of its interval, on the scale of the estimate."""

    estimate: float
    low: float
    high: float

    def __neg__(self) -> Interval:
        return Interval(-self.estimate, -self.high, -self.low)


def half_width(variance: float, alpha: float, scale: float, freedom: float = math.inf) -> float:
    """Half the width of the interval around an estimate of that variance.

    Parameters
    ----------
    variance
        Of the estimate now; 0 gives 0.
    alpha
        Probability that any of the intervals, over all time, misses the truth.
    scale
        Half-width to be tightest at: the size of a difference that matters. Fixed before the first look.
    freedom
        Degrees of freedom of ``variance``.

    Raises
    ------
    ValueError
        Naming what is out of range.

    >>> round(half_width(1e-4, 0.05, 0.03), 4), round(half_width(1e-4, 0.05, 0.03, freedom=63), 4)
    (0.0304, 0.0311)
    """
    if not 0 < alpha < 1:
        raise ValueError(f"alpha: got {alpha}, expected a probability between 0 and 1")
    if not scale > 0:
        raise ValueError(f"scale: got {scale}, expected a positive half-width")
    if not (variance >= 0 and freedom > 0):
        raise ValueError(f"variance, freedom: got {variance}, {freedom}, expected none negative")
    if variance == 0:
        return 0.0
    # Where half_width is about `scale`, and the mixing variance that is best there.
    crossing = 2.0 * math.log(1.0 / alpha)
    wanted = (crossing + math.log(crossing + 1.0) + 1.0) / scale**2
    mixing = (crossing + math.log(crossing) + 1.0) / wanted if crossing > 1 else 1.0 / wanted
    spread = mixing / variance
    log_bound = math.log1p(spread) + crossing
    if math.isfinite(freedom):
        log_bound = freedom * math.expm1(log_bound / (freedom + 1.0))
    return math.sqrt(variance * (1.0 + 1.0 / spread) * log_bound)


def interval(
    estimate: float, variance: float, alpha: float, scale: float, freedom: float = math.inf
) -> Interval:
    """Interval of an estimate at one look, from :func:`half_width`."""
    half = half_width(variance, alpha, scale, freedom)
    return Interval(estimate, estimate - half, estimate + half)
