"""Intervals from whole requests: rounds of one request are dependent, requests are not.

Every figure is a function of sums per request and bin, so a resample of requests is a matrix product of
resampling counts with those sums, and all resamples are one product.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from calibrator.core.clusters import MIN_REQUESTS, labelled_requests, t_widening
from calibrator.core.ece import bin_index, check_outcomes

Float = NDArray[np.float64]
SPARSE_REQUESTS = 2000


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and its interval; None where undefined, or from fewer than ``MIN_REQUESTS`` requests."""

    estimate: float | None
    low: float | None
    high: float | None

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval lies on one side of zero."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


@dataclass(frozen=True, slots=True)
class EceInterval:
    """Interval of the mean ECE over positions, and of every position."""

    mean: Interval
    positions: tuple[Interval, ...]


@dataclass(frozen=True, slots=True)
class EceDifference:
    """Interval of ``mean ECE(after) - mean ECE(before)`` on the same resamples; negative is better."""

    estimate: float | None
    low: float | None
    high: float | None
    positions: tuple[Interval, ...]

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval lies on one side of zero."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def resample_counts(requests: int, resamples: int, seed: int) -> Float:
    """How often each request is drawn, shape ``[1 + resamples, requests]``; the first row is all ones."""
    generator = np.random.default_rng(seed)
    counts = np.ones((1 + resamples, requests))
    if requests:
        counts[1:] = generator.multinomial(requests, np.full(requests, 1.0 / requests), size=resamples)
    return counts


def resampled_ece(
    predicted: ArrayLike,
    labels: ArrayLike,
    request: ArrayLike,
    bins: int,
    counts: Float,
    weights: ArrayLike | None = None,
    mass: ArrayLike | None = None,
) -> Float:
    """ECE per resample and position, shape ``[1 + resamples, gamma]``; NaN where nothing is labelled.

    Parameters
    ----------
    predicted, labels
        Shape ``[rows, gamma]``.
    request
        Request of every row, shape ``[rows]``.
    bins
        Equal-width bins.
    counts
        Of :func:`resample_counts`, one column per distinct request in ascending order.
    weights, mass
        Inclusion weights and drafted mass, shape ``[rows, gamma]``, as in
        :func:`calibrator.core.ece.reliability`.
    """
    a = np.asarray(predicted, dtype=np.float64)
    y = np.asarray(labels, dtype=np.float64)
    w = np.ones_like(a) if weights is None else np.asarray(weights, dtype=np.float64)
    m = w if mass is None else np.asarray(mass, dtype=np.float64)
    for name, array in (("labels", y), ("weights", w), ("mass", m)):
        if array.shape != a.shape:
            raise ValueError(f"{name}: got shape {array.shape}, expected {a.shape}, as predicted")
    _, owner = np.unique(np.asarray(request), return_inverse=True)
    requests = counts.shape[1]
    result = np.empty((len(counts), a.shape[1]))
    for k in range(a.shape[1]):
        cell = owner * bins + bin_index(a[:, k], bins)
        gap = _resampled(
            cell, w[:, k] * (a[:, k] - np.where(w[:, k] > 0, y[:, k], 0.0)), counts, requests, bins
        )
        weight = _resampled(cell, w[:, k], counts, requests, bins)
        share = weight if mass is None else _resampled(cell, m[:, k], counts, requests, bins)
        supported = weight > 1e-12
        kept = np.where(supported, share, 0.0)
        each = np.divide(np.abs(gap), weight, out=np.zeros_like(gap), where=supported)
        total = kept.sum(axis=1)
        result[:, k] = np.divide(
            (kept * each).sum(axis=1), total, out=np.full(len(counts), np.nan), where=total > 0
        )
    return result


def ece_interval(
    predicted: ArrayLike,
    labels: ArrayLike,
    request: ArrayLike,
    *,
    bins: int = 15,
    weights: ArrayLike | None = None,
    mass: ArrayLike | None = None,
    resamples: int = 500,
    confidence: float = 0.95,
    seed: int = 0,
) -> EceInterval:
    """Bootstrap the mean ECE over positions and every position's; parameters of :func:`resampled_ece`.

    ECE is biased upwards by noise and more so in a resample: the interval is the percentile interval
    shifted so that its median is the estimate (bias-corrected first order), floored at 0. With few requests
    it is wider by Student's t and CR1's factor; with fewer than ``MIN_REQUESTS`` there is none.

    Raises
    ------
    ValueError
        For a prediction outside [0, 1] or not a number, or a label outside [0, 1] where there is weight.

    >>> rng = np.random.default_rng(0)
    >>> a = rng.random((4000, 1))
    >>> interval = ece_interval(a, rng.random((4000, 1)) < a**2, np.arange(4000) // 10, seed=1).mean
    >>> interval.low < interval.estimate < interval.high
    True
    """
    check_outcomes(predicted, labels, weights)
    each, together = _requests(request, predicted, weights)
    counts = resample_counts(len(np.unique(np.asarray(request))), resamples, seed)
    per_position = resampled_ece(predicted, labels, request, bins, counts, weights, mass)
    return EceInterval(
        _interval(_mean(per_position), confidence, together, floor=0.0),
        tuple(
            _interval(column, confidence, n, floor=0.0)
            for column, n in zip(per_position.T, each, strict=True)
        ),
    )


def ece_difference(
    before: ArrayLike,
    after: ArrayLike,
    labels: ArrayLike,
    request: ArrayLike,
    *,
    bins: int = 15,
    weights: ArrayLike | None = None,
    mass: ArrayLike | None = None,
    resamples: int = 500,
    confidence: float = 0.95,
    seed: int = 0,
) -> EceDifference:
    """Bootstrap the change of ECE between two predictions on the same rows and the same resamples.

    >>> rng = np.random.default_rng(0)
    >>> a = rng.random((4000, 1))
    >>> accepted = rng.random((4000, 1)) < a
    >>> change = ece_difference(a**2, a, accepted, np.arange(4000) // 10)
    >>> change.estimate < 0, change.excludes_zero
    (True, True)
    """
    counts = resample_counts(len(np.unique(np.asarray(request))), resamples, seed)
    first = resampled_ece(before, labels, request, bins, counts, weights, mass)
    second = resampled_ece(after, labels, request, bins, counts, weights, mass)
    each, together = _requests(request, before, weights)
    mean = _interval(_mean(second - first), confidence, together)
    positions = tuple(
        _interval(column, confidence, n) for column, n in zip((second - first).T, each, strict=True)
    )
    return EceDifference(mean.estimate, mean.low, mean.high, positions)


def _resampled(cell: NDArray[np.int64], values: Float, counts: Float, requests: int, bins: int) -> Float:
    sums = np.bincount(cell, weights=values, minlength=requests * bins).reshape(requests, bins)
    if requests < SPARSE_REQUESTS:
        return np.asarray(counts @ sums, dtype=np.float64)
    # Most requests lie in few bins of a position, and products with zeros add up.
    product = sparse.csr_array(sums.T) @ counts.T
    return np.asarray(product, dtype=np.float64).T


def _mean(per_position: Float) -> Float:
    """Mean over positions that are defined at all; those undefined in one resample do not count in it."""
    defined = ~np.isnan(per_position[0])
    kept = per_position[:, defined]
    usable = ~np.isnan(kept)
    count = usable.sum(axis=1)
    total = np.where(usable, kept, 0.0).sum(axis=1)
    mean: Float = np.divide(total, count, out=np.full(len(kept), np.nan), where=count > 0)
    return mean


def _requests(request: ArrayLike, like: ArrayLike, weights: ArrayLike | None) -> tuple[list[int], int]:
    """Requests with labels, position by position and at any."""
    mask = np.ones(np.shape(like), dtype=np.bool_) if weights is None else np.asarray(weights) > 0
    each = [int(n) for n in labelled_requests(request, mask)]
    return each, int(labelled_requests(request, mask.any(axis=1, keepdims=True))[0])


def _interval(figures: Float, confidence: float, requests: int, floor: float = -np.inf) -> Interval:
    estimate, drawn = float(figures[0]), figures[1:]
    drawn = drawn[~np.isnan(drawn)]
    if np.isnan(estimate) or len(drawn) < 2 or requests < MIN_REQUESTS:
        return Interval(None if np.isnan(estimate) else estimate, None, None)
    tail = 0.5 * (1.0 - confidence)
    low, middle, high = (float(q) for q in np.quantile(drawn, (tail, 0.5, 1.0 - tail)))
    wider = t_widening(confidence, requests) * float(np.sqrt(requests / (requests - 1)))
    low, high = estimate + wider * (low - middle), estimate + wider * (high - middle)
    return Interval(estimate, max(low, floor), max(high, floor))
