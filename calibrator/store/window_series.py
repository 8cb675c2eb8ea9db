"""Window sums as arrays: a month of them is one aggregate query, and its answer one copy of numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, TextClause, text

from calibrator.core.windows import BIN_SUMS, SCALARS, WINDOW_BINS, WindowSums
from calibrator.store import schema
from calibrator.store.range_sums import adding_up
from calibrator.store.windows import table_for

Integers = NDArray[np.int64]

_SORT_MEMORY = "64MB"
"""Groups of over a hundred sums do not fit PostgreSQL's default, and sorting them on disk takes longer than
reading them."""


@dataclass(frozen=True, slots=True, eq=False)
class WindowSeries:
    """Sums per point and position.

    ``starts`` has shape ``[points]`` (seconds since 1970), ``scalars`` ``[points, gamma, len(SCALARS)]`` and
    ``bins`` ``[points, gamma, len(BIN_SUMS), WINDOW_BINS]``, as in ``WindowSums``.
    """

    starts: Integers
    scalars: Integers
    bins: Integers

    @classmethod
    def zeros(cls, starts: Sequence[int] | Integers, gamma: int) -> Self:
        """Points without rows."""
        at = np.asarray(starts, dtype=np.int64)
        return cls(
            at,
            np.zeros((len(at), gamma, len(SCALARS)), dtype=np.int64),
            np.zeros((len(at), gamma, len(BIN_SUMS), WINDOW_BINS), dtype=np.int64),
        )

    def __len__(self) -> int:
        return len(self.starts)

    def at(self, point: int) -> WindowSums:
        """Sums of one point."""
        return WindowSums(self.scalars[point], self.bins[point])


def series(
    connection: Connection,
    deployment_id: int,
    gamma: int,
    start: int,
    end: int,
    step: int,
    *,
    raw: bool = False,
    segment: str | None = None,
    sampling: str | None = None,
) -> WindowSeries:
    """Sums of every step of a range, by one aggregate query.

    Parameters
    ----------
    connection
        From :meth:`Store.read`.
    deployment_id, gamma
        The deployment.
    start, end, step
        Seconds since 1970, ``start`` and ``end`` multiples of ``step``. Whole hours are answered by the
        hourly tables.
    raw
        Under the identity instead of the parameters in force.
    segment, sampling
        Restrict to one segment or sampling bucket.

    Returns
    -------
    A point per step, zeros where there are no rows.
    """
    table = table_for(start, end, step, raw=raw, pooled=segment is None and sampling is None)
    where = ["deployment_id = :deployment"]
    given: dict[str, Any] = {
        "deployment": deployment_id,
        "start": int(start),
        "end": int(end),
        "step": int(step),
    }
    if segment is not None:
        # The id first: a range of (deployment, segment, hour) is then one scan of an index.
        where.append(
            "segment_id = (SELECT id FROM segments WHERE deployment_id = :deployment AND name = :segment)"
        )
        given["segment"] = segment
    if sampling is not None:
        where.append("sampling = :sampling")
        given["sampling"] = sampling
    statement = _aggregate(connection.dialect.name, table.name, "start - start % :step", tuple(where))
    found = WindowSeries.zeros(np.arange(int(start), int(end), int(step)), gamma)
    with adding_up(start, end):
        first, position, sums = _fetch(connection, statement, given)
    kept = position <= gamma
    _put(found, (first[kept] - int(start)) // int(step), position[kept] - 1, sums[kept])
    return found


def of_deployments(
    connection: Connection, gammas: Mapping[int, int], start: int, end: int, *, raw: bool = False
) -> dict[int, WindowSums]:
    """Sums of many deployments over whole hours, by one query.

    Parameters
    ----------
    gammas
        Deployment id -> gamma.
    start, end
        Seconds since 1970, whole hours.

    Returns
    -------
    Deployment id -> sums; deployments without rows are left out.
    """
    table = table_for(start, end, None, raw=raw, pooled=True)
    statement = _aggregate(connection.dialect.name, table.name, "deployment_id", ())
    with adding_up(start, end):
        owner, position, sums = _fetch(connection, statement, {"start": int(start), "end": int(end)})
    found = {}
    for deployment_id in np.unique(owner).tolist():
        gamma = gammas.get(deployment_id)
        if gamma is None:
            continue
        mine = (owner == deployment_id) & (position <= gamma)
        alone = WindowSeries.zeros([start], gamma)
        _put(alone, np.zeros(int(mine.sum()), dtype=np.int64), position[mine] - 1, sums[mine])
        found[deployment_id] = alone.at(0)
    return found


def _put(found: WindowSeries, point: Integers, index: Integers, sums: Integers) -> None:
    found.scalars[point, index] = sums[:, : len(SCALARS)]
    found.bins[point, index] = sums[:, len(SCALARS) :].reshape(-1, len(BIN_SUMS), WINDOW_BINS)


@lru_cache(maxsize=64)
def _aggregate(dialect: str, table: str, first: str, where: tuple[str, ...]) -> TextClause:
    """Write the query once: SQLAlchemy takes longer to build a hundred sums than Python to read them."""
    sums = [f"CAST(sum({name}) AS BIGINT)" for name in schema.SUM_COLUMNS]
    # A hundred numbers in one value: making a Python int of each takes as long as adding them up.
    packed = " || ".join(f"int8send({each})" for each in sums)
    shown = ", ".join(sums) if dialect == "sqlite" else packed
    restricted = " AND ".join((*where, "start >= :start", "start < :end"))
    return text(
        f'SELECT {first} AS first, "position", {shown} FROM {table} WHERE {restricted} GROUP BY 1, 2'  # noqa: S608
    )


def _fetch(
    connection: Connection, statement: TextClause, given: Mapping[str, Any]
) -> tuple[Integers, Integers, Integers]:
    """First key, position and sums of every group, shapes ``[groups]`` and ``[groups, len(SUM_COLUMNS)]``."""
    postgresql = connection.dialect.name != "sqlite"
    if postgresql:
        connection.execute(text(f"SET LOCAL work_mem = '{_SORT_MEMORY}'"))
    rows = connection.execute(statement, dict(given)).all()
    if postgresql:
        values = np.frombuffer(b"".join(row[2] for row in rows), dtype=">i8").astype(np.int64)
    else:
        values = np.array([row[2:] for row in rows], dtype=np.int64)
    keys = np.array([row[:2] for row in rows], dtype=np.int64).reshape(-1, 2)
    return keys[:, 0], keys[:, 1], values.reshape(len(rows), len(schema.SUM_COLUMNS))
