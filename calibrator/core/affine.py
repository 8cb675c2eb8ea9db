"""The affine form: one slope for all positions and an offset per position, by conditional likelihood."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrator.core.likelihood import AtRiskColumns, NewtonSums
from calibrator.core.status import Status

Float = NDArray[np.float64]

MIN_SLOPE, MAX_SLOPE = 0.01, 100.0
MAX_OFFSET = 30.0
MAX_ITERATIONS = 100
THIN_ROWS = 200_000


@dataclass(frozen=True, slots=True)
class Prior:
    """Gaussian prior that keeps thin positions finite: offsets shrink towards their pooled mean.

    ``b_k ~ Normal(c_k + m, offset_spread**2)`` with ``m ~ Normal(0, centre_spread**2)`` integrated out and
    ``c`` the ``offset_means`` (zeros when left out), and ``w ~ Normal(slope_mean, slope_spread**2)``. A
    spread of infinity leaves that part out. The defaults
    were chosen on held-out requests of the six recorded files (docs/statistics.md): fitted on half of
    the requests, verified only where the raw survival is above 0.5, the mean ECE on rounds-hard is .009
    with this prior and .016 without, on rounds-dspark-greedy .016 and .025; on full labels it changes
    nothing. It is the prior of a first refresh: ``Prior.around`` the identity.

    >>> Prior().precision(2).diagonal().round(2)
    array([4.  , 5.79, 5.79])
    >>> bool(Prior.none().precision(7).any())
    False
    """

    offset_spread: float = 0.3
    centre_spread: float = 1.0
    slope_mean: float = 1.0
    slope_spread: float = 0.5
    offset_means: tuple[float, ...] = ()

    @classmethod
    def none(cls) -> Prior:
        """Plain maximum likelihood."""
        return cls(np.inf, np.inf, 1.0, np.inf)

    @classmethod
    def around(
        cls,
        temperatures: ArrayLike,
        offsets: ArrayLike,
        offset_spread: float = 0.3,
        centre_spread: float = 1.0,
        slope_spread: float = 0.5,
    ) -> Prior:
        """Shrink towards a set in force or a pooled fit; its mean slope stands for all of its slopes.

        >>> Prior.around([2.0, 2.0], [0.1, 0.2]).mean(2)
        array([0.5, 0.1, 0.2])
        """
        slope = float((1.0 / np.asarray(temperatures, dtype=np.float64)).mean())
        means = tuple(np.asarray(offsets, dtype=np.float64).tolist())
        return cls(offset_spread, centre_spread, slope, slope_spread, means)

    def mean(self, gamma: int) -> Float:
        """Where (slope, offsets) shrink to, shape ``[1 + gamma]``."""
        if self.offset_means and len(self.offset_means) != gamma:
            raise ValueError(f"offset_means: got {len(self.offset_means)}, expected {gamma} or none")
        return np.array([self.slope_mean, *(self.offset_means or (0.0,) * gamma)])

    def precision(self, gamma: int) -> Float:
        """Precision matrix over (slope, offsets), shape ``[1 + gamma, 1 + gamma]``."""
        matrix = np.zeros((1 + gamma, 1 + gamma))
        if np.isfinite(self.slope_spread):
            matrix[0, 0] = 1.0 / self.slope_spread**2
        if np.isfinite(self.offset_spread):
            pooled = 1.0 / (self.offset_spread**2 / self.centre_spread**2 + gamma)
            matrix[1:, 1:] = (np.eye(gamma) - pooled) / self.offset_spread**2
        elif np.isfinite(self.centre_spread):
            raise ValueError("centre_spread: got a finite value, expected inf where offset_spread is inf")
        return matrix


@dataclass(frozen=True, slots=True, eq=False)
class AffineFit:
    """Parameters ``c_k = sigmoid(slope z_k + offsets[k])`` and what they rest on.

    ``temperatures`` repeats ``1 / slope``. ``covariance`` is the inverse of information plus prior
    precision over (slope, offsets), shape ``[1 + gamma, 1 + gamma]``; a row that nothing is known
    about is infinite on the diagonal. Counts are weighted sums per position, shape ``[gamma]``.
    """

    slope: float
    offsets: Float
    covariance: Float
    iterations: int
    converged: bool
    n_at_risk: Float
    accepts: Float
    rejects: Float
    statuses: tuple[Status, ...]

    @property
    def temperatures(self) -> Float:
        """``1 / slope`` for every position, shape ``[gamma]``."""
        return np.full(self.offsets.shape, 1.0 / self.slope)

    @property
    def standard_errors(self) -> Float:
        """Standard errors of (slope, offsets), shape ``[1 + gamma]``."""
        return np.sqrt(np.diagonal(self.covariance))


def fit_affine(
    logits: ArrayLike,
    outcome: ArrayLike,
    at_risk: ArrayLike,
    weights: ArrayLike | None = None,
    *,
    prior: Prior | None = None,
    start: tuple[float, ArrayLike] | None = None,
) -> AffineFit:
    """Fit slope and offsets by (penalised) conditional likelihood; valid on truncated traffic.

    Parameters
    ----------
    logits
        Raw confidence logits, shape ``[rows, gamma]``.
    outcome
        1 if the prefix including the position survived (:func:`calibrator.core.labels.prefix_labels`).
    at_risk
        Where that answer counts (:func:`calibrator.core.labels.at_risk`).
    weights
        Row weights, shape ``[rows, gamma]``; leave out for ones.
    prior
        Shrinkage; ``Prior()`` when left out, ``Prior.none()`` for plain maximum likelihood.
    start
        Slope and offsets in force: the first guess, and what is returned if no row can tell.

    Notes
    -----
    A logistic regression of ``1 + gamma`` parameters by Newton steps over
    :class:`calibrator.core.likelihood.NewtonSums`. The model is that of vLLM 0.33's
    ``acceptance_estimator.py``. A slope that the data put at or below zero is held at ``MIN_SLOPE``.

    >>> rng = np.random.default_rng(1)
    >>> z = rng.normal(1, 1.5, size=(20_000, 1))
    >>> accepted = rng.random((20_000, 1)) < 1 / (1 + np.exp(-(0.5 * z + 0.8)))
    >>> fit = fit_affine(z, accepted, np.ones_like(z))
    >>> round(fit.slope, 1), fit.offsets.round(1)
    (0.5, array([0.8]))
    """
    columns = AtRiskColumns.gather(logits, outcome, at_risk, weights)
    return fit_affine_columns(columns, prior=prior, start=start)


def fit_affine_columns(
    columns: AtRiskColumns, *, prior: Prior | None = None, start: tuple[float, ArrayLike] | None = None
) -> AffineFit:
    """As :func:`fit_affine`, over rows at risk that were gathered before."""
    gamma = columns.gamma
    shrink = Prior() if prior is None else prior
    precision = shrink.precision(gamma)
    theta = np.concatenate([[1.0], np.zeros(gamma)])
    if start is not None:
        theta[0], theta[1:] = start[0], np.asarray(start[1], dtype=np.float64)
    centre = shrink.mean(gamma)
    total, accepts, rejects = columns.counts()
    informative = (accepts > 0) & (rejects > 0)
    if not informative.any():
        sums, iterations, converged = columns.newton_sums(np.full(gamma, theta[0]), theta[1:]), 0, True
    else:
        free = np.concatenate([[True], informative | np.isfinite(shrink.offset_spread)])
        # Plain likelihood sends the offset of equal outcomes to infinity, where they say nothing about the
        # slope: leave them out and the offset where it is.
        columns = columns.without(~free[1:])
        rows = sum(len(z) for z in columns.logits)
        if rows > 2 * THIN_ROWS:
            thin = columns.thinned(-(-rows // THIN_ROWS))
            scale = THIN_ROWS / rows
            theta = _newton(thin, theta, centre, precision * scale, free, 1e-3)[0]
        theta, sums, iterations, converged = _newton(columns, theta, centre, precision, free, 1e-10)
    return AffineFit(
        slope=float(theta[0]),
        offsets=theta[1:],
        covariance=_inverse(sums.hessian + precision),
        iterations=iterations,
        converged=converged,
        n_at_risk=total,
        accepts=accepts,
        rejects=rejects,
        statuses=tuple(
            _status(n, both, float(theta[0]), float(b))
            for n, both, b in zip(total, informative, theta[1:], strict=True)
        ),
    )


def _newton(
    columns: AtRiskColumns,
    theta: Float,
    centre: Float,
    precision: Float,
    free: NDArray[np.bool_],
    tolerance: float,
) -> tuple[Float, NewtonSums, int, bool]:
    """Maximise the penalised likelihood over the free parameters inside the box of the contract.

    The objective is concave, so a step is too long exactly when the slope along it has turned against it
    by more than it favoured it at the start; such a step is halved. No logarithm is ever taken.
    """
    gamma = columns.gamma
    low = np.concatenate([[MIN_SLOPE], np.full(gamma, -MAX_OFFSET)])
    high = np.concatenate([[MAX_SLOPE], np.full(gamma, MAX_OFFSET)])

    def at(point: Float) -> tuple[NewtonSums, Float]:
        sums = columns.newton_sums(np.full(gamma, point[0]), point[1:])
        return sums, sums.gradient - precision @ (point - centre)

    sums, gradient = at(theta)
    for iteration in range(1, MAX_ITERATIONS + 1):
        held = ~free | ((theta <= low) & (gradient <= 0)) | ((theta >= high) & (gradient >= 0))
        step = _solve(sums.hessian + precision, gradient, ~held)
        if np.abs(step).max(initial=0.0) <= tolerance * (1.0 + np.abs(theta).max()):
            return theta, sums, iteration, True
        for _ in range(30):
            point = np.clip(theta + step, low, high)
            moved = point - theta
            next_sums, next_gradient = at(point)
            if float(next_gradient @ moved) >= -abs(float(gradient @ moved)):
                break
            step *= 0.5
        theta, sums, gradient = point, next_sums, next_gradient
    return theta, sums, MAX_ITERATIONS, False


def _solve(matrix: Float, gradient: Float, free: NDArray[np.bool_]) -> Float:
    """Solve the Newton system over the free parameters; the others do not move."""
    step = np.zeros_like(gradient)
    index = np.flatnonzero(free)
    if index.size:
        block = matrix[np.ix_(index, index)]
        # A ridge far below anything that matters keeps saturated rows (v = 0) solvable.
        block = block + np.eye(index.size) * (1e-12 * max(1.0, float(np.trace(block))))
        step[index] = np.clip(np.linalg.solve(block, gradient[index]), -5.0, 5.0)
    return step


def _inverse(information: Float) -> Float:
    known = np.diagonal(information) > 1e-9
    covariance = np.diag(np.where(known, 0.0, np.inf))
    index = np.ix_(known, known)
    covariance[index] = np.linalg.pinv(information[index], hermitian=True)
    return covariance


def _status(at_risk: float, informative: bool, slope: float, offset: float) -> Status:
    if at_risk <= 0:
        return "censored"
    if not informative:
        return "degenerate"
    edge = slope in (MIN_SLOPE, MAX_SLOPE) or abs(offset) >= MAX_OFFSET
    return "at_grid_edge" if edge else "ok"
