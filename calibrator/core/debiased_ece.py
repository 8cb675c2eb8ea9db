"""ECE with the noise taken out, and an interval that holds what it says.

Binned ECE adds up absolute gaps, and the absolute value of a noisy gap is too large on average: a perfectly
calibrated predictor reads its noise floor. No unbiased estimate of a sum of absolute values exists, but the
question can be turned round: which true ECE would give this reading as the median of its readings, and
which as their 2.5 or 97.5 % quantile? True gaps of the shape that was found (smoothed along the prediction,
as far as the noise asks for it) are scaled up and down, noise of the estimated covariance is added, and the
scales are read off (a confidence interval by inversion of a test).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Float = NDArray[np.float64]

SCALES = np.concatenate([[0.0], np.geomspace(0.02, 1.0, 24), np.geomspace(1.08, 4.0, 16)])
SPREADS = np.linspace(0.0, 1.0, 40) ** 2 * 0.5
CURVE = np.array([1.0, 0.0])
CURVE_SPREAD = np.array([0.7, 1.0])
STEPS = 8
"""Slope and offset of the logit, how far they may lie from a perfect head's, and steps to find them."""

TYPICAL = 0.02
LENGTH = 0.2
SMOOTH_SHARE = 0.8
"""Deviations from that curve: about this large, alike over this distance."""

KNOWN = 3.0
"""Standard errors from which the sign of a gap is certain, and its size no artefact of noise."""


@dataclass(frozen=True, slots=True, eq=False)
class ExplorationNoise:
    """What seeing only explored labels adds to the gaps of bins, every array of shape ``[bins]``.

    Attributes
    ----------
    variance
        Its part of the variance of the gaps.
    rows
        Expected number of explored rows whose label the model leaves open (Kish's, of weighted ones).
    rate
        Mean expected label of these, in [0, 1].
    """

    variance: Float
    rows: Float
    rate: Float

    def take(self, used: NDArray[np.int64]) -> ExplorationNoise:
        """Of some bins."""
        return ExplorationNoise(self.variance[used], self.rows[used], self.rate[used])

    def draw(self, draws: int, seed: int) -> Float:
        """Errors of the gaps, shape ``[draws, bins]``: Poisson numbers of rows, Bernoulli outcomes.

        >>> noise = ExplorationNoise(np.array([0.04]), np.array([0.5]), np.array([0.3]))
        >>> drawn = noise.draw(20_000, 0)
        >>> round(float(drawn.mean()), 2) + 0.0, round(float(drawn.var()), 2), bool((drawn == 0).mean() > 0.5)
        (0.0, 0.04, True)
        """
        random = np.random.default_rng(seed)
        seen = random.poisson(np.minimum(self.rows, 1e9), (draws, len(self.rows)))
        surprise = random.binomial(seen, self.rate) - seen * self.rate
        expected = self.rows * self.rate * (1.0 - self.rate)
        scale = np.sqrt(np.divide(self.variance, expected, out=np.zeros_like(expected), where=expected > 0))
        errors: Float = -surprise * scale
        return errors


@dataclass(frozen=True, slots=True)
class DebiasedEce:
    """ECE that is right on average, and its interval; all None without a usable bin."""

    estimate: float | None
    low: float | None
    high: float | None


def debiased_ece(
    predicted: ArrayLike,
    shares: ArrayLike,
    gaps: ArrayLike,
    covariance: ArrayLike,
    *,
    exploration: ExplorationNoise | None = None,
    confidence: float = 0.95,
    draws: int = 600,
    seed: int = 0,
    widening: float = 1.0,
) -> DebiasedEce:
    """Estimate ``sum share * |gap|`` from gaps with errors.

    Parameters
    ----------
    predicted
        Mean prediction of each bin, shape ``[bins]``.
    shares
        Mass of each bin, shape ``[bins]``; bins of mass 0 are left out.
    gaps
        Estimated mean prediction less mean label per bin, shape ``[bins]``.
    covariance
        Of the errors of gaps and shares, shape ``[2 * bins, 2 * bins]``, or ``[bins, bins]`` of the gaps
        alone.
    exploration
        The part of it that is due to exploration and not normal.
    confidence, draws, seed
        Of the interval, by simulated readings.
    widening
        Of the interval, at least 1: the covariance is itself estimated, from few requests.

    >>> rng = np.random.default_rng(0)
    >>> x, shares, covariance = np.linspace(0.025, 0.975, 20), np.full(20, 0.05), np.eye(20) * 0.05**2
    >>> noise = rng.normal(0, 0.05, size=(50, 20))
    >>> round(float(np.abs(noise).mean()), 2)  # what calibrated predictors read
    0.04
    >>> float(np.median([debiased_ece(x, shares, each, covariance).estimate for each in noise])) < 0.01
    True
    """
    x, s, g = (np.asarray(v, dtype=np.float64) for v in (predicted, shares, gaps))
    full = np.asarray(covariance, dtype=np.float64)
    bins = len(g)
    used = np.flatnonzero((s > 0) & np.isfinite(g))
    if not len(used):
        return DebiasedEce(None, None, None)
    x, s, g = x[used], s[used], g[used]
    reading = float(s @ np.abs(g))
    index = np.concatenate([used, used + bins]) if len(full) == 2 * bins else used
    variance = np.maximum(np.diagonal(full)[used], 1e-10)
    noise = _noise(full[np.ix_(index, index)], exploration.take(used) if exploration else None, draws, seed)
    gap_noise = noise[:, : len(g)]
    share = np.maximum(s + noise[:, len(g) :], 0.0) if noise.shape[1] > len(g) else s[None, :]
    errors = SCALES * max(reading, 1e-4)
    shapes = _shapes(x, g, variance, draws, seed + 1)

    def read(path: _Path, factor: float = 1.0) -> tuple[Float, Float]:
        """Readings, ``[scales, draws]``, and the true ECE that each scale comes to."""
        true = [path(e) for e in errors]
        found = [(share * np.abs(gaps + factor * gap_noise)).sum(axis=1) for gaps in true]
        return np.array(found), np.maximum.accumulate([float((np.abs(gaps) @ s).mean()) for gaps in true])

    tail = 0.5 * (1.0 - confidence)

    def ends(path: _Path, readings: Float, truths: Float) -> tuple[float, float]:
        bottom, top = np.quantile(readings, (tail, 1.0 - tail), axis=1)
        if widening > 1.0:
            # More noise moves folded readings up as well as apart: each end takes the wider of the two.
            low_far, high_far = np.quantile(read(path, widening)[0], (tail, 1.0 - tail), axis=1)
            bottom, top = np.minimum(bottom, low_far), np.maximum(top, high_far)
        low = float(np.interp(reading, np.maximum.accumulate(top), truths))
        return low, float(np.interp(reading, np.maximum.accumulate(bottom), truths))

    scaled = _Path(shapes, x, np.zeros(len(g), dtype=np.bool_), s)
    readings, truths = read(scaled)
    medians = np.maximum.accumulate(np.median(readings, axis=1))
    # What the median's answer would be on average if the truth were each of these; read backwards.
    average = np.maximum.accumulate(np.interp(readings, medians, truths).mean(axis=1))
    estimate = float(np.interp(np.interp(reading, medians, truths), average, truths))
    low, high = ends(scaled, readings, truths)
    known = np.abs(g) > KNOWN * np.sqrt(variance)
    if known.any() and not known.all():
        kept = _Path(shapes, x, known, s)
        low_kept, high_kept = ends(kept, *read(kept))
        low, high = min(low, low_kept), max(high, high_kept)
    return DebiasedEce(estimate, min(low, estimate), max(high, estimate))


class _Path:
    """Gaps of every ECE there might be: known bins stay and the others grow, or shrink to nothing first.

    No gap leaves what labels between 0 and 1 allow, so the largest scales come to less than they say.
    """

    def __init__(self, shapes: Float, predicted: Float, known: NDArray[np.bool_], shares: Float) -> None:
        self.least, self.most = predicted - 1.0, predicted
        self.shapes, self.known = np.clip(shapes, self.least, self.most), known
        part = np.abs(self.shapes) * shares
        self.of_known, self.of_others = (part[:, mask].sum(axis=1) for mask in (known, ~known))

    def __call__(self, error: float) -> Float:
        shrunk = np.minimum(error / np.maximum(self.of_known, 1e-12), 1.0)
        grown = np.maximum(error - self.of_known, 0.0) / np.maximum(self.of_others, 1e-12)
        gaps = self.shapes * np.where(self.known, shrunk[:, None], grown[:, None])
        inside: Float = np.clip(gaps, self.least, self.most)
        return inside


def _noise(covariance: Float, exploration: ExplorationNoise | None, draws: int, seed: int) -> Float:
    """Errors of gaps and shares, ``[draws, len(covariance)]``."""
    if exploration is None:
        return _draw(covariance, draws, seed)
    rest = covariance.copy()
    own = np.arange(len(exploration.variance))
    rest[own, own] = np.maximum(rest[own, own] - exploration.variance, 0.0)
    drawn = _draw(rest, draws, seed)
    drawn[:, : len(own)] += exploration.draw(draws, seed + 2)
    return drawn


def _shapes(x: Float, g: Float, v: Float, draws: int, seed: int) -> Float:
    """What the gaps may look like, ``[draws, bins]``: a logistic curve, and smooth and rough deviations.

    The curve is that of an affine recalibration of the logit: what heads are wrong by. It carries what well
    measured bins tell over to those that only exploration sees. The spread of the deviations is the one that
    makes the gaps most likely.
    """
    logit = np.log(np.clip(x, 1e-3, 0.999) / (1.0 - np.clip(x, 1e-3, 0.999)))
    basis = np.column_stack([logit, np.ones_like(logit)])
    alike = np.exp(-0.5 * ((x[:, None] - x) / LENGTH) ** 2)
    deviation = SMOOTH_SHARE * alike + (1.0 - SMOOTH_SHARE) * np.eye(len(g))
    curve = CURVE
    for _ in range(STEPS):
        # Gauss-Newton: the curve as a line around the present one, slope and offset with their prior.
        observed = 1.0 / (1.0 + np.exp(-basis @ curve))
        steep = -(observed * (1.0 - observed))[:, None] * basis
        centre = x - observed + steep @ (CURVE - curve)
        prior = (steep * CURVE_SPREAD**2) @ steep.T
        solved = np.linalg.solve(prior + TYPICAL**2 * deviation + np.diag(v), g - centre)
        step = CURVE + CURVE_SPREAD**2 * (steep.T @ solved) - curve
        curve = curve + step * min(1.0, 1.0 / max(float(np.abs(step).max()), 1e-12))
    best, mean, covariance = -np.inf, g, np.diag(v)
    for spread in SPREADS:
        whole = prior + spread**2 * deviation
        total = whole + np.diag(v)
        solved = np.linalg.solve(total, np.column_stack([g - centre, whole]))
        fit = -float(np.linalg.slogdet(total)[1]) - float((g - centre) @ solved[:, 0])
        if fit > best:
            best, mean = fit, centre + whole @ solved[:, 0]
            covariance = whole - whole @ solved[:, 1:]
    return mean + _draw(covariance, draws, seed)


def _draw(covariance: Float, draws: int, seed: int) -> Float:
    values, vectors = np.linalg.eigh(0.5 * (covariance + covariance.T))
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    drawn: Float = np.random.default_rng(seed).standard_normal((draws, len(values))) @ root.T
    return drawn
