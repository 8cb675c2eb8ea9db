"""Refreshes by the page, without the evidence, which is large."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from sqlalchemy import Connection, select

from calibrator.store import schema
from calibrator.store.refreshes import Refresh

_table = schema.refreshes
_COLUMNS = [_table.c[field.name] for field in fields(Refresh)]


def page(
    connection: Connection, deployment_id: int, *, before: int | None = None, limit: int = 100
) -> list[Refresh]:
    """Refreshes with an id below ``before``, newest first; their evidence is left out."""
    columns = [column for column in _COLUMNS if column.name != "evidence"]
    statement = (
        select(*columns)
        .where(_table.c.deployment_id == deployment_id)
        .order_by(_table.c.id.desc())
        .limit(limit)
    )
    if before is not None:
        statement = statement.where(_table.c.id < before)
    return [Refresh(**row._mapping, evidence={}) for row in connection.execute(statement)]


def one(connection: Connection, deployment_id: int, refresh_id: int) -> Refresh | None:
    """One refresh of that deployment with its evidence, or None."""
    row = connection.execute(
        select(*_COLUMNS).where(_table.c.deployment_id == deployment_id, _table.c.id == refresh_id)
    ).one_or_none()
    return None if row is None else Refresh(*row)


def parts(connection: Connection, deployment_id: int, name: str, limit: int) -> list[tuple[int, float, Any]]:
    """(id, finished, that part of the evidence) of the newest refreshes that have one, newest first."""
    part = _table.c.evidence[name]
    rows = connection.execute(
        select(_table.c.id, _table.c.finished, part)
        .where(_table.c.deployment_id == deployment_id, _table.c.finished.is_not(None))
        .order_by(_table.c.id.desc())
        .limit(limit)
    )
    return [(row[0], row[1], row[2]) for row in rows if row[2]]
