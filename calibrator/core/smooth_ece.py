"""Smooth expected calibration error: no bins, and a bandwidth that chooses itself.

Source: J. Blasiok, P. Nakkiran, "Smooth ECE: principled reliability diagrams via kernel smoothing", ICLR
2024 (arXiv 2309.12236), definitions 2 and 4.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.fft import dct, idct

from calibrator.core.ece import check_outcomes

Float = NDArray[np.float64]

GRID = 2048
SMALLEST_BANDWIDTH = 1.0 / GRID
ITERATIONS = 40


@dataclass(frozen=True, slots=True)
class SmoothEce:
    """The error and the bandwidth at which it was read; both None without labels."""

    error: float | None
    bandwidth: float | None


def smooth_ece(predicted: ArrayLike, labels: ArrayLike, weights: ArrayLike | None = None) -> SmoothEce:
    """Smooth ECE of one position.

    ``smECE_s = integral over t of |mean of (A - a) K_s(a, t)|`` with ``K_s`` the Gaussian of bandwidth s,
    reflected at 0 and 1; the error is the s with ``smECE_s = s``. Rows are spread over a grid of 2048 points;
    on it the reflected Gaussian is a factor per cosine.

    Parameters
    ----------
    predicted
        In [0, 1], shape ``[rows]``.
    labels
        0, 1 or soft, shape ``[rows]``.
    weights
        Inclusion weights, 0: no label. Shape ``[rows]``; ones when left out.

    >>> rng = np.random.default_rng(0)
    >>> a = rng.random(20_000)
    >>> smooth_ece(a, rng.random(20_000) < a).error < 0.02
    True
    >>> round(smooth_ece(a, rng.random(20_000) < 0.5 * a).error, 2)
    0.25
    """
    residuals = _residuals(predicted, labels, weights)
    if residuals is None:
        return SmoothEce(None, None)
    spectrum = dct(residuals, type=2)
    low, high = SMALLEST_BANDWIDTH, 1.0
    if _error(spectrum, low) <= low:
        return SmoothEce(_error(spectrum, low), low)
    for _ in range(ITERATIONS):  # smECE_s falls with s (their lemma 8), so there is one crossing
        middle = 0.5 * (low + high)
        low, high = (middle, high) if _error(spectrum, middle) > middle else (low, middle)
    bandwidth = 0.5 * (low + high)
    return SmoothEce(_error(spectrum, bandwidth), bandwidth)


def smooth_ece_at(
    predicted: ArrayLike, labels: ArrayLike, bandwidth: float, weights: ArrayLike | None = None
) -> float:
    """Smooth ECE at a given bandwidth; NaN without labels."""
    residuals = _residuals(predicted, labels, weights)
    return float("nan") if residuals is None else _error(dct(residuals, type=2), bandwidth)


def _residuals(predicted: ArrayLike, labels: ArrayLike, weights: ArrayLike | None) -> Float | None:
    """Share of the residual mass at every grid point, cell centres of [0, 1]; None without labels."""
    a = np.asarray(predicted, dtype=np.float64)
    y = np.asarray(labels, dtype=np.float64)
    w = np.ones_like(a) if weights is None else np.asarray(weights, dtype=np.float64)
    for name, array in (("labels", y), ("weights", w)):
        if array.shape != a.shape:
            raise ValueError(f"{name}: got shape {array.shape}, expected {a.shape}, one per prediction")
    check_outcomes(a, y, w)
    total = float(w.sum())
    if total <= 0:
        return None
    mass = w * np.where(w > 0, y - a, 0.0) / total
    # Each row is shared by the two centres around it, so that its mean position is kept.
    place = np.clip(a * GRID - 0.5, 0.0, GRID - 1.0)
    left = np.minimum(place.astype(np.int64), GRID - 2)
    right_share = place - left
    shares: Float = np.zeros(GRID)
    shares += np.bincount(left, mass * (1.0 - right_share), GRID)
    shares += np.bincount(left + 1, mass * right_share, GRID)
    return shares


def _error(spectrum: Float, bandwidth: float) -> float:
    frequency = np.pi * np.arange(len(spectrum))
    smoothed = idct(spectrum * np.exp(-0.5 * (bandwidth * frequency) ** 2), type=2)
    return float(np.abs(smoothed).sum())
