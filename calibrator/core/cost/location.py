"""Robust location of many small histograms at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrator.core.cost.buckets import BINS_PER_OCTAVE

Integers = NDArray[np.int64]
Float = NDArray[np.float64]

OUTLIER_FACTOR = 4.0
"""A step that takes this many times the median is no sample of its size: compilation, prefill, a stall."""

SMALLEST_SPREAD = 0.25 * np.log(2.0) / BINS_PER_OCTAVE
"""What a bin cannot resolve."""


@dataclass(frozen=True, slots=True, eq=False)
class Locations:
    """Per group, shape ``[groups]``, on the axis of bins.

    ``median`` after outliers are gone, ``spread`` the standard deviation of log values that the quartiles
    of a normal law would have, ``n_eff`` Kish's effective number of samples, ``outliers`` the share of
    weight that was rejected. NaN where a group has no weight.
    """

    median: Float
    spread: Float
    n_eff: Float
    outliers: Float


def locate(
    owner: Integers, bins: Integers, weight: Float, weight_squared: Float, count: int, reject: bool = True
) -> Locations:
    """Locate ``count`` histograms given as entries.

    Parameters
    ----------
    owner, bins, weight, weight_squared
        Group, bin and weights of each entry, shape ``[entries]``.
    reject
        Leave out values beyond :data:`OUTLIER_FACTOR` times the median on either side.

    >>> bins, ones = np.array([100, 100, 101, 900]), np.ones(4)
    >>> at = locate(np.zeros(4, dtype=np.int64), bins, ones, ones, 1)
    >>> at.median.tolist(), at.n_eff.tolist(), at.outliers.tolist()
    ([100.5], [3.0], [0.25])
    """
    order = np.lexsort((bins, owner))
    owner, bins, weight, squared = owner[order], bins[order], weight[order], weight_squared[order]
    total = np.bincount(owner, weights=weight, minlength=count)
    kept = np.ones(len(owner), dtype=np.bool_)
    if reject:
        first = _quantile(owner, bins, weight, count, 0.5)
        reach = BINS_PER_OCTAVE * np.log2(OUTLIER_FACTOR)
        kept = np.abs(bins + 0.5 - first[owner]) <= reach
    owner, bins, weight, squared = owner[kept], bins[kept], weight[kept], squared[kept]
    mass = np.bincount(owner, weights=weight, minlength=count)
    squares = np.bincount(owner, weights=squared, minlength=count)
    low, median, high = (_quantile(owner, bins, weight, count, q) for q in (0.25, 0.5, 0.75))
    per_bin = np.log(2.0) / BINS_PER_OCTAVE
    return Locations(
        median=median,
        spread=np.maximum((high - low) * per_bin / 1.349, SMALLEST_SPREAD),
        n_eff=np.divide(mass**2, squares, out=np.zeros(count), where=squares > 0),
        outliers=np.divide(total - mass, total, out=np.zeros(count), where=total > 0),
    )


def _quantile(owner: Integers, bins: Integers, weight: Float, count: int, level: float) -> Float:
    """Weighted quantile of each group, linear inside a bin; entries sorted by group and bin."""
    mass = np.bincount(owner, weights=weight, minlength=count)
    result = np.full(count, np.nan)
    if not len(owner):
        return result
    cumulative = np.cumsum(weight)
    before = np.cumsum(mass) - mass
    last = np.searchsorted(owner, np.arange(count), side="right") - 1
    first = np.searchsorted(owner, np.arange(count), side="left")
    wanted = before + level * mass
    entry = np.clip(np.searchsorted(cumulative, wanted, side="left"), first, np.maximum(last, first))
    some = np.flatnonzero(mass > 0)
    at = entry[some]
    inside = (wanted[some] - (cumulative[at] - weight[at])) / weight[at]
    result[some] = bins[at] + np.clip(inside, 0.0, 1.0)
    return result
