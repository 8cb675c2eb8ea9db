"""What a refresh rests on: rows and their weights, what was published, how the engine is loaded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from calibrator.service import recency
from calibrator.service.deployment_settings import DeploymentSettings
from calibrator.service.exploration import recent_steps
from calibrator.service.recency import Forgetting
from calibrator.store import parameters, rollouts, sample
from calibrator.store.deployments import Deployment
from calibrator.store.parameters import ParameterVersion
from calibrator.store.rollouts import Rollout
from calibrator.store.sample import WeightedSample
from calibrator.store.step_sample import StepSample
from serving_adapter.contract import ParameterDocument

Float = NDArray[np.float64]

MAX_HISTORY = 50


@dataclass(frozen=True, slots=True, eq=False)
class Basis:
    """Read in one transaction.

    ``rows`` are of the deployment's fingerprint and not forgotten; ``weights`` are theirs, with a mean of
    one; ``history`` are the versions that came into force, highest first; ``rollout`` is the
    one under way.
    """

    rows: WeightedSample
    weights: Float
    forgotten: int
    forgetting: Forgetting
    history: list[ParameterVersion]
    steps: StepSample
    rollout: Rollout | None

    @property
    def previous(self) -> ParameterDocument | None:
        """The version in force."""
        return self.history[0].document if self.history else None


def load_basis(
    connection: Connection,
    deployment: Deployment,
    settings: DeploymentSettings,
    now: float,
    half_life_seconds: float | None,
) -> Basis:
    """Read everything. ``half_life_seconds`` weighs rows by age; None keeps that of the strata."""
    rows = sample.load(
        connection,
        deployment.id,
        deployment.gamma,
        now,
        fingerprint=deployment.fingerprint,
        half_life_seconds=half_life_seconds,
    )
    forgetting = recency.look(connection, deployment, settings.recency, now)
    kept = recency.kept(rows, forgetting)
    forgotten = int((~kept).sum())
    if forgotten:
        rows = rows.take(kept)
    return Basis(
        rows=rows,
        # Weights matter relative to each other only; a mean of one keeps figures readable.
        weights=rows.weights / rows.weights.mean() if len(rows) else rows.weights,
        forgotten=forgotten,
        forgetting=forgetting,
        history=parameters.history(connection, deployment.id, candidates=False, limit=MAX_HISTORY),
        steps=recent_steps(connection, deployment, now),
        rollout=rollouts.running(connection, deployment.id),
    )
