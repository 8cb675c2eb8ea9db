"""The throughput curve: the one in force, what telemetry says now, and how far apart they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calibrator.core.cost import AdditiveFit, CostCells, DriftFigures, fit_additive
from calibrator.service.curves import LiveCurve, live_curve
from calibrator.store import cost_drift, parameters, step_sample
from calibrator.store.deployments import Deployment
from calibrator.store.store import Store
from serving_adapter.contract import CostCurve, Steps

MAX_SAMPLES = 500
DRIFT_SECONDS = 3600.0


@dataclass(frozen=True, slots=True, eq=False)
class CurveReading:
    """Everything about the step times of a deployment.

    ``version`` and ``in_force`` are of the newest parameter document; ``samples`` are at most
    :data:`MAX_SAMPLES` of the sampled steps, spread over sizes as the sample is.
    """

    version: int | None
    in_force: CostCurve | None
    live: LiveCurve
    samples: Steps
    additive: AdditiveFit | None
    drift: list[DriftFigures]


def read_curve(store: Store, deployment: Deployment, now: float) -> CurveReading:
    """Fit the stored step sample as a refresh would, and compare it with what is in force."""
    with store.read() as connection:
        latest = parameters.in_force(connection, deployment.id)
        drift = cost_drift.figures(connection, deployment.id, now - DRIFT_SECONDS, now + 1.0)
        sampled = step_sample.load(connection, deployment.id, now, fingerprint=deployment.fingerprint)
    in_force = latest.document.cost if latest else None
    live = live_curve(store, deployment, now, in_force)
    additive = None
    if len(sampled):
        weights = sampled.weights / sampled.weights.mean()
        additive = fit_additive(CostCells.fold(sampled.steps, epoch=0, weights=weights))
    chosen = np.unique(np.linspace(0, max(len(sampled) - 1, 0), min(len(sampled), MAX_SAMPLES)).astype(int))
    return CurveReading(
        version=latest.document.version if latest else None,
        in_force=in_force,
        live=live,
        samples=sampled.steps.take(chosen) if len(sampled) else sampled.steps,
        additive=additive,
        drift=drift,
    )
