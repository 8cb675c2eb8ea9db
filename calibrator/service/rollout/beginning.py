"""The beginning of a rollout, in the transaction of whoever begins it."""

from __future__ import annotations

import math

import msgspec
from sqlalchemy import Connection

from calibrator.core.canary import Rules
from calibrator.service.deployment_settings import RolloutSettings
from calibrator.store import arm_sums, parameters, rollouts
from calibrator.store.deployments import Deployment
from calibrator.store.rollouts import CANARY, SHADOW, Rollout
from serving_adapter.contract import ContractError, ParameterDocument


def begin(
    connection: Connection,
    deployment: Deployment,
    document: ParameterDocument,
    settings: RolloutSettings,
    *,
    at: float,
    actor: str,
    reason: str,
    stage: str | None = None,
    share: float | None = None,
) -> Rollout:
    """Store a sealed document as a candidate and put it on trial; the controller does the rest.

    Parameters
    ----------
    connection
        From :meth:`Store.write`.
    deployment, document
        Whose, and what; its version is new.
    settings
        The deployment's; they hold for the whole rollout, whatever is set later.
    at
        Seconds since 1970.
    actor, reason
        Who begins, and why.
    stage, share
        Instead of what ``settings`` say.

    Raises
    ------
    ContractError
        The stage or the share makes no sense.
    ConflictError
        Another rollout is running, or the version exists.
    """
    chosen = stage or (SHADOW if settings.shadow_rounds else CANARY)
    if chosen not in (SHADOW, CANARY):
        raise ContractError("stage", stage, f"{SHADOW} or {CANARY}")
    part = settings.share if share is None else share
    if not (math.isfinite(part) and 0 < part <= 1):
        raise ContractError("share", share, "in (0, 1]")
    control = parameters.in_force(connection, deployment.id)
    rollout = rollouts.start(
        connection,
        deployment.id,
        version=document.version,
        control_version=control.document.version if control else 0,
        stage=chosen,
        share=part,
        rules=msgspec.to_builtins(settings),
        at=at,
        reason=reason,
        actor=actor,
    )
    parameters.append(connection, deployment.id, document, at, chosen)
    arm_sums.forget(connection, deployment.id)
    return rollout


def settings_of(rollout: Rollout) -> RolloutSettings:
    """Settings that the rollout began with."""
    return msgspec.convert(rollout.rules, RolloutSettings)


def rules_of(rollout: Rollout) -> Rules:
    """Rules of the decision. A deployment that has no shadow by choice, and needs one, has a long one."""
    settings = settings_of(rollout)
    return Rules(
        shadow_rounds=settings.shadow_rounds or settings.canary_rounds,
        canary_rounds=settings.canary_rounds,
        confidence=settings.confidence,
        acceptance_tolerance=settings.acceptance_tolerance,
        calibration_tolerance=settings.calibration_tolerance,
        step_time_tolerance=settings.step_time_tolerance,
    )
