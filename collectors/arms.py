"""The arms of a running rollout: its candidate against its control, on the fresh rows of an ingest."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from calibrator.core.arms import STEP_BLOCK, ArmSums, fold_rounds, fold_steps
from calibrator.core.document_survival import document_survival
from calibrator.core.labels import EndOfSequence
from calibrator.core.survival import survival
from calibrator.store.rollouts import CANARY, SHADOW
from collectors.plan import DeploymentPlan, FreshRounds, FreshSteps
from collectors.snapshot import Trial
from serving_adapter.contract import ParameterDocument, Rounds
from serving_adapter.step_cost import StepCost

CONTROL = "control"


def fold_arms(plan: DeploymentPlan, end_of_sequence: EndOfSequence) -> dict[str, ArmSums]:
    """Sum fresh rows by arm; nothing while no rollout is running.

    In shadow every row counts, whatever served it. In canary rows count by the version that served them, and
    steps by the version of the rounds that came with them. Only rows from after the stage began count, of the
    engine that the candidate is for.
    """
    trial = plan.known.trial
    if trial is None:
        return {}
    arms: dict[str, ArmSums] = {}
    for fresh in plan.rounds:
        if not _counts(fresh, trial):
            continue
        for arm, rounds in _by_arm(fresh.rounds, trial):
            sets = np.full(len(rounds), fresh.segment_sets)
            sums = fold_rounds(
                rounds,
                _predicted(trial.control, rounds, sets),
                _predicted(trial.candidate, rounds, sets),
                end_of_sequence,
            )
            arms[arm] = arms.get(arm, ArmSums.zeros()) + sums
    if trial.stage == CANARY:
        cost = _reference(trial)
        for steps in plan.steps:
            if not _counts(steps, trial):
                continue
            arm = _arm_of(steps.version, trial)
            if arm:
                arms[arm] = arms.get(arm, ArmSums.zeros()) + _fold_steps(steps, cost, plan.gamma)
    return arms


def _counts(fresh: FreshRounds | FreshSteps, trial: Trial) -> bool:
    """Whether rows are of the stage under way and of an engine that the candidate is for."""
    return fresh.at >= trial.since and trial.candidate.fingerprint in ("", fresh.fingerprint)


def _by_arm(rounds: Rounds, trial: Trial) -> list[tuple[str, Rounds]]:
    if trial.stage == SHADOW:
        return [(SHADOW, rounds)]
    chosen = []
    for version in np.unique(rounds.version).tolist():
        arm = _arm_of(version, trial)
        if arm:
            chosen.append((arm, rounds.take(rounds.version == version)))
    return chosen


def _arm_of(version: int, trial: Trial) -> str:
    if version == trial.candidate.version:
        return CANARY
    return CONTROL if version == trial.control_version else ""


def _predicted(
    document: ParameterDocument | None, rounds: Rounds, segment_sets: NDArray[np.bool_]
) -> NDArray[np.float64]:
    if document is None:
        return survival(rounds.logits, np.ones(rounds.gamma), np.zeros(rounds.gamma))
    return document_survival(document, rounds, segment_sets)


def _reference(trial: Trial) -> StepCost | None:
    """One curve for both arms: whose it is does not matter, that it is the same does."""
    of_control = None if trial.control is None else StepCost.from_curve(trial.control.cost)
    return of_control or StepCost.from_curve(trial.candidate.cost)


def _fold_steps(fresh: FreshSteps, cost: StepCost | None, gamma: int) -> ArmSums:
    """Relate steps to what their requests would take if everything were verified.

    That takes the load out, which is not the candidate's doing, and leaves in how much it verifies, which is.
    Without any curve plain seconds are compared: then both arms should be loaded alike.
    """
    steps = fresh.steps
    full = np.maximum(steps.requests.astype(np.float64), 1.0) * (1 + gamma)
    reference = np.ones(len(steps)) if cost is None else cost.seconds(full)
    seed = int.from_bytes(hashlib.sha256("\0".join(fresh.key).encode()).digest()[:8], "little")
    keys = np.uint64(seed) + (fresh.numbers // STEP_BLOCK).astype(np.uint64)
    return fold_steps(steps.step_seconds, reference, keys)
