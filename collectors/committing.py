"""The one transaction of an ingest."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from sqlalchemy import Connection

from calibrator.store import (
    arm_sums,
    boots,
    cost_drift,
    dead_letters,
    deployments,
    drift_sums,
    ledger_sums,
    positions,
    sample,
    step_sample,
    windows,
)
from calibrator.store.boots import BootKey
from calibrator.store.deployments import MAX_SEGMENTS, OTHER_SEGMENT
from calibrator.store.errors import StaleReadError
from calibrator.store.sample import Candidates
from calibrator.store.step_sample import StepCandidates
from calibrator.store.windows import Cell
from collectors.folding import Folded
from collectors.options import PipelineOptions
from collectors.plan import DeploymentPlan, Plan
from serving_adapter.contract import Steps

Moves = Mapping[tuple[str, int], tuple[int | None, int]]
"""(topic, partition) -> (expected position, next position)"""


def write_plan(
    connection: Connection,
    plan: Plan,
    folded: Mapping[str, Folded],
    moves: Moves,
    now: float,
    options: PipelineOptions,
) -> None:
    """Write everything that a batch of messages changes, in the caller's transaction.

    1. register new deployments, and hold all of them, in order of id: writers take turns from here on
    2. move the positions by compare-and-set: a collector that lost its partition fails here
    3. per deployment: store the boots by compare-and-set, take on segments, add the sums of windows, drift,
       step costs and ledger, offer rows and steps to the samples
    4. list the refused messages

    Raises
    ------
    FencedError, StaleReadError
        Nothing of this may be kept; the caller's transaction rolls back.
    """
    ids = _hold_deployments(connection, plan, now)
    for (topic, partition), (expected, after) in sorted(moves.items()):
        positions.advance(connection, options.group, topic, partition, expected, after, now)
    for name, own in sorted(ids.items()):
        _write_deployment(connection, own, plan.deployments[name], folded[name], options)
    dead_letters.append(connection, plan.letters, options.dead_letters)


def _hold_deployments(connection: Connection, plan: Plan, now: float) -> dict[str, int]:
    ids = {}
    for name, each in sorted(plan.deployments.items()):
        if each.known.deployment is not None:
            ids[name] = each.known.deployment.id
        elif each.gamma:
            stored = deployments.register(connection, name, each.gamma, each.fingerprint, now)
            if stored.gamma != each.gamma:
                raise StaleReadError(f"deployment {name} was registered with gamma {stored.gamma} meanwhile")
            ids[name] = stored.id
    if ids:
        deployments.lock(connection, ids.values())
    return ids


def _write_deployment(
    connection: Connection, own: int, plan: DeploymentPlan, folded: Folded, options: PipelineOptions
) -> None:
    boot_ids = {key: boots.save(connection, own, boot) for key, boot in sorted(plan.boots.items())}
    segments = _take_on_segments(connection, own, plan, folded)
    for raw, sums in ((True, folded.raw), (False, folded.in_force)):
        cells = [
            Cell(start, segments[segment], sampling, each)
            for (start, segment, sampling), each in sums.items()
        ]
        windows.add(connection, own, cells, raw=raw)
    evidence = {
        (version, segments[segment]): sums for (version, segment), sums in sorted(folded.evidence.items())
    }
    drift_sums.add(connection, own, evidence)
    cost_drift.add(connection, own, folded.costs)
    ledger_sums.add(connection, own, folded.ledgers)
    if plan.known.trial is not None:
        arm_sums.add(connection, plan.known.trial.rollout_id, folded.arms)
    _offer_rounds(connection, own, plan, folded, segments, boot_ids, options)
    _offer_steps(connection, own, plan, boot_ids, options)


def _take_on_segments(
    connection: Connection, own: int, plan: DeploymentPlan, folded: Folded
) -> dict[str, int]:
    wanted = {segment for _, segment, _ in folded.raw} | {segment for segment, _ in folded.offers}
    new = wanted - plan.known.segments.keys()
    if not new:
        return plan.known.segments
    segments = deployments.add_segments(connection, own, new)
    if len(segments) > MAX_SEGMENTS - (OTHER_SEGMENT not in segments):
        raise StaleReadError("segments were taken on by another collector")
    return segments


def _offer_rounds(
    connection: Connection,
    own: int,
    plan: DeploymentPlan,
    folded: Folded,
    segments: Mapping[str, int],
    boot_ids: Mapping[BootKey, int],
    options: PipelineOptions,
) -> None:
    for (segment, sampling), offer in sorted(folded.offers.items()):
        stratum = sample.open_stratum(connection, own, segments[segment], sampling, options.half_life_seconds)
        known = plan.known.strata.get((segment, sampling))
        if known is not None and stratum.admits_more_than(known):
            # Rows were chosen by a threshold that no longer holds: others may be in the sample now.
            raise StaleReadError("the sample was drawn anew meanwhile")
        origins = [plan.rounds[i] for i in offer.part.tolist()]
        candidates = Candidates(
            rounds=offer.rounds,
            uniform=offer.uniform,
            arrival=offer.arrival,
            boot_id=np.array([boot_ids[origin.key] for origin in origins], dtype=np.int64),
            row_number=offer.row_number,
            fingerprint=[origin.fingerprint for origin in origins],
            share=np.array([origin.share for origin in origins]),
        )
        sample.offer(connection, stratum, candidates, offer.seen, options.sample_rows)


def _offer_steps(
    connection: Connection,
    own: int,
    plan: DeploymentPlan,
    boot_ids: Mapping[BootKey, int],
    options: PipelineOptions,
) -> None:
    if not plan.steps:
        return
    lengths = [len(fresh.steps) for fresh in plan.steps]
    origins = [fresh for fresh, length in zip(plan.steps, lengths, strict=True) for _ in range(length)]
    candidates = StepCandidates(
        steps=Steps.concatenate([fresh.steps for fresh in plan.steps]),
        uniform=np.concatenate([fresh.uniform for fresh in plan.steps]),
        arrival=np.array([origin.at for origin in origins]),
        boot_id=np.array([boot_ids[origin.key] for origin in origins], dtype=np.int64),
        step_number=np.concatenate([fresh.numbers for fresh in plan.steps]),
        fingerprint=[origin.fingerprint for origin in origins],
    )
    step_sample.offer(connection, own, candidates, options.half_life_seconds, options.step_rows)
