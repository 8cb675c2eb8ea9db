"""The throughput ledger in SQL: added by upsert per window and load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import BigInteger, ColumnElement, Connection, cast, func, literal_column, select

from calibrator.core.throughput_ledger import LEDGER_SUMS, LedgerSums
from calibrator.store import schema
from calibrator.store.additive import add_rows

_table = schema.ledger_sums


@dataclass(frozen=True, slots=True, eq=False)
class LedgerPoint:
    """One step of a series: where it starts, and its ledger by load."""

    start: int
    sums: LedgerSums


def add(connection: Connection, deployment_id: int, windows: Mapping[int, LedgerSums]) -> None:
    """Add ledgers by start of window, in the caller's transaction."""
    keys = [(start, load) for start, sums in windows.items() for load in sums.loads.tolist()]
    if keys:
        sums = np.concatenate([each.sums for each in windows.values()])
        add_rows(connection, _table, deployment_id, np.array(keys, dtype=np.int64), sums)


def query(
    connection: Connection, deployment_id: int, start: float, end: float, step: int | None = None
) -> list[LedgerPoint]:
    """Ledgers of the windows that start in ``[start, end)``, by one aggregate query.

    Parameters
    ----------
    connection
        From :meth:`Store.read`.
    deployment_id
        Whose.
    start, end
        Seconds since 1970.
    step
        Seconds per point, aligned to 1970; None: one point over the whole range.

    Returns
    -------
    Points in order of start; steps without rows are left out. The ledger of everything is the sum of the
    points' ledgers; :meth:`LedgerSums.figures` and :meth:`LedgerSums.by_load` make figures of any of them.
    """
    first: ColumnElement[Any] = literal_column(str(int(start)))
    if step is not None:
        first = _table.c.start - _table.c.start % literal_column(str(int(step)))
    totals = [cast(func.sum(_table.c[name]), BigInteger).label(name) for name in LEDGER_SUMS]
    statement = (
        select(first.label("first"), _table.c.load, *totals)
        .where(
            _table.c.deployment_id == deployment_id,
            _table.c.start >= int(np.ceil(start)),
            _table.c.start < end,
        )
        .group_by(*([] if step is None else [literal_column("first")]), _table.c.load)
    )
    rows: dict[int, list[tuple[int, ...]]] = {}
    for row in connection.execute(statement):
        rows.setdefault(int(row[0]), []).append(tuple(row[1:]))
    return [
        LedgerPoint(
            at, LedgerSums.from_arrays([row[0] for row in rows[at]], [list(row[1:]) for row in rows[at]])
        )
        for at in sorted(rows)
    ]


def total(connection: Connection, deployment_id: int, start: float, end: float) -> LedgerSums:
    """Ledger of everything in ``[start, end)``."""
    points = query(connection, deployment_id, start, end)
    return points[0].sums if points else LedgerSums.zeros()
