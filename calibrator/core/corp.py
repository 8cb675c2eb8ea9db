"""CORP reliability: the isotonic curve of labels over predictions, and the band it has by chance alone.

No bins to choose. Source: T. Dimitriadis, T. Gneiting, A. I. Jordan, "Stable reliability diagrams for
probabilistic classifiers", PNAS 118(8), 2021.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import isotonic_regression

from calibrator.core.ece import check_outcomes

Float = NDArray[np.float64]

CELLS = 2000
"""Predictions closer than 1 / CELLS are fitted as one (their mean): exact below that many distinct ones."""


@dataclass(frozen=True, slots=True, eq=False)
class CorpCurve:
    """The curve at distinct predictions, and the decomposition of the Brier score.

    ``predicted``, ``observed``, ``low``, ``high`` and ``weight`` have shape ``[points]``, ascending;
    ``low`` to ``high`` is where the curve of a calibrated predictor lies, point by point, with the given
    confidence. ``brier = miscalibration - discrimination + uncertainty``.
    """

    predicted: Float
    observed: Float
    low: Float
    high: Float
    weight: Float
    brier: float
    miscalibration: float
    discrimination: float
    uncertainty: float


def corp_curve(
    predicted: ArrayLike,
    labels: ArrayLike,
    weights: ArrayLike | None = None,
    *,
    confidence: float = 0.9,
    resamples: int = 200,
    seed: int = 0,
) -> CorpCurve | None:
    """Fit the curve of one position; None without labels.

    Parameters
    ----------
    predicted
        In [0, 1], shape ``[rows]``.
    labels
        0, 1 or soft, shape ``[rows]``.
    weights
        Inclusion weights, 0: no label. Shape ``[rows]``; ones when left out.
    confidence, resamples, seed
        Of the consistency band: labels are drawn from the predictions and fitted again.

    >>> curve = corp_curve([0.1, 0.2, 0.3, 0.4], [0, 1, 0, 1])
    >>> curve.observed
    array([0. , 0.5, 0.5, 1. ])
    >>> round(curve.miscalibration - curve.discrimination + curve.uncertainty - curve.brier, 12)
    0.0
    """
    a = np.asarray(predicted, dtype=np.float64)
    y = np.asarray(labels, dtype=np.float64)
    w = np.ones_like(a) if weights is None else np.asarray(weights, dtype=np.float64)
    for name, array in (("labels", y), ("weights", w)):
        if array.shape != a.shape:
            raise ValueError(f"{name}: got shape {array.shape}, expected {a.shape}, one per prediction")
    check_outcomes(a, y, w)
    used = w > 0
    if not used.any():
        return None
    a, y, w = a[used], y[used], w[used]
    points, index = np.unique(a, return_inverse=True)
    if len(points) > CELLS:
        _, index = np.unique(np.minimum((a * CELLS).astype(np.int64), CELLS - 1), return_inverse=True)
    weight = _sums(index, w)
    at = _sums(index, w * a) / weight
    rate = _sums(index, w * y) / weight
    observed = _isotonic(rate, weight)

    generator = np.random.default_rng(seed)
    drawn = np.empty((resamples, len(at)))
    for i in range(resamples):
        coins = generator.random(len(a)) < a
        drawn[i] = _isotonic(_sums(index, w * coins) / weight, weight)
    tail = 0.5 * (1.0 - confidence)
    low, high = np.quantile(drawn, (tail, 1.0 - tail), axis=0) if resamples else (at, at)

    share = w / w.sum()
    base = float(share @ y)
    brier, recalibrated, climate = (
        float(share @ (p - y) ** 2) for p in (a, observed[index], np.full_like(a, base))
    )
    return CorpCurve(
        predicted=at,
        observed=observed,
        low=low,
        high=high,
        weight=weight,
        brier=brier,
        miscalibration=brier - recalibrated,
        discrimination=climate - recalibrated,
        uncertainty=climate,
    )


def _sums(index: NDArray[np.int64], values: Float) -> Float:
    return np.bincount(index, weights=values).astype(np.float64)


def _isotonic(rate: Float, weight: Float) -> Float:
    return np.asarray(isotonic_regression(rate, weights=weight).x, dtype=np.float64)
