"""Window sums as arrays: a month of them is one aggregate query, and its answer one copy of numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    LargeBinary,
    cast,
    func,
    literal_column,
    select,
    text,
)

from calibrator.core.windows import BIN_SUMS, SCALARS, WINDOW_BINS, WindowSums
from calibrator.store import schema
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
    first: ColumnElement[Any] = (table.c.start - table.c.start % literal_column(str(int(step)))).label(
        "first"
    )
    where = [table.c.deployment_id == deployment_id, table.c.start >= int(start), table.c.start < int(end)]
    if segment is not None:
        # The id first: a range of (deployment, segment, hour) is then one scan of an index.
        mine = select(schema.segments.c.id).where(
            schema.segments.c.deployment_id == deployment_id, schema.segments.c.name == segment
        )
        where.append(table.c.segment_id == mine.scalar_subquery())
    if sampling is not None:
        where.append(table.c.sampling == sampling)
    totals = [cast(func.sum(table.c[name]), BigInteger) for name in schema.SUM_COLUMNS]
    rows, values = _fetch(connection, [first, table.c.position], totals, where)
    found = WindowSeries.zeros(np.arange(int(start), int(end), int(step)), gamma)
    for (at, position), sums in zip(rows, values, strict=True):
        if position <= gamma:
            _put(found, (int(at) - int(start)) // int(step), position - 1, sums)
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
    totals = [cast(func.sum(table.c[name]), BigInteger) for name in schema.SUM_COLUMNS]
    where = [table.c.start >= int(start), table.c.start < int(end)]
    rows, values = _fetch(connection, [table.c.deployment_id, table.c.position], totals, where)
    found: dict[int, WindowSeries] = {}
    for (deployment_id, position), sums in zip(rows, values, strict=True):
        gamma = gammas.get(deployment_id, 0)
        if position <= gamma:
            mine = found.setdefault(deployment_id, WindowSeries.zeros([start], gamma))
            _put(mine, 0, position - 1, sums)
    return {deployment_id: each.at(0) for deployment_id, each in found.items()}


def _put(found: WindowSeries, point: int, index: int, sums: Integers) -> None:
    found.scalars[point, index] = sums[: len(SCALARS)]
    found.bins[point, index] = sums[len(SCALARS) :].reshape(len(BIN_SUMS), WINDOW_BINS)


def _fetch(
    connection: Connection,
    keys: list[ColumnElement[Any]],
    totals: Sequence[ColumnElement[Any]],
    where: list[ColumnElement[bool]],
) -> tuple[list[tuple[Any, ...]], Integers]:
    """Keys of every group and its sums, shape ``[groups, len(SUM_COLUMNS)]``."""
    groups: list[ColumnElement[Any]] = [literal_column(str(number)) for number in range(1, len(keys) + 1)]
    if connection.dialect.name == "sqlite":
        rows = connection.execute(select(*keys, *totals).where(*where).group_by(*keys)).all()
        values = np.array([row[len(keys) :] for row in rows], dtype=np.int64)
        return [tuple(row[: len(keys)]) for row in rows], values.reshape(len(rows), len(totals))
    connection.execute(text(f"SET LOCAL work_mem = '{_SORT_MEMORY}'"))
    # Over a hundred numbers in one value: making a Python int of each takes as long as adding them up.
    packed: ColumnElement[Any] = func.int8send(totals[0], type_=LargeBinary)
    for each in totals[1:]:
        packed = packed.op("||")(func.int8send(each, type_=LargeBinary))
    rows = connection.execute(select(*keys, packed).where(*where).group_by(*groups)).all()
    blob = b"".join(bytes(row[-1]) for row in rows)
    values = np.frombuffer(blob, dtype=">i8").astype(np.int64).reshape(len(rows), len(totals))
    return [tuple(row[:-1]) for row in rows], values
