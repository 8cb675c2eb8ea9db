"""Temperatures by conditional likelihood that lend to each other: ``log T`` shrinks towards a common shift.

What a position has rows for it finds by itself; what it lacks it borrows from the others, as offsets do in
the affine form. Each position on its own, without a prior:
:func:`calibrator.core.likelihood.fit_temperatures_by_likelihood`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrator.core.likelihood import AtRiskColumns, LikelihoodTemperatures
from calibrator.core.status import Status

Float = NDArray[np.float64]

MAX_ITERATIONS = 100
MAX_LOG_STEP = 1.0
"""Of one Newton step: far from the optimum the curvature of ``log T`` says little."""
TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class TemperaturePrior:
    """Gaussian prior of ``log T_k`` around the temperatures in force.

    ``log T_k ~ Normal(log c_k + m, spread**2)`` with ``c`` in force and ``m ~ Normal(0, common_spread**2)``
    integrated out: all positions move together freely, and apart as far as their rows carry them. The spread
    was chosen on made traffic and on held-out prompts of the recordings (docs/statistics.md).

    >>> TemperaturePrior(0.5, 1.0).precision(2).round(2)
    array([[ 2.22, -1.78],
           [-1.78,  2.22]])
    """

    spread: float = 0.3
    common_spread: float = 1.0

    def __post_init__(self) -> None:
        for name, value in (("spread", self.spread), ("common_spread", self.common_spread)):
            if not (0 < value < np.inf):
                raise ValueError(f"{name}: got {value}, expected a positive finite number")

    def precision(self, gamma: int) -> Float:
        """Precision matrix of the shifts ``log T_k - log c_k``, shape ``[gamma, gamma]``."""
        pooled = 1.0 / (self.spread**2 / self.common_spread**2 + gamma)
        return (np.eye(gamma) - pooled) / self.spread**2


def fit_shared_temperatures(
    logits: ArrayLike,
    outcome: ArrayLike,
    at_risk: ArrayLike,
    weights: ArrayLike | None = None,
    *,
    bounds: tuple[float, float] = (0.1, 10.0),
    current: ArrayLike | None = None,
    prior: TemperaturePrior | None = None,
) -> LikelihoodTemperatures:
    """Fit ``c_k = sigmoid(z_k / T_k)`` for all positions at once; valid on truncated traffic without weights.

    Parameters
    ----------
    logits, outcome, at_risk, weights
        As for :func:`calibrator.core.likelihood.newton_sums`.
    bounds
        Smallest and largest temperature.
    current
        Temperatures in force, shape ``[gamma]``, around which the prior lies; ones when left out.
    prior
        ``TemperaturePrior()`` when left out.

    Returns
    -------
    LikelihoodTemperatures
        The mode of the posterior, and standard errors of ``log T`` from its curvature. A position with no
        row at risk (``censored``) or with equal outcomes only (``degenerate``) has the temperature that the
        others and the prior suggest.

    Raises
    ------
    ValueError
        If shapes differ, a logit at risk is not finite, or bounds or current are no temperatures.

    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(0, 2, size=(20_000, 3))
    >>> accepted = rng.random(z.shape) < 1 / (1 + np.exp(-z / 2))
    >>> seen = np.arange(20_000)[:, None] < [20_000, 20_000, 5]  # hardly a row of position 3
    >>> fit = fit_shared_temperatures(z, accepted, seen)
    >>> np.abs(np.log(np.array(fit.temperatures) / 2)) < 0.1
    array([ True,  True,  True])
    """
    columns = AtRiskColumns.gather(logits, outcome, at_risk, weights)
    gamma = columns.gamma
    in_force = np.ones(gamma) if current is None else np.asarray(current, dtype=np.float64)
    if in_force.shape != (gamma,) or not (in_force > 0).all():
        raise ValueError(f"current: got {in_force!r}, expected {gamma} positive temperatures")
    if not 0 < bounds[0] < bounds[1]:
        raise ValueError(f"bounds: got {bounds}, expected 0 < smallest < largest")
    low, high = np.log(bounds[0]), np.log(bounds[1])
    precision = (prior or TemperaturePrior()).precision(gamma)
    log_t, information = _mode(columns, np.log(in_force), precision, low, high)
    spread = np.sqrt(np.diagonal(np.linalg.inv(information)))
    inside = (log_t > low) & (log_t < high)
    total, accepts, rejects = columns.counts()
    return LikelihoodTemperatures(
        tuple(np.exp(log_t).tolist()),
        tuple(float(s) if i else None for s, i in zip(spread, inside, strict=True)),
        tuple(total.tolist()),
        tuple(accepts.tolist()),
        tuple(rejects.tolist()),
        tuple(_status(*each) for each in zip(total > 0, (accepts > 0) & (rejects > 0), inside, strict=True)),
    )


def _mode(
    columns: AtRiskColumns, centre: Float, precision: Float, low: float, high: float
) -> tuple[Float, Float]:
    """Mode of the posterior inside [low, high], and the information there: damped Newton steps.

    A step that turns the slope along it around by more than it was at the start is too long and is halved.
    """

    def at(log_t: Float) -> tuple[Float, Float]:
        slope = np.exp(-log_t)
        sums = columns.newton_sums(slope, np.zeros(columns.gamma))
        score, fisher = slope * sums.score_slope, slope**2 * sums.slope_slope
        # The likelihood is concave in 1 / T and not in log T; half of the expected curvature bounds it.
        curvature = np.maximum(fisher - score, 0.5 * fisher)
        return -score - precision @ (log_t - centre), precision + np.diag(curvature)

    log_t = np.clip(centre, low, high)
    gradient, information = at(log_t)
    for _ in range(MAX_ITERATIONS):
        free = np.flatnonzero(~((log_t <= low) & (gradient <= 0) | (log_t >= high) & (gradient >= 0)))
        step = np.zeros_like(log_t)
        if free.size:
            step[free] = np.linalg.solve(information[np.ix_(free, free)], gradient[free])
        step = np.clip(step, -MAX_LOG_STEP, MAX_LOG_STEP)
        for _ in range(30):
            point = np.clip(log_t + step, low, high)
            new_gradient, new_information = at(point)
            moved = point - log_t
            if float(new_gradient @ moved) >= -abs(float(gradient @ moved)):
                break
            step *= 0.5
        log_t, gradient, information = point, new_gradient, new_information
        if np.abs(moved).max(initial=0.0) <= TOLERANCE:
            break
    return log_t, information


def _status(at_risk: bool, informative: bool, inside: bool) -> Status:
    if not at_risk:
        return "censored"
    if not informative:
        return "degenerate"
    return "ok" if inside else "at_grid_edge"
