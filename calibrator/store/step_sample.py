"""The bounded sample of step rows per deployment, in strata of batch size.

Sizes that are scheduled rarely are the ones a cost curve knows least about: each size class (powers of
two of ``batch_tokens``) keeps its own rows, so that common sizes do not crowd them out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, select

from calibrator.core.sample import priority_key
from calibrator.store import bottom_k, schema
from calibrator.store.sample import Float, _inclusion
from serving_adapter.contract import Steps
from serving_adapter.contract.steps import STEP_COLUMNS


@dataclass(frozen=True, slots=True, eq=False)
class StepCandidates:
    """Steps offered, as columns of shape ``[steps]`` (see :class:`calibrator.store.sample.Candidates`)."""

    steps: Steps
    uniform: Float
    arrival: Float
    boot_id: NDArray[np.int64]
    step_number: NDArray[np.int64]
    fingerprint: Sequence[str]


@dataclass(frozen=True, slots=True, eq=False)
class StepSample:
    """Sampled steps; ``weights`` are recency over inclusion probability, shape ``[steps]``."""

    steps: Steps
    weights: Float
    arrival: Float
    fingerprint: NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.steps)


def size_class(batch_tokens: NDArray[Any]) -> NDArray[np.int64]:
    """Bits of ``batch_tokens``.

    >>> size_class(np.array([0, 1, 2, 3, 4, 255, 256])).tolist()
    [0, 1, 2, 2, 3, 8, 9]
    """
    return np.frexp(batch_tokens.astype(np.float64))[1].astype(np.int64)


def offer(
    connection: Connection,
    deployment_id: int,
    candidates: StepCandidates,
    half_life_seconds: float,
    limit: int,
) -> None:
    """Offer steps; each size class keeps at most ``limit``, in the caller's transaction."""
    classes = size_class(candidates.steps.batch_tokens)
    for each in np.unique(classes).tolist():
        mine = np.flatnonzero(classes == each)
        key = {"deployment_id": deployment_id, "size_class": each}
        stratum = bottom_k.open_stratum(connection, schema.step_state, key, half_life_seconds)
        priority = priority_key(candidates.uniform[mine], candidates.arrival[mine], stratum.half_life_seconds)
        chosen = np.flatnonzero(stratum.wanted(priority))
        if len(chosen) > limit + 1:
            chosen = chosen[np.argpartition(priority[chosen], limit)[: limit + 1]]
        chosen.sort()
        columns = _as_columns(candidates, mine[chosen], priority[chosen])
        bottom_k.keep_smallest(
            connection, schema.step_state, schema.step_rows, stratum, columns, len(mine), limit
        )


def load(
    connection: Connection,
    deployment_id: int,
    now: float,
    *,
    fingerprint: str | None = None,
    half_life_seconds: float | None = None,
) -> StepSample:
    """Read the sampled steps of a deployment in order of (boot, step number)."""
    rows, state = schema.step_rows, schema.step_state
    statement = (
        select(
            rows.c.arrival,
            rows.c.fingerprint,
            state.c.threshold,
            state.c.half_life_seconds,
            *(rows.c[name] for name in STEP_COLUMNS),
        )
        .join(state, state.c.id == rows.c.stratum_id)
        .where(state.c.deployment_id == deployment_id)
        .order_by(rows.c.boot_id, rows.c.step_number)
    )
    if fingerprint is not None:
        statement = statement.where(rows.c.fingerprint == fingerprint)
    columns: list[Sequence[Any]] = list(zip(*connection.execute(statement), strict=True))
    if not columns:
        columns = [()] * (4 + len(STEP_COLUMNS))
    at = np.array(columns[0], dtype=np.float64)
    drawn = np.array(columns[3], dtype=np.float64)
    recency = np.exp2(-(now - at) / (drawn if half_life_seconds is None else half_life_seconds))
    named = zip(STEP_COLUMNS.items(), columns[4:], strict=True)
    return StepSample(
        steps=Steps.build(**{name: np.array(values, dtype=wire) for (name, wire), values in named}),
        weights=recency / _inclusion(columns[2], at, drawn),
        arrival=at,
        fingerprint=np.array(columns[1], dtype=np.str_),
    )


def _as_columns(
    candidates: StepCandidates, index: NDArray[np.int64], priority: Float
) -> dict[str, Sequence[Any]]:
    steps = candidates.steps.take(index)
    return {
        "priority": priority.tolist(),
        "arrival": candidates.arrival[index].tolist(),
        "boot_id": candidates.boot_id[index].tolist(),
        "step_number": candidates.step_number[index].tolist(),
        "fingerprint": [candidates.fingerprint[i] for i in index.tolist()],
        **{name: getattr(steps, name).tolist() for name in STEP_COLUMNS},
    }
