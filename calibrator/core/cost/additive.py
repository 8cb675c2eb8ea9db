"""Seconds of a step as bias + alpha(requests) + theta(batch tokens)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import nnls

from calibrator.core.cost.cells import CostCells
from calibrator.core.cost.monotone import increments, smoothness
from serving_adapter.step_cost import StepCost

Float = NDArray[np.float64]

MIN_N_EFF = 3.0
MIN_SEPARATION = 0.02


@dataclass(frozen=True, slots=True, eq=False)
class AdditiveCost:
    """``seconds(R, B) = bias_seconds + alpha(R) + theta(B)``, both linear between probes, ends clamped.

    ``requests`` and ``alpha_seconds`` have shape ``[request probes]``, ``batch_tokens`` and
    ``theta_seconds`` ``[token probes]``; probes increase, both parts start at 0 and never fall.
    """

    bias_seconds: float
    requests: NDArray[np.int64]
    alpha_seconds: Float
    batch_tokens: NDArray[np.int64]
    theta_seconds: Float

    def seconds(self, requests: ArrayLike, batch_tokens: ArrayLike) -> Float:
        """Seconds of steps of that many requests and batch tokens; the two broadcast."""
        alpha = np.interp(np.asarray(requests, dtype=np.float64), self.requests, self.alpha_seconds)
        theta = np.interp(np.asarray(batch_tokens, dtype=np.float64), self.batch_tokens, self.theta_seconds)
        return np.asarray(self.bias_seconds + alpha + theta, dtype=np.float64)

    def at(self, requests: int) -> StepCost:
        """The curve over batch tokens for one number of requests."""
        return StepCost(self.batch_tokens, self.seconds(requests, self.batch_tokens))


@dataclass(frozen=True, slots=True, eq=False)
class AdditiveFit:
    """A fit, the relative error of its cells (weighted median) and whether it may be published."""

    cost: AdditiveCost | None
    error: float
    reasons: tuple[str, ...]

    @property
    def publishable(self) -> bool:
        """Whether a scheduler may act on it; ``reasons`` say why not."""
        return not self.reasons


def fit_additive(
    cells: CostCells,
    *,
    now: int | None = None,
    half_life: float | None = None,
    context: int | None = None,
    min_separation: float = MIN_SEPARATION,
) -> AdditiveFit:
    """Fit the additive form to cell medians: weighted least squares, both parts non-decreasing.

    What requests cost and what tokens cost can be told apart only when one varies while the other does
    not: at least ``min_separation`` of the variance of log batch tokens must remain within equal numbers
    of requests.

    Parameters
    ----------
    cells
        What was measured.
    now, half_life, context
        As in :func:`calibrator.core.cost.curve.fit_curve`.

    >>> from serving_adapter.contract import Steps
    >>> requests, tokens = (v.ravel() for v in np.meshgrid(np.repeat([1, 2, 4, 8], 5), [8, 16, 32, 64]))
    >>> seconds = 0.01 + 0.001 * requests + 0.0005 * tokens
    >>> steps = Steps.build(step_seconds=seconds, batch_tokens=tokens, requests=requests)
    >>> fit = fit_additive(CostCells.fold(steps, epoch=0))
    >>> fit.publishable, fit.cost.seconds(8, [8, 64]).round(3)
    (True, array([0.022, 0.05 ]))
    """
    summary = cells.only("step", context).summary(("requests", "batch_tokens"), now, half_life)
    good = (summary.n_eff >= MIN_N_EFF) & np.isfinite(summary.seconds)
    if good.sum() < 4:
        return AdditiveFit(None, np.nan, (f"{int(good.sum())} cells measured, needs 4",))
    requests, tokens = summary.requests[good], summary.batch_tokens[good]
    seconds, weight = summary.seconds[good], 1.0 / (summary.standard_error[good] * summary.seconds[good])
    request_probes, token_probes = (np.unique(np.rint(v)) for v in (requests, tokens))
    parts, held = [np.ones((len(seconds), 1))], [np.zeros((0, 1))]
    scale = float((seconds.max() - seconds.min()) / max(tokens.max() - tokens.min(), 1.0))
    for probes, values in ((request_probes, requests), (token_probes, tokens)):
        if len(probes) < 2:
            parts.append(np.zeros((len(seconds), 0)))
            held.append(np.zeros((0, 0)))
            continue
        parts.append(increments(probes, values))
        bends = np.full(max(len(probes) - 2, 0), scale > 0)
        held.append(smoothness(probes, bends, max(scale, 1e-12)))
    design = np.column_stack(parts) * weight[:, None]
    prior = np.zeros((sum(len(h) for h in held), design.shape[1]))
    row = column = 0
    for block in held:
        prior[row : row + block.shape[0], column : column + block.shape[1]] = block
        row, column = row + block.shape[0], column + block.shape[1]
    stacked = np.vstack([design, prior])
    size = np.sqrt((stacked**2).sum(axis=0))
    size[size == 0] = 1.0
    solution, _ = nnls(
        stacked / size, np.concatenate([seconds * weight, np.zeros(len(prior))]), maxiter=100 * len(size)
    )
    solution = solution / size
    split = 1 + max(len(request_probes) - 1, 0)
    cost = AdditiveCost(
        bias_seconds=float(solution[0]),
        requests=request_probes.astype(np.int64),
        alpha_seconds=np.concatenate([[0.0], np.cumsum(solution[1:split])]),
        batch_tokens=token_probes.astype(np.int64),
        theta_seconds=np.concatenate([[0.0], np.cumsum(solution[split:])]),
    )
    errors = np.abs(cost.seconds(requests, tokens) / seconds - 1.0)
    error = _weighted_median(errors, summary.weight[good])
    return AdditiveFit(cost, error, _reasons(cost, requests, tokens, summary.weight[good], min_separation))


def _reasons(
    cost: AdditiveCost, requests: Float, tokens: Float, weight: Float, min_separation: float
) -> tuple[str, ...]:
    reasons = []
    if cost.bias_seconds <= 0:
        reasons.append("bias is 0: a step of any size takes some time")
    if cost.theta_seconds[-1] <= 0.03 * cost.bias_seconds:
        reasons.append("flat: batch tokens make no difference")
    log = np.log(tokens)
    _, owner = np.unique(requests.round(), return_inverse=True)
    mass = np.bincount(owner, weights=weight)
    centre = np.bincount(owner, weights=weight * log) / mass
    within = float((weight * (log - centre[owner]) ** 2).sum())
    total = float((weight * (log - (weight * log).sum() / weight.sum()) ** 2).sum())
    if total <= 0 or within / total < min_separation:
        reasons.append("requests and batch tokens rise together: their costs cannot be told apart")
    return tuple(reasons)


def _weighted_median(values: Float, weight: Float) -> float:
    order = np.argsort(values)
    cumulative = np.cumsum(weight[order])
    return float(values[order][np.searchsorted(cumulative, cumulative[-1] / 2)])
