"""The throughput curve of a deployment, from the steps that its replicas reported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from calibrator.core.cost import CostCells, CurveFit, fit_curve
from calibrator.store import deployments, step_sample
from calibrator.store.store import Store
from serving_adapter.contract import CostCurve

MIN_CHANGE = 0.05
"""Relative change of a measured size that is worth a new version: steps vary by a few per cent anyway."""


COVERED = 1.25
"""How far beyond its ends, as a factor, a curve is believed."""


@dataclass(frozen=True, slots=True, eq=False)
class LiveCurve:
    """What the telemetry says a step costs, and whether that is news.

    ``curve`` is what a document would carry, None while nothing may be published; ``reasons`` say why not.
    ``requests`` is how many ran at a time in the median step: the load to judge value at.
    """

    curve: CostCurve | None
    changed: bool
    requests: int
    reasons: tuple[str, ...]
    fit: CurveFit | None = None
    notes: tuple[str, ...] = field(default_factory=tuple)


def live_curve(
    store: Store,
    deployment: deployments.Deployment,
    now: float,
    in_force: CostCurve | None,
    half_life_seconds: float | None = None,
) -> LiveCurve:
    """Fit the curve to the stored step sample and compare it with the one in force."""
    with store.read() as connection:
        steps = step_sample.load(
            connection,
            deployment.id,
            now,
            fingerprint=deployment.fingerprint,
            half_life_seconds=half_life_seconds,
        )
    if not len(steps):
        return LiveCurve(None, changed=False, requests=1, reasons=("no steps were reported yet",))
    weights = steps.weights / steps.weights.mean()
    order = np.argsort(steps.steps.requests, kind="stable")
    half = np.searchsorted(np.cumsum(weights[order]), weights.sum() / 2)
    requests = max(1, int(steps.steps.requests[order][min(int(half), len(order) - 1)]))
    # Sizes matter alike however often they ran, so every sampled step counts once within its size.
    fit = fit_curve(CostCells.fold(steps.steps, epoch=0, weights=weights))
    if not fit.publishable:
        return LiveCurve(None, changed=False, requests=requests, reasons=tuple(fit.reasons), fit=fit)
    sizes = [int(b) for b, status in zip(fit.sizes, fit.statuses, strict=True) if status == "measured"]
    gap = measured_range(sizes, requests, deployment.gamma)
    if gap:
        told = f"{gap}: other sizes must be tried (profile)"
        return LiveCurve(None, changed=False, requests=requests, reasons=(told,), fit=fit)
    curve = fit.to_contract()
    assert curve is not None
    return LiveCurve(curve, _differs(fit, in_force), requests, (), fit)


def measured_range(sizes: Sequence[int] | NDArray[np.int64], requests: int, gamma: int) -> str:
    """What of this load the measured sizes (ascending) leave out, or nothing.

    A scheduler weighs everything from verifying nothing to verifying all. A curve that was measured only
    where the scheduler happens to stay reads as flat beyond its ends, and would hold it there.
    """
    least, most = requests, requests * (1 + gamma)
    if sizes[0] <= COVERED * least and sizes[-1] * COVERED >= most:
        return ""
    return (
        f"measured from {sizes[0]} to {sizes[-1]} tokens, but {requests} requests may make a batch of "
        f"{least} to {most}"
    )


def _differs(fit: CurveFit, in_force: CostCurve | None) -> bool:
    """Whether a measured size costs clearly more or less than the curve in force says, or is new to it."""
    if in_force is None:
        return True
    sizes = np.asarray(in_force.batch_tokens, dtype=np.float64)
    seconds = np.asarray(in_force.seconds, dtype=np.float64)
    measured = np.array([status == "measured" for status in fit.statuses])
    mine = fit.sizes[measured]
    if not len(mine):
        return False
    if mine.max() > sizes.max():
        return True
    known = np.interp(mine, sizes, seconds)
    beyond_noise = np.maximum(MIN_CHANGE, 3.0 * fit.standard_error[measured])
    return bool((np.abs(fit.seconds[measured] / known - 1.0) > beyond_noise).any())
