"""Bounded weighted samples in SQL: the k rows of smallest priority per stratum (bottom-k).

A row's priority depends on nothing but the row (its numbers and its arrival), so the sample is the same
whoever offers the rows, in whatever order, and the threshold gives every kept row its exact inclusion
probability (:mod:`calibrator.core.sample`). A threshold only ever falls: a row above it was, or would have
been, thrown away. Only a sample that is drawn anew (:mod:`calibrator.store.forgetting`) starts without one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Table, delete, select, update

from calibrator.store.bulk import insert_columns
from calibrator.store.upsert import insert_into

Float = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Stratum:
    """State of one stratum: its half-life is fixed when it is made, for priorities to be comparable."""

    id: int
    half_life_seconds: float
    threshold: float | None
    kept: int
    seen: int

    def wanted(self, priority: Float) -> NDArray[np.bool_]:
        """Which of these priorities may still enter."""
        if self.threshold is None:
            return np.ones(len(priority), dtype=np.bool_)
        return priority < self.threshold

    def admits_more_than(self, earlier: Stratum) -> bool:
        """Whether rows that the state read earlier refused may enter now: the sample was drawn anew."""
        if earlier.threshold is None:
            return False
        return self.threshold is None or self.threshold > earlier.threshold


def open_stratum(
    connection: Connection, state: Table, key: Mapping[str, Any], half_life_seconds: float
) -> Stratum:
    """Return the stratum of that key, made now if there is none."""
    connection.execute(
        insert_into(connection.dialect.name, state)
        .values(**key, half_life_seconds=half_life_seconds, kept=0, seen=0)
        .on_conflict_do_nothing(index_elements=list(key))
    )
    columns = (state.c.id, state.c.half_life_seconds, state.c.threshold, state.c.kept, state.c.seen)
    row = connection.execute(select(*columns).where(*(state.c[n] == v for n, v in key.items()))).one()
    return Stratum(*row)


def keep_smallest(
    connection: Connection,
    state: Table,
    rows: Table,
    stratum: Stratum,
    offered: Mapping[str, Sequence[Any]],
    seen: int,
    limit: int,
) -> Stratum:
    """Insert offered rows and trim the stratum to ``limit``, in the caller's transaction.

    Parameters
    ----------
    connection
        A writing transaction that holds the deployment.
    state, rows
        Tables of strata and of sampled rows.
    stratum
        As read in this transaction.
    offered
        Columns of the rows below the threshold, ``priority`` among them; when more than ``limit + 1`` were
        to be offered, the ``limit + 1`` smallest.
    seen
        Rows that the offer was chosen from.
    limit
        Rows to keep.
    """
    threshold, kept = stratum.threshold, stratum.kept
    count = len(offered["priority"])
    if count:
        insert_columns(connection, rows, {**offered, "stratum_id": [stratum.id] * count})
        kept += count
    if kept > limit:
        cut = connection.execute(
            select(rows.c.priority)
            .where(rows.c.stratum_id == stratum.id)
            .order_by(rows.c.priority.desc())
            .offset(kept - limit - 1)
            .limit(1)
        ).scalar_one()
        threshold = cut if threshold is None else min(threshold, cut)
        kept -= connection.execute(
            delete(rows).where(rows.c.stratum_id == stratum.id, rows.c.priority >= cut)
        ).rowcount
    connection.execute(
        update(state)
        .where(state.c.id == stratum.id)
        .values(threshold=threshold, kept=kept, seen=stratum.seen + seen)
    )
    return Stratum(stratum.id, stratum.half_life_seconds, threshold, kept, stratum.seen + seen)
