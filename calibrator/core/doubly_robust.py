"""The figure of record on truncated traffic: doubly robust, from every drafted row.

Gaps come from :mod:`calibrator.core.expected_labels`, bin by bin; their errors from requests (sampling) and
from the outcome model (what exploration did not look at).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrator.core.clusters import t_widening
from calibrator.core.debiased_ece import DebiasedEce, ExplorationNoise, debiased_ece
from calibrator.core.ece import bin_index
from calibrator.core.expected_labels import expect
from calibrator.core.labels import EndOfSequence, drafted
from serving_adapter.contract import Rounds

Float = NDArray[np.float64]

FEW_ROWS = 30.0
"""A bin of fewer effective rows is given the variance of one label more."""

FEW_OUTCOMES = 3.0
"""A bin with fewer of the rarer outcome is given the variance of two labels more of each."""


@dataclass(frozen=True, slots=True, eq=False)
class ResidualTable:
    """One position, per bin of the prediction; arrays of shape ``[bins]``.

    ``mass`` is the share of the drafted traffic, ``gap`` mean prediction less expected label.
    ``covariance``, shape ``[2 * bins, 2 * bins]``, is that of the errors of gaps and masses, requests
    independent, rows of one request not. ``corrected`` is the share of the traffic whose labels were seen
    or had a chance to be; the rest stands on the model alone. ``exploration`` is the part of the variance
    that comes of seeing only explored labels.
    """

    mass: Float
    predicted: Float
    gap: Float
    covariance: Float
    corrected: float
    exploration: ExplorationNoise

    @property
    def variance(self) -> Float:
        """Squared standard errors of the gaps, shape ``[bins]``."""
        return np.diagonal(self.covariance)[: len(self.gap)]

    @property
    def observed(self) -> Float:
        """Expected label per bin; 0 where there is no traffic. May leave [0, 1] by its error."""
        return np.where(self.mass > 0, self.predicted - self.gap, 0.0)

    @property
    def ece(self) -> float:
        """Plain binned ECE; NaN without traffic."""
        return float((self.mass * np.abs(self.gap)).sum()) if self.mass.any() else float("nan")

    @property
    def noise_floor(self) -> float:
        """ECE that a perfectly calibrated predictor would still show; NaN without traffic."""
        if not self.mass.any():
            return float("nan")
        return float(np.sqrt(2.0 / np.pi) * (self.mass * np.sqrt(self.variance)).sum())

    @property
    def debiased_squared_error(self) -> float:
        """Squared error with the noise of the gaps taken out; may be negative. NaN without traffic."""
        return float((self.mass * (self.gap**2 - self.variance)).sum()) if self.mass.any() else float("nan")

    @property
    def mean_gap(self) -> float:
        """Mean prediction less mean label over the traffic: above 0 is overconfident."""
        return float((self.mass * self.gap).sum())

    def debiased(self, confidence: float = 0.95, seed: int = 0, requests: float | None = None) -> DebiasedEce:
        """ECE with the noise taken out, and its interval: the figure of record.

        ``requests`` that bear labels widen the interval to that of Student's t; None: as if many.
        """
        return debiased_ece(
            self.predicted,
            self.mass,
            self.gap,
            self.covariance,
            exploration=self.exploration,
            confidence=confidence,
            seed=seed,
            widening=1.0 if requests is None else t_widening(confidence, requests),
        )

    @property
    def mean_gap_standard_error(self) -> float:
        """Standard error of :attr:`mean_gap`."""
        bins = len(self.gap)
        influence = np.concatenate([self.mass, self.gap])
        return float(np.sqrt(influence @ self.covariance @ influence)) if bins else 0.0


def doubly_robust(
    predicted: ArrayLike,
    rounds: Rounds,
    bins: int = 20,
    end_of_sequence: EndOfSequence = "draft_stop",
    clip: float | None = None,
    sample_weights: ArrayLike | None = None,
    model: Float | None = None,
) -> list[ResidualTable]:
    """Reliability of predictions over the whole drafted traffic, one table per position.

    Parameters
    ----------
    predicted
        Prefix survival ``a_k``, shape ``[rows, gamma]``.
    rounds
        The outcomes, truncated by a scheduler and explored.
    bins
        Equal-width bins.
    end_of_sequence
        See :func:`calibrator.core.labels.drafted`.
    clip
        Largest inverse propensity: trades a bias towards the model for variance.
    sample_weights
        Row weights, shape ``[rows]``.
    model
        Prefix survival that expected labels come from, shape ``[rows, gamma]``; that of
        :func:`calibrator.core.expected_labels.outcome_model` when left out.

    >>> rng = np.random.default_rng(0)
    >>> rounds = Rounds.build(np.zeros((2000, 1)), rng.random(2000) < 0.8)
    >>> table = doubly_robust(np.full((2000, 1), 0.5), rounds)[0]
    >>> round(table.ece, 1), table.corrected
    (0.3, 1.0)
    """
    a = np.asarray(predicted, dtype=np.float64)
    if a.shape != rounds.logits.shape:
        raise ValueError(f"predicted: got shape {a.shape}, expected {rounds.logits.shape}")
    rows = np.ones(len(rounds)) if sample_weights is None else np.asarray(sample_weights, dtype=np.float64)
    inside = drafted(rounds, end_of_sequence)
    parts = expect(rounds, end_of_sequence, clip, rows, model)
    difference = a - parts.imputed - parts.correction
    _, request = np.unique(rounds.request, return_inverse=True)
    return [
        _table(
            a[mine, k],
            difference[mine, k],
            (a - parts.imputed)[mine, k],
            parts.spread[mine, k],
            parts.imputed[mine, k],
            parts.inverse[mine, k],
            rows[mine],
            request[mine],
            bins,
            parts.reachable[mine, k],
        )
        for k in range(rounds.gamma)
        for mine in (inside[:, k] & (rows > 0),)
    ]


def _table(
    predicted: Float,
    difference: Float,
    certain: Float,
    spread: Float,
    imputed: Float,
    inverse: Float,
    weights: Float,
    request: NDArray[np.int64],
    bins: int,
    reachable: NDArray[np.bool_],
) -> ResidualTable:
    index = bin_index(predicted, bins)
    weight = _sums(index, weights, bins)
    total = float(weight.sum())
    if total <= 0:
        empty = np.zeros(bins)
        none = ExplorationNoise(empty, empty, empty)
        return ResidualTable(empty, empty, empty, np.zeros((2 * bins, 2 * bins)), 0.0, none)

    def mean(values: Float) -> Float:
        return _ratio(_sums(index, weights * values, bins), weight)

    gap, known = mean(difference), mean(certain)
    mass = weight / total
    _, owner = np.unique(request, return_inverse=True)
    requests = int(owner.max()) + 1
    cell = owner * bins + index

    def per_request(values: Float) -> Float:
        return _sums(cell, weights * values, requests * bins).reshape(requests, bins)

    # Sampling of requests: what each adds to every bin's gap (what is certain of it) and share.
    size = per_request(np.ones_like(certain))
    moved = np.concatenate(
        [
            _ratio(per_request(certain - known[index]), weight),
            (size - mass * size.sum(axis=1, keepdims=True)) / total,
        ],
        axis=1,
    )
    bearing = size.sum(axis=1)
    alike = float(bearing.sum() ** 2 / (bearing**2).sum())  # requests of unequal length bear less together
    covariance = moved.T @ moved * (alike / max(alike - 1.0, 1.0))
    added = _ratio(_sums(index, weights**2 * spread, bins), weight**2)
    added *= _dispersion(weights * (difference - certain), float(added @ mass**2), owner, total)
    exploration = _exploration(index, weights, spread, imputed, inverse, added, bins)
    # Equal labels in a bin of few rows are luck, not certainty: at least the variance of one label more.
    effective = _ratio(weight**2, _sums(index, weights**2, bins))
    rate = np.clip(mean(predicted - certain), 0.0, 1.0)
    smoothed = (rate * effective + 0.5) / (effective + 1.0)
    least = np.where(effective < FEW_ROWS, smoothed * (1.0 - smoothed) / (effective + 1.0), 0.0)
    # Nor are hardly any of one outcome in many rows (A. Agresti, B. Coull, The American Statistician 1998).
    hedged = (rate * effective + 2.0) / (effective + 4.0)
    rare = np.minimum(rate, 1.0 - rate) * effective < FEW_OUTCOMES
    least = np.maximum(least, np.where(rare, hedged * (1.0 - hedged) / (effective + 4.0), 0.0))
    variance = np.diagonal(covariance)[:bins] + added
    added += np.where(weight > 0, np.maximum(least - variance, 0.0), 0.0)
    covariance[np.arange(bins), np.arange(bins)] += added
    return ResidualTable(
        mass=mass,
        predicted=mean(predicted),
        gap=gap,
        covariance=covariance,
        corrected=float((weights * reachable).sum() / total),
        exploration=exploration,
    )


def _exploration(
    index: NDArray[np.int64],
    weights: Float,
    spread: Float,
    imputed: Float,
    inverse: Float,
    variance: Float,
    bins: int,
) -> ExplorationNoise:
    """How many labels exploration may show per bin, and how often they are 1."""
    open_ = np.flatnonzero(spread > 0)
    i, w, m = index[open_], weights[open_], imputed[open_]
    size = _sums(i, w**2 * spread[open_], bins)
    rows = _ratio(_sums(i, w, bins) ** 2, _sums(i, w**2 * inverse[open_], bins))
    rate = np.clip(_ratio(_sums(i, w**2 * spread[open_] * m, bins), size), 0.0, 1.0)
    return ExplorationNoise(np.where(rows > 0, variance, 0.0), rows, rate)


def _dispersion(correction: Float, modelled: float, owner: NDArray[np.int64], total: float) -> float:
    """How much more the corrections scatter between requests than independent rows would; at least 1."""
    between = float((np.bincount(owner, correction) ** 2).sum()) / total**2
    return max(1.0, between / modelled) if modelled > 0 else 1.0


def _sums(index: NDArray[np.int64], values: Float, count: int) -> Float:
    return np.bincount(index, weights=values, minlength=count).astype(np.float64)


def _ratio(top: Float, bottom: Float) -> Float:
    ratio: Float = np.divide(top, bottom, out=np.zeros(top.shape), where=bottom > 0)
    return ratio
