"""Window sums in SQL: added by upsert, answered by one aggregate query."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from sqlalchemy import BigInteger, ColumnElement, Connection, Table, cast, func, literal_column, select

from calibrator.core.sums import LARGEST_SUM, SumsOverflowError
from calibrator.core.windows import BIN_SUMS, SCALARS, WINDOW_BINS, WindowSums
from calibrator.store import schema
from calibrator.store.range_sums import adding_up
from calibrator.store.upsert import insert_into

HOUR = 3600
_KEY = ("deployment_id", "start", "segment_id", "sampling", "position")
_POOLED_KEY = ("deployment_id", "start", "position")
_TABLES = {False: (schema.windows, schema.window_hours), True: (schema.raw_windows, schema.raw_window_hours)}
_POOLED = {False: schema.pooled_hours, True: schema.raw_pooled_hours}


@dataclass(frozen=True, slots=True)
class Cell:
    """Sums of one window, segment and sampling bucket, one row per position in the database."""

    start: int
    segment_id: int
    sampling: str
    sums: WindowSums


@dataclass(frozen=True, slots=True)
class WindowPoint:
    """One step of a series: where it starts, what it is of (None: all), and the sums."""

    start: int
    segment: str | None
    sampling: str | None
    sums: WindowSums


def add(connection: Connection, deployment_id: int, cells: Iterable[Cell], *, raw: bool) -> None:
    """Add sums to the windows, to their hours, and to the hours of all segments and buckets together.

    ``raw`` says under what the sums were predicted: the identity, or the parameters in force. Rows are
    written in the order of their key, as every writer does, so that two writers never deadlock.

    Raises
    ------
    SumsOverflowError
        The sums of an hour would grow beyond what can be added up; the transaction must be given up.
    """
    given = list(cells)
    for table, width in zip(_TABLES[raw], (1, HOUR), strict=True):
        merged: dict[tuple[int, int, str], WindowSums] = {}
        for cell in given:
            key = (cell.start - cell.start % width, cell.segment_id, cell.sampling)
            merged[key] = merged[key] + cell.sums if key in merged else cell.sums
        rows = [row for key in sorted(merged) for row in _rows(deployment_id, key, merged[key])]
        if rows:
            connection.execute(_adding(table, connection.dialect.name, _KEY), rows)
    pooled: dict[int, WindowSums] = {}
    for (start, _, _), sums in merged.items():  # by the hour, as the last table has them
        pooled[start] = pooled[start] + sums if start in pooled else sums
    rows = [row for start in sorted(pooled) for row in _pooled_rows(deployment_id, start, pooled[start])]
    if rows:
        connection.execute(_adding(_POOLED[raw], connection.dialect.name, _POOLED_KEY), rows)
        _check_room(connection, _POOLED[raw], deployment_id, sorted(pooled))


def _check_room(connection: Connection, table: Table, deployment_id: int, starts: Sequence[int]) -> None:
    """Refuse sums that are too large: of these two one is the largest, and all cells are part of it."""
    largest = select(func.max(table.c.weight_squared), func.max(table.c.log_loss)).where(
        table.c.deployment_id == deployment_id, table.c.start.in_(starts)
    )
    if max(connection.execute(largest).one()) > LARGEST_SUM:
        raise SumsOverflowError(
            "explore: got more weight (1 / explore) within an hour than its sums hold, "
            "expected a larger exploration probability"
        )


def query(
    connection: Connection,
    deployment_id: int,
    gamma: int,
    start: float,
    end: float,
    step: int | None = None,
    *,
    raw: bool = False,
    segment: str | None = None,
    sampling: str | None = None,
    by_segment: bool = False,
    by_sampling: bool = False,
    bins: bool = True,
) -> list[WindowPoint]:
    """Sums of the windows that start in ``[start, end)``, by one aggregate query.

    Parameters
    ----------
    connection
        From :meth:`Store.read`.
    deployment_id, gamma
        The deployment.
    start, end
        Seconds since 1970. With whole hours (and steps of whole hours) the hourly table answers.
    step
        Seconds per point, aligned to 1970; None: one point over the whole range.
    raw
        Under the identity instead of the parameters in force.
    segment, sampling
        Restrict to one segment or sampling bucket.
    by_segment, by_sampling
        One series for each instead of their sum.
    bins
        False leaves the bin sums zero, and is several times faster.

    Returns
    -------
    Points in order of start, segment and sampling; steps without rows are left out.
    """
    split = by_segment or by_sampling or segment is not None or sampling is not None
    table = table_for(start, end, step, raw=raw, pooled=not split)
    names = schema.SUM_COLUMNS if bins else SCALARS
    first: ColumnElement[Any] = literal_column(str(int(start)))
    if step is not None:
        first = table.c.start - table.c.start % literal_column(str(int(step)))
    keys: list[ColumnElement[Any]] = [first.label("first")]
    if by_segment:
        keys.append(schema.segments.c.name.label("segment"))
    if by_sampling:
        keys.append(table.c.sampling.label("sampling"))
    keys.append(table.c.position)
    totals = [cast(func.sum(table.c[name]), BigInteger).label(name) for name in names]
    statement = select(*keys, *totals).where(
        table.c.deployment_id == deployment_id, table.c.start >= int(np.ceil(start)), table.c.start < end
    )
    if by_segment or segment is not None:
        statement = statement.join(schema.segments, schema.segments.c.id == table.c.segment_id)
    if segment is not None:
        statement = statement.where(schema.segments.c.name == segment)
    if sampling is not None:
        statement = statement.where(table.c.sampling == sampling)
    groups = [key.name for key in keys if not (step is None and key.name == "first")]
    statement = statement.group_by(*(literal_column(name) for name in groups))

    points: dict[tuple[int, str, str], WindowSums] = {}
    width = len(keys)
    with adding_up(start, end):
        rows = connection.execute(statement).all()
    for row in rows:
        named = dict(zip((key.name for key in keys), row[:width], strict=True))
        key = (int(named["first"]), named.get("segment") or "", named.get("sampling") or "")
        sums = points.setdefault(key, WindowSums.zeros(gamma))
        if named["position"] <= gamma:
            _put(sums, named["position"] - 1, row[width:])
    return [
        WindowPoint(key[0], key[1] if by_segment else None, key[2] if by_sampling else None, points[key])
        for key in sorted(points)
    ]


def table_for(start: float, end: float, step: float | None, *, raw: bool, pooled: bool) -> Table:
    """Smallest table that answers: hours where the range is of whole hours, of all segments if pooled."""
    hourly = all(value % HOUR == 0 for value in (start, end, step or 0))
    if hourly and pooled:
        return _POOLED[raw]
    return _TABLES[raw][1 if hourly else 0]


def total(connection: Connection, deployment_id: int, gamma: int, *, raw: bool = False) -> WindowSums:
    """Sums over all time, all segments and all sampling buckets."""
    points = query(connection, deployment_id, gamma, 0, 1 << 52, raw=raw)
    return points[0].sums if points else WindowSums.zeros(gamma)


def _rows(deployment_id: int, key: tuple[int, int, str], sums: WindowSums) -> list[dict[str, Any]]:
    start, segment_id, sampling = key
    return [
        {**row, "segment_id": segment_id, "sampling": sampling}
        for row in _pooled_rows(deployment_id, start, sums)
    ]


def _pooled_rows(deployment_id: int, start: int, sums: WindowSums) -> list[dict[str, Any]]:
    values = np.concatenate([sums.scalars, sums.bins.reshape(sums.gamma, -1)], axis=1).tolist()
    return [
        {
            "deployment_id": deployment_id,
            "start": start,
            "position": position,
            **dict(zip(schema.SUM_COLUMNS, row, strict=True)),
        }
        for position, row in enumerate(values, start=1)
    ]


def _put(sums: WindowSums, index: int, values: Sequence[int]) -> None:
    sums.scalars[index] = values[: len(SCALARS)]
    if len(values) > len(SCALARS):
        bins = np.array(values[len(SCALARS) :], dtype=np.int64)
        sums.bins[index] = bins.reshape(len(BIN_SUMS), WINDOW_BINS)


@lru_cache(maxsize=16)
def _adding(table: Table, dialect: str, key: tuple[str, ...]) -> Any:
    """Build the upsert once: it has over a hundred columns."""
    statement = insert_into(dialect, table)
    return statement.on_conflict_do_update(
        index_elements=list(key),
        set_={name: table.c[name] + statement.excluded[name] for name in schema.SUM_COLUMNS},
    )
