"""From fresh rows to window sums and sample candidates: the numeric part of an ingest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from calibrator.core.arms import ArmSums
from calibrator.core.cost import DriftCells
from calibrator.core.document_survival import document_survival
from calibrator.core.drift import DriftSums
from calibrator.core.sample import priority_key
from calibrator.core.survival import survival
from calibrator.core.throughput_ledger import LedgerSums
from calibrator.core.windows import WindowSums, fold_cells
from calibrator.store.bottom_k import Stratum
from calibrator.store.deployments import admit_segments
from calibrator.store.sampling import SAMPLING_BUCKETS, bucket_index
from collectors.arms import fold_arms
from collectors.options import PipelineOptions
from collectors.plan import DeploymentPlan
from collectors.telemetry import EvidenceKey, fold_costs, fold_evidence, fold_ledgers
from serving_adapter.contract import ParameterDocument, Rounds

Float = NDArray[np.float64]
CellKey = tuple[int, str, str]
"""(window start, segment, sampling bucket)"""


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """Rows of one stratum that may enter its sample: indices into the folded rows."""

    rounds: Rounds
    uniform: Float
    arrival: Float
    part: NDArray[np.int64]  # index into DeploymentPlan.rounds: boot, fingerprint, share
    row_number: NDArray[np.int64]
    seen: int


@dataclass(slots=True)
class Folded:
    """Sums and candidates of one deployment's fresh rows."""

    raw: dict[CellKey, WindowSums] = field(default_factory=dict)
    in_force: dict[CellKey, WindowSums] = field(default_factory=dict)
    offers: dict[tuple[str, str], Offer] = field(default_factory=dict)
    arms: dict[str, ArmSums] = field(default_factory=dict)
    evidence: dict[EvidenceKey, DriftSums] = field(default_factory=dict)
    costs: DriftCells = field(default_factory=DriftCells.empty)
    ledgers: dict[int, LedgerSums] = field(default_factory=dict)


def fold_deployment(plan: DeploymentPlan, options: PipelineOptions) -> Folded:
    """Fold raw and in force, cell by cell, and choose who is offered to the sample."""
    folded = Folded(costs=fold_costs(plan, options), ledgers=fold_ledgers(plan, options))
    folded.arms = fold_arms(plan, options.end_of_sequence)
    if not plan.rounds:
        return folded
    rounds = Rounds.concatenate([fresh.rounds for fresh in plan.rounds])
    lengths = [len(fresh.rounds) for fresh in plan.rounds]
    part = np.repeat(np.arange(len(lengths)), lengths)
    keys, cells = _cells(plan, rounds, part, options)

    identity = (np.ones(plan.gamma), np.zeros(plan.gamma))
    raw = survival(rounds.logits, *identity)
    folded.raw = _fold(rounds, raw, cells, keys, options)
    segments = sorted({key[1] for key in keys})
    segment_of_row = np.array([segments.index(key[1]) for key in keys])[cells]
    if not rounds.version.any():
        folded.in_force = folded.raw
        folded.evidence = fold_evidence(rounds, raw, segment_of_row, segments, options)
    else:
        segment_sets = np.array([fresh.segment_sets for fresh in plan.rounds])[part]
        in_force, known = _in_force(rounds, raw, plan.known.parameters, segment_sets)
        served, own = rounds, cells
        if not known.all():
            served, in_force, own = rounds.take(known), in_force[known], cells[known]
            segment_of_row = segment_of_row[known]
        folded.in_force = _fold(served, in_force, own, keys, options)
        folded.evidence = fold_evidence(served, in_force, segment_of_row, segments, options)
    folded.offers = _offers(plan, rounds, part, keys, cells, options)
    return folded


def _cells(
    plan: DeploymentPlan, rounds: Rounds, part: NDArray[np.int64], options: PipelineOptions
) -> tuple[list[CellKey], NDArray[np.int64]]:
    """Cells that have rows, and the index of each row's cell."""
    width = options.window_seconds
    starts = np.array([int(fresh.at) // width * width for fresh in plan.rounds], dtype=np.int64)
    windows, window_of_part = np.unique(starts, return_inverse=True)
    labels = rounds.segments or ("default",)
    used = np.bincount(rounds.segment, minlength=len(labels))
    wanted = [labels[i] for i in np.flatnonzero(used[: len(labels)]).tolist()]
    admitted = admit_segments(plan.known.segments, wanted)
    names = sorted(set(admitted.values()))
    # Labels without rows are given any segment: nothing looks them up.
    segment_of_label = np.array([names.index(admitted.get(label, names[0])) for label in labels])

    buckets = len(SAMPLING_BUCKETS)
    code = (window_of_part[part] * len(names) + segment_of_label[rounds.segment]) * buckets
    code += bucket_index(rounds.sampling)
    present = np.flatnonzero(np.bincount(code, minlength=len(windows) * len(names) * buckets))
    compact = np.zeros(len(windows) * len(names) * buckets, dtype=np.int64)
    compact[present] = np.arange(len(present))
    keys = []
    for each in present.tolist():
        rest, bucket = divmod(each, buckets)
        window, segment = divmod(rest, len(names))
        keys.append((int(windows[window]), names[segment], SAMPLING_BUCKETS[bucket]))
    return keys, compact[code]


def _fold(
    rounds: Rounds, predicted: Float, cells: NDArray[np.int64], keys: list[CellKey], options: PipelineOptions
) -> dict[CellKey, WindowSums]:
    one = cells if len(keys) > 1 else None
    sums = fold_cells(rounds, predicted, one, len(keys), options.end_of_sequence)
    return {key: each for key, each in zip(keys, sums, strict=True) if each.scalars.any()}


def _in_force(
    rounds: Rounds, raw: Float, documents: Mapping[int, ParameterDocument], segment_sets: NDArray[np.bool_]
) -> tuple[Float, NDArray[np.bool_]]:
    """Predictions by the set that served each row, and which rows' version is known.

    The row names its version, the document the sets per segment, and the message says whether its engine
    applied them (``segment_sets``, shape ``[rows]``).
    """
    known = np.ones(len(rounds), dtype=np.bool_)
    first = int(rounds.version[0])
    if first in documents and (rounds.version == first).all():
        return document_survival(documents[first], rounds, segment_sets), known
    predicted = raw.copy(order="F")
    for version in np.unique(rounds.version).tolist():
        if version == 0:
            continue
        mine = rounds.version == version
        if version in documents:
            predicted[mine] = document_survival(documents[version], rounds.take(mine), segment_sets[mine])
        else:
            known[mine] = False
    return predicted, known


def _offers(
    plan: DeploymentPlan,
    rounds: Rounds,
    part: NDArray[np.int64],
    keys: list[CellKey],
    cells: NDArray[np.int64],
    options: PipelineOptions,
) -> dict[tuple[str, str], Offer]:
    uniform = np.concatenate([fresh.uniform for fresh in plan.rounds])
    number = np.concatenate([fresh.numbers for fresh in plan.rounds])
    arrival = np.array([fresh.at for fresh in plan.rounds])
    strata = sorted({key[1:] for key in keys})
    stratum_of_cell = np.array([strata.index(key[1:]) for key in keys])
    stratum_of_row = stratum_of_cell[cells] if len(strata) > 1 else None
    offers = {}
    for i, stratum in enumerate(strata):
        mine = np.arange(len(rounds)) if stratum_of_row is None else np.flatnonzero(stratum_of_row == i)
        seen = len(mine)
        mine = _promising(mine, uniform, arrival[part[mine]], plan.known.strata.get(stratum), options)
        offers[stratum] = Offer(
            rounds.take(mine), uniform[mine], arrival[part[mine]], part[mine], number[mine], seen
        )
    return offers


def _promising(
    rows: NDArray[np.int64],
    uniform: Float,
    arrival: Float,
    stratum: Stratum | None,
    options: PipelineOptions,
) -> NDArray[np.int64]:
    """Rows below the threshold as it was read (it only falls), at most one more than are kept."""
    half_life = options.half_life_seconds if stratum is None else stratum.half_life_seconds
    if stratum is None and len(rows) <= options.sample_rows:
        return rows
    priority = priority_key(uniform[rows], arrival, half_life)
    if stratum is not None:
        below = np.flatnonzero(stratum.wanted(priority))
        rows, priority = rows[below], priority[below]
    if len(rows) > options.sample_rows + 1:
        rows = np.sort(rows[np.argpartition(priority, options.sample_rows)[: options.sample_rows + 1]])
    return rows
