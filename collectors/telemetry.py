"""Evidence of drift, step costs and the throughput ledger of one deployment's fresh rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from calibrator.core.cost import DriftCells
from calibrator.core.drift import DriftSums, fold_drift
from calibrator.core.throughput_ledger import LedgerEntry, LedgerSums, fold_ledger
from collectors.options import PipelineOptions
from collectors.plan import DeploymentPlan
from serving_adapter.contract import Rounds, Steps

EvidenceKey = tuple[int, str]
"""(version, segment)"""


def fold_evidence(
    rounds: Rounds,
    predicted: NDArray[np.float64],
    segment_of_row: NDArray[np.int64],
    segments: Sequence[str],
    options: PipelineOptions,
) -> dict[EvidenceKey, DriftSums]:
    """Sum evidence per version that served the rows and segment.

    Evidence is about the set that predicted: a replica that is late with its rows, or with taking a new
    version, bears witness on the old one.

    Parameters
    ----------
    rounds, predicted
        Rows of known versions and their predictions in force, shape ``[rows, gamma]``.
    segment_of_row
        Index into ``segments``, shape ``[rows]``.
    segments
        Names.
    options
        ``end_of_sequence`` is used. The tolerance is that of the default rules: stored evidence belongs
        to one tolerance for ever.
    """
    if not len(rounds):
        return {}
    first = rounds.version[0]
    versions = np.array([first]) if (rounds.version == first).all() else np.unique(rounds.version)
    cells: NDArray[np.int64] | None = segment_of_row
    if len(versions) > 1:
        cells = np.searchsorted(versions, rounds.version) * len(segments) + segment_of_row
    elif len(segments) == 1:
        cells = None
    sums = fold_drift(rounds, predicted, cells, len(versions) * len(segments), None, options.end_of_sequence)
    keys = [(version, segment) for version in versions.tolist() for segment in segments]
    return {key: each for key, each in zip(keys, sums, strict=True) if each.drafted.any()}


def fold_costs(plan: DeploymentPlan, options: PipelineOptions) -> DriftCells:
    """Count fresh steps by measured over predicted time and window."""
    if not plan.steps:
        return DriftCells.empty()
    starts = [window_start(fresh.at, options) for fresh in plan.steps]
    epoch = np.repeat(starts, [len(fresh.steps) for fresh in plan.steps])
    return DriftCells.fold(Steps.concatenate([fresh.steps for fresh in plan.steps]), epoch)


def fold_ledgers(plan: DeploymentPlan, options: PipelineOptions) -> dict[int, LedgerSums]:
    """Enter messages with fresh rounds or steps into the ledger of their window."""
    entries: dict[int, list[LedgerEntry]] = {}
    for message in plan.messages:
        entries.setdefault(window_start(message.at, options), []).append(message.entry)
    return {start: fold_ledger(each) for start, each in sorted(entries.items())}


def window_start(at: float, options: PipelineOptions) -> int:
    """Start of the window that a time falls in."""
    return int(at) // options.window_seconds * options.window_seconds
