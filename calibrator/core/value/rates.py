"""Tokens per second on resamples of requests: points where the log knows the outcome, else bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrator.core.bootstrap import Interval
from calibrator.core.value.outcome import Outcomes
from calibrator.core.value.replay import Replayed

Float = NDArray[np.float64]
Integers = NDArray[np.int64]
Key = tuple[str, int]

KNOWN = 0.999
"""Share of the verified positions whose label can be seen, from which a figure is given as a point."""


def interval(figures: Float, confidence: float) -> Interval:
    """Estimate and interval from figures on all requests and on resamples, shape ``[1 + resamples]``.

    >>> interval(np.array([2.0, 1.0, 2.0, 3.0]), 0.5)
    Interval(estimate=2.0, low=1.5, high=2.5)
    """
    return bounds(figures, figures, confidence, float(figures[0]))


def bounds(least: Float, most: Float, confidence: float, estimate: float | None = None) -> Interval:
    """Interval that holds whatever the unknown outcomes are: the low end of one, the high end of the other.

    >>> bounds(np.array([1.0, 1.0, 1.0]), np.array([2.0, 2.0, 2.0]), 0.95)
    Interval(estimate=None, low=1.0, high=2.0)
    """
    low = np.quantile(least[1:], (1 - confidence) / 2)
    high = np.quantile(most[1:], (1 + confidence) / 2)
    return Interval(estimate, float(low), float(high))


@dataclass(frozen=True, slots=True, eq=False)
class Rates:
    """Replays by policy and concurrency.

    Parameters
    ----------
    owner
        Group of each logged row that is resampled as one, shape ``[rows]``.
    counts
        How often each group is in each resample, shape ``[1 + resamples, groups]``.
    """

    outcomes: Outcomes
    owner: Integers
    counts: Float
    confidence: float
    replayed: Mapping[Key, Replayed]

    def known(self, policy: str, concurrency: int) -> bool:
        """Whether the log can say what the policy would have yielded."""
        return self.replayed[policy, concurrency].supported >= KNOWN

    def points(self, policy: str, concurrency: int) -> Float:
        """Tokens per second, shape ``[1 + resamples]``; a model's word where labels cannot be known."""
        one = self.replayed[policy, concurrency]
        return self._rate(one, one.tokens)

    def rate(self, policy: str, concurrency: int) -> Interval:
        """Tokens per second; without an estimate where the log cannot know, then the bounds."""
        if self.known(policy, concurrency):
            return interval(self.points(policy, concurrency), self.confidence)
        one = self.replayed[policy, concurrency]
        least, unknown = self._certain(one)
        return bounds(self._rate(one, least), self._rate(one, least + unknown), self.confidence)

    def ratio(self, policy: str, other: str, concurrency: int) -> Interval:
        """Ratio of tokens per second on the same resamples; bounds where one of them is not known."""
        if policy == other:
            return Interval(1.0, 1.0, 1.0)
        if self.known(policy, concurrency) and self.known(other, concurrency):
            points = self.points(policy, concurrency) / self.points(other, concurrency)
            return interval(points, self.confidence)
        mine, theirs = self.replayed[policy, concurrency], self.replayed[other, concurrency]
        least, unknown = self._certain(mine)
        other_least, other_unknown = self._certain(theirs)
        shared = np.zeros(len(least))
        if np.array_equal(mine.rows, theirs.rows):
            # Positions that both verify yield the same for both, whatever that is.
            shared = np.minimum(unknown, other_unknown)
        low, high = [], []
        for common in (0.0, 1.0):  # a ratio is monotone in what both have in common
            a, b = least + common * shared, other_least + common * shared
            low.append(self._rate(mine, a) / self._rate(theirs, b + other_unknown - shared))
            high.append(self._rate(mine, a + unknown - shared) / self._rate(theirs, b))
        return bounds(np.minimum(*low), np.maximum(*high), self.confidence)

    def _certain(self, one: Replayed) -> tuple[Float, Float]:
        return (
            1.0 + self.outcomes.least[one.rows, one.lengths],
            self.outcomes.unknown[one.rows, one.lengths],
        )

    def _rate(self, one: Replayed, tokens: Float) -> Float:
        groups, of = self.counts.shape[1], self.owner[one.rows]
        sums = np.bincount(of, weights=tokens, minlength=groups)
        seconds = np.bincount(of, weights=one.seconds, minlength=groups)
        return np.asarray((self.counts @ sums) / (self.counts @ seconds), dtype=np.float64)
