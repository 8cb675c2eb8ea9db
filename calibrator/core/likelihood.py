"""Conditional likelihood of acceptance: Newton sums that merge by addition, and temperatures fitted by it.

A position is at risk in a round if it was verified and everything before it was accepted. Its outcome then
is a coin with probability ``c_k = sigmoid(w z_k + b_k)``. Because the scheduler decides from the logits
alone, the likelihood over positions at risk needs no weights on truncated traffic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrator.core.status import Status

Float = NDArray[np.float64]
INFORMATION_EPSILON = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class NewtonSums:
    """Score and information of the conditional log-likelihood at given parameters, per position.

    Every array has shape ``[gamma]``. With residual ``r = outcome - c`` and variance ``v = c (1 - c)``
    the fields are the sums of ``r z``, ``r``, ``v z z``, ``v z`` and ``v`` over rows at risk: all that a
    Newton step over one shared slope, or over one slope a position, needs.
    """

    score_slope: Float
    score_offset: Float
    slope_slope: Float
    slope_offset: Float
    offset_offset: Float

    @classmethod
    def zeros(cls, gamma: int) -> Self:
        """Sums over no rows."""
        return cls(*(np.zeros(gamma) for _ in range(5)))

    def __add__(self, other: NewtonSums) -> NewtonSums:
        if self.gamma != other.gamma:
            raise ValueError(f"gamma: got {other.gamma}, expected {self.gamma}")
        return NewtonSums(
            self.score_slope + other.score_slope,
            self.score_offset + other.score_offset,
            self.slope_slope + other.slope_slope,
            self.slope_offset + other.slope_offset,
            self.offset_offset + other.offset_offset,
        )

    @property
    def gamma(self) -> int:
        """Number of draft positions."""
        return int(self.score_offset.shape[0])

    @property
    def gradient(self) -> Float:
        """Gradient over (shared slope, offsets), shape ``[1 + gamma]``."""
        return np.concatenate([[self.score_slope.sum()], self.score_offset])

    @property
    def hessian(self) -> Float:
        """Negative Hessian (information) over (shared slope, offsets), ``[1 + gamma, 1 + gamma]``."""
        matrix = np.diag(np.concatenate([[self.slope_slope.sum()], self.offset_offset]))
        matrix[0, 1:] = matrix[1:, 0] = self.slope_offset
        return matrix


@dataclass(frozen=True, slots=True, eq=False)
class AtRiskColumns:
    """The rows at risk of every position, one contiguous array each: what a fit passes over repeatedly."""

    logits: tuple[Float, ...]
    outcome: tuple[Float, ...]
    weights: tuple[Float | None, ...]

    @classmethod
    def gather(
        cls, logits: ArrayLike, outcome: ArrayLike, at_risk: ArrayLike, weights: ArrayLike | None = None
    ) -> Self:
        """Pick positions at risk; every argument has shape ``[rows, gamma]``.

        Raises
        ------
        ValueError
            If shapes differ, or a logit at risk is not finite.
        """
        z, y = np.asarray(logits), np.asarray(outcome)
        mask = np.asarray(at_risk, dtype=np.bool_)
        w = None if weights is None else np.asarray(weights, dtype=np.float64)
        if z.ndim != 2:
            raise ValueError(f"logits: got shape {z.shape}, expected [rows, gamma]")
        for name, array in (("outcome", y), ("at_risk", mask), ("weights", w)):
            if array is not None and array.shape != z.shape:
                raise ValueError(f"{name}: got shape {array.shape}, expected {z.shape}, as logits")
        if w is not None:
            mask = mask & (w > 0)
        rows = [np.flatnonzero(mask[:, k]) for k in range(z.shape[1])]
        columns = tuple(z[r, k].astype(np.float64) for k, r in enumerate(rows))
        for k, column in enumerate(columns):
            if not np.isfinite(column).all():
                raise ValueError(f"logits: position {k + 1}: expected finite numbers")
        return cls(
            columns,
            tuple(y[r, k].astype(np.float64) for k, r in enumerate(rows)),
            tuple(None if w is None else w[r, k] for k, r in enumerate(rows)),
        )

    @property
    def gamma(self) -> int:
        """Number of draft positions."""
        return len(self.logits)

    def thinned(self, stride: int) -> AtRiskColumns:
        """Every ``stride``-th row: a cheap first look."""
        return AtRiskColumns(
            tuple(z[::stride] for z in self.logits),
            tuple(y[::stride] for y in self.outcome),
            tuple(None if w is None else w[::stride] for w in self.weights),
        )

    def without(self, positions: NDArray[np.bool_]) -> AtRiskColumns:
        """Leave out all rows of the positions named by a mask of shape ``[gamma]``."""
        if not positions.any():
            return self
        kept = [slice(0, 0) if dropped else slice(None) for dropped in positions]
        return AtRiskColumns(
            tuple(z[s] for z, s in zip(self.logits, kept, strict=True)),
            tuple(y[s] for y, s in zip(self.outcome, kept, strict=True)),
            tuple(None if w is None else w[s] for w, s in zip(self.weights, kept, strict=True)),
        )

    def counts(self) -> tuple[Float, Float, Float]:
        """Weighted number of rows at risk, accepts and rejects, each shape ``[gamma]``."""
        total = np.array(
            [
                float(len(z)) if w is None else float(w.sum())
                for z, w in zip(self.logits, self.weights, strict=True)
            ]
        )
        accepts = np.array(
            [
                float(y.sum()) if w is None else float(y @ w)
                for y, w in zip(self.outcome, self.weights, strict=True)
            ]
        )
        return total, accepts, total - accepts

    def newton_sums(self, slopes: Float, offsets: Float) -> NewtonSums:
        """Sums at one slope and offset per position, each shape ``[gamma]``."""
        sums = np.zeros((5, self.gamma))
        for k, (z, y, w) in enumerate(zip(self.logits, self.outcome, self.weights, strict=True)):
            sums[:, k] = _position_sums(z, y, w, float(slopes[k]), float(offsets[k]))
        return NewtonSums(*sums)


def newton_sums(
    logits: ArrayLike,
    outcome: ArrayLike,
    at_risk: ArrayLike,
    slope: float | Float,
    offsets: ArrayLike,
    weights: ArrayLike | None = None,
) -> NewtonSums:
    """Sum score and information over rows; sums of two sets of rows add up to the sums of both.

    Parameters
    ----------
    logits, outcome, at_risk
        Shape ``[rows, gamma]``: raw logits, whether the prefix including the position survived, and
        where that answer counts (:func:`calibrator.core.labels.at_risk`).
    slope
        One number, or one per position, shape ``[gamma]``.
    offsets
        Shape ``[gamma]``.
    weights
        Row weights (recency, sampling), shape ``[rows, gamma]``.

    >>> sums = newton_sums([[0.0], [0.0]], [[1], [0]], [[True], [True]], 1.0, [0.0])
    >>> sums.gradient, sums.hessian.diagonal()
    (array([0., 0.]), array([0. , 0.5]))
    """
    columns = AtRiskColumns.gather(logits, outcome, at_risk, weights)
    slopes = np.broadcast_to(np.asarray(slope, dtype=np.float64), (columns.gamma,))
    return columns.newton_sums(slopes, np.asarray(offsets, dtype=np.float64))


def _position_sums(z: Float, y: Float, w: Float | None, slope: float, offset: float) -> Sequence[float]:
    x = z * -slope
    x -= offset
    with np.errstate(over="ignore"):  # exp of a large number is inf, and 1 / inf the right answer
        c = np.exp(x, out=x)
    c += 1.0
    np.divide(1.0, c, out=c)
    r = y - c
    c -= c * c
    v = c
    if w is not None:
        r *= w
        v *= w
    vz = v * z
    return float(r @ z), float(r.sum()), float(vz @ z), float(vz.sum()), float(v.sum())


@dataclass(frozen=True, slots=True)
class LikelihoodTemperatures:
    """One temperature per position by conditional likelihood; every tuple has one entry per position.

    ``standard_errors`` are those of ``log T``; None where the likelihood does not tell.
    """

    temperatures: tuple[float, ...]
    standard_errors: tuple[float | None, ...]
    n_at_risk: tuple[float, ...]
    accepts: tuple[float, ...]
    rejects: tuple[float, ...]
    statuses: tuple[Status, ...]


def fit_temperatures_by_likelihood(
    logits: ArrayLike,
    outcome: ArrayLike,
    at_risk: ArrayLike,
    weights: ArrayLike | None = None,
    *,
    bounds: tuple[float, float] = (0.1, 10.0),
    current: ArrayLike | None = None,
) -> LikelihoodTemperatures:
    """Fit ``c_k = sigmoid(z_k / T_k)``, each position on its own, on truncated traffic without weights.

    The log-likelihood is concave in ``1 / T``; the optimum is found by safeguarded Newton steps and held
    inside ``bounds``. A position with no row at risk keeps its ``current`` temperature (``censored``),
    as does one with only accepts or only rejects (``degenerate``).

    Parameters
    ----------
    logits, outcome, at_risk, weights
        As for :func:`newton_sums`.
    bounds
        Smallest and largest temperature.
    current
        Temperatures in force, shape ``[gamma]``; ones when left out.

    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(0, 2, size=(20_000, 1))
    >>> accepted = rng.random((20_000, 1)) < 1 / (1 + np.exp(-z / 2))
    >>> fit = fit_temperatures_by_likelihood(z, accepted, np.ones_like(z))
    >>> abs(fit.temperatures[0] - 2) < 0.1
    True
    """
    columns = AtRiskColumns.gather(logits, outcome, at_risk, weights)
    in_force = np.ones(columns.gamma) if current is None else np.asarray(current, dtype=np.float64)
    low, high = 1.0 / bounds[1], 1.0 / bounds[0]
    if not 0 < low < high:
        raise ValueError(f"bounds: got {bounds}, expected 0 < smallest < largest")
    total, accepts, rejects = columns.counts()
    temperatures: list[float] = []
    errors: list[float | None] = []
    statuses: list[Status] = []
    for k in range(columns.gamma):
        if total[k] <= 0 or accepts[k] <= 0 or rejects[k] <= 0:
            temperatures.append(float(in_force[k]))
            errors.append(None)
            statuses.append(_no_answer(float(total[k])))
            continue
        slope, information = _slope_inside(columns, k, low, high)
        inside = low < slope < high
        temperatures.append(1.0 / slope)
        told = inside and information > INFORMATION_EPSILON
        errors.append(float(1.0 / (slope * np.sqrt(information))) if told else None)
        statuses.append("ok" if inside else "at_grid_edge")
    return LikelihoodTemperatures(
        tuple(temperatures),
        tuple(errors),
        tuple(total.tolist()),
        tuple(accepts.tolist()),
        tuple(rejects.tolist()),
        tuple(statuses),
    )


def _no_answer(at_risk: float) -> Status:
    return "degenerate" if at_risk > 0 else "censored"


def _slope_inside(columns: AtRiskColumns, k: int, low: float, high: float) -> tuple[float, float]:
    """Root of the score in the slope, clipped to [low, high]: Newton inside a shrinking bracket."""
    z, y, w = columns.logits[k], columns.outcome[k], columns.weights[k]

    def score(slope: float) -> tuple[float, float]:
        sums = _position_sums(z, y, w, slope, 0.0)
        return sums[0], sums[2]

    for edge, sign in ((low, 1.0), (high, -1.0)):
        at_edge, information = score(edge)
        if sign * at_edge <= 0:  # the likelihood falls from this edge inwards
            return edge, information
    lo, hi, slope = low, high, min(max(1.0, low * 1.01), high * 0.99)
    for _ in range(100):
        value, information = score(slope)
        lo, hi = (slope, hi) if value > 0 else (lo, slope)
        step = value / information if information > INFORMATION_EPSILON else np.inf
        proposed = slope + step if lo < slope + step < hi else 0.5 * (lo + hi)
        if abs(proposed - slope) <= 1e-12 * slope:
            break
        slope = proposed
    return slope, information
