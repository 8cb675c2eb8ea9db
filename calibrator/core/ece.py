"""Expected calibration error, its noise floor, and the debiased squared error, from one table of bins.

Bins are equal in width, ``[lo, hi)``, the last one closed: the index is ``floor(a * bins)``, clamped, as in
DeepSpec's evaluator and SGLang's fitter (scikit-learn's interior bins are ``(lo, hi]``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Float = NDArray[np.float64]


def bin_index(values: ArrayLike, bins: int) -> NDArray[np.int64]:
    """Bin of every probability: ``floor(value * bins)``, clamped to the bins there are.

    >>> bin_index([0.0, 0.0499, 0.05, 1.0], 20)
    array([ 0,  0,  1, 19])
    """
    if bins < 1:
        raise ValueError(f"bins: got {bins}, expected at least 1")
    index = (np.asarray(values, dtype=np.float64) * bins).astype(np.int64)
    return np.clip(index, 0, bins - 1)


def check_outcomes(predicted: ArrayLike, labels: ArrayLike, weights: ArrayLike | None = None) -> None:
    """Refuse predictions that are no probabilities, and labels that are none where there is weight.

    Raises
    ------
    ValueError
        Naming the value.

    >>> check_outcomes([0.5, 1.5], [0, 1])
    Traceback (most recent call last):
    ValueError: predicted: got 1.5, expected [0, 1]
    """
    a, y = np.asarray(predicted, dtype=np.float64), np.asarray(labels, dtype=np.float64)
    used = np.ones(y.shape, dtype=np.bool_) if weights is None else np.asarray(weights) > 0
    wrong = ~((a >= 0) & (a <= 1))
    if wrong.any():
        raise ValueError(f"predicted: got {a[wrong][0]}, expected [0, 1]")
    if used.shape != y.shape:
        raise ValueError(f"weights: got shape {used.shape}, expected {y.shape}")
    wrong = used & ~((y >= 0) & (y <= 1))
    if wrong.any():
        raise ValueError(f"labels: got {y[wrong][0]}, expected 0 or 1, or a probability between")


@dataclass(frozen=True, slots=True, eq=False)
class Reliability:
    """A reliability diagram of one position as sums per bin; every array has shape ``[bins]``.

    ``mass`` is the share of the traffic in the bin (sums to 1, or to 0 without rows), ``weight`` and
    ``weight_squared`` are sums of inclusion weights of the labelled rows, ``predicted_sum`` and
    ``accepted_sum`` weighted sums over the same rows. A bin may hold mass but no labelled weight: what
    is said below then describes the supported part only, and :attr:`supported_mass` how large that is.
    """

    mass: Float
    weight: Float
    weight_squared: Float
    predicted_sum: Float
    accepted_sum: Float

    @property
    def supported(self) -> NDArray[np.bool_]:
        """Bins that hold labelled weight."""
        return self.weight > 0

    @property
    def predicted(self) -> Float:
        """Weighted mean prediction per bin; 0 where there is no label."""
        return _ratio(self.predicted_sum, self.weight)

    @property
    def observed(self) -> Float:
        """Weighted mean label per bin; 0 where there is no label."""
        return _ratio(self.accepted_sum, self.weight)

    @property
    def n_eff(self) -> Float:
        """Kish's effective number of labels per bin."""
        return _ratio(self.weight**2, self.weight_squared)

    @property
    def supported_mass(self) -> float:
        """Share of the traffic that lies in bins with labels."""
        if not self.mass.any():
            return 0.0
        return 1.0 - float(self.mass[~self.supported].sum())  # exactly 1 where nothing is left out

    @property
    def shares(self) -> Float:
        """Mass per bin relative to the supported mass; zeros where nothing is supported."""
        kept = np.where(self.supported, self.mass, 0.0)
        return _ratio(kept, np.full_like(kept, kept.sum()))

    @property
    def ece(self) -> float:
        """Sum over bins of share times |mean prediction - mean label|; NaN without labels."""
        if not self.supported.any():
            return float("nan")
        # |sum - sum| / weight rather than a difference of means: exact where the peers' is.
        gap = _ratio(np.abs(self.predicted_sum - self.accepted_sum), self.weight)
        return float((self.shares * gap).sum())

    @property
    def noise_floor(self) -> float:
        """ECE that a perfectly calibrated predictor would still show on this many labels.

        ``sqrt(2 / pi) * sum_b share_b * sqrt(r_b (1 - r_b) / n_b)``, the mean absolute value of the
        normal error of every bin's observed rate. NaN without labels.
        """
        if not self.supported.any():
            return float("nan")
        return float(np.sqrt(2.0 / np.pi) * (self.shares * np.sqrt(self._variance())).sum())

    @property
    def ece_standard_error(self) -> float:
        """Standard error of :attr:`ece`, the sign of every bin's gap taken as given; NaN without labels."""
        if not self.supported.any():
            return float("nan")
        return float(np.sqrt((self.shares**2 * self._variance()).sum()))

    @property
    def debiased_squared_error(self) -> float:
        """Squared calibration error with the noise of the observed rates taken out; may be negative.

        Per bin ``(p - r)**2 - r (1 - r) / (n - 1)`` with ``n`` the effective number of labels, so bins
        need more than one label; NaN where none has. Source: Kumar, Liang, Ma, "Verified uncertainty
        calibration", NeurIPS 2019, section 4.
        """
        n = self.n_eff
        usable = n > 1.0 + 1e-9
        if not usable.any():
            return float("nan")
        r = self.observed
        squared = (self.predicted - r) ** 2 - _ratio(r * (1.0 - r), np.where(usable, n - 1.0, 0.0))
        share = np.where(usable, self.mass, 0.0)
        return float((share * squared).sum() / share.sum()) if share.sum() > 0 else float("nan")

    def _variance(self) -> Float:
        r = np.clip(self.observed, 0.0, 1.0)
        return _ratio(r * (1.0 - r), self.n_eff)


def reliability(
    predicted: ArrayLike,
    labels: ArrayLike,
    bins: int,
    weights: ArrayLike | None = None,
    mass: ArrayLike | None = None,
) -> Reliability:
    """Sum one position into bins.

    Parameters
    ----------
    predicted
        Predicted survival in [0, 1], shape ``[rows]``.
    labels
        1 if the prefix survived, else 0 (soft labels between are fine), shape ``[rows]``; ignored where
        the weight is 0.
    bins
        Number of equal-width bins.
    weights
        Inclusion weights (0: no label), shape ``[rows]``; ones when left out. Only their ratios matter
        (Hajek).
    mass
        Which rows belong to the traffic, as mask or weights, shape ``[rows]``. Bin masses come from
        these rows, labelled or not; when left out, from ``weights``.

    >>> table = reliability([0.1, 0.1, 0.9, 0.9], [0, 0, 1, 0], bins=2)
    >>> table.observed
    array([0. , 0.5])
    >>> table.mass
    array([0.5, 0.5])
    """
    p = np.asarray(predicted, dtype=np.float64)
    y = np.asarray(labels, dtype=np.float64)
    if p.ndim != 1 or y.shape != p.shape:
        raise ValueError(f"labels: got shape {y.shape}, expected {p.shape}, one per prediction")
    index = bin_index(p, bins)
    w = np.ones_like(p) if weights is None else np.asarray(weights, dtype=np.float64)
    if w.shape != p.shape:
        raise ValueError(f"weights: got shape {w.shape}, expected {p.shape}")
    labelled = np.where(w > 0, y, 0.0)
    weight = _sums(index, w, bins)
    masses = weight if mass is None else _sums(index, np.asarray(mass, dtype=np.float64), bins)
    return Reliability(
        mass=_ratio(masses, np.full(bins, masses.sum())),
        weight=weight,
        weight_squared=_sums(index, w * w, bins),
        predicted_sum=_sums(index, w * p, bins),
        accepted_sum=_sums(index, w * labelled, bins),
    )


def expected_calibration_error(
    predicted: ArrayLike,
    labels: ArrayLike,
    bins: int = 15,
    weights: ArrayLike | None = None,
    mass: ArrayLike | None = None,
) -> float:
    """Compute ECE of one position; parameters as for :func:`reliability`. NaN without labels.

    Where ``mass`` holds rows in bins without labels the figure is that of the supported part of the
    traffic; ask :attr:`Reliability.supported_mass` how much of it that is.

    >>> expected_calibration_error([0.25, 0.25, 0.75, 0.75], [0, 0, 1, 1], bins=2)
    0.25
    """
    return reliability(predicted, labels, bins, weights, mass).ece


def noise_floor(
    predicted: ArrayLike, labels: ArrayLike, bins: int = 15, weights: ArrayLike | None = None
) -> float:
    """ECE that remains for a perfectly calibrated predictor; see :attr:`Reliability.noise_floor`.

    >>> round(noise_floor([0.5] * 100, [0, 1] * 50, bins=20), 4)
    0.0399
    """
    return reliability(predicted, labels, bins, weights).noise_floor


def ece_bounds(
    predicted: ArrayLike, lower: ArrayLike, upper: ArrayLike, bins: int = 15, mass: ArrayLike | None = None
) -> tuple[float, float]:
    """Smallest and largest ECE that labels between ``lower`` and ``upper`` allow, each shape ``[rows]``.

    What truncated traffic without exploration can say about the traffic: an unverified label may be
    anything from 0 to 1, unless a rejection inside the verified part settles it. Source: C. F. Manski,
    "Partial Identification of Probability Distributions", 2003, chapter 1.

    >>> ece_bounds([0.5, 0.5], [1, 0], [1, 1], bins=1)
    (0.0, 0.5)
    """
    p = np.asarray(predicted, dtype=np.float64)
    m = np.ones_like(p) if mass is None else np.asarray(mass, dtype=np.float64)
    total = float(m.sum())
    if total <= 0:
        return float("nan"), float("nan")
    index = bin_index(p, bins)
    most = _sums(index, m * (p - np.asarray(lower, dtype=np.float64)), bins)
    least = _sums(index, m * (p - np.asarray(upper, dtype=np.float64)), bins)
    nearest = np.where((least <= 0) & (most >= 0), 0.0, np.minimum(np.abs(least), np.abs(most)))
    farthest = np.maximum(np.abs(least), np.abs(most))
    return float(nearest.sum() / total), float(farthest.sum() / total)


def _sums(index: NDArray[np.int64], values: Float, bins: int) -> Float:
    return np.bincount(index, weights=values, minlength=bins).astype(np.float64)


def _ratio(top: Float, bottom: Float) -> Float:
    return np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0)
