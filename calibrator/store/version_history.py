"""Parameter versions by the page, without the documents that a list does not show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select

from calibrator.store import schema

_table = schema.parameter_versions
_SHOWN = ("previous", "form", "temperatures", "offsets", "explore", "evidence")
"""Parts of a document that a list shows; the cost curve is most of it, and is left out."""


@dataclass(frozen=True, slots=True)
class VersionRow:
    """One version; ``document`` holds the parts that a list shows, or everything."""

    version: int
    state: str
    created_at: float
    document: dict[str, Any]


def page(
    connection: Connection, deployment_id: int, *, before: int | None = None, limit: int = 100
) -> list[VersionRow]:
    """Versions below ``before``, highest first."""
    parts = [_table.c.document[name].label(name) for name in _SHOWN]
    statement = (
        select(_table.c.version, _table.c.state, _table.c.created_at, *parts)
        .where(_table.c.deployment_id == deployment_id)
        .order_by(_table.c.version.desc())
        .limit(limit)
    )
    if before is not None:
        statement = statement.where(_table.c.version < before)
    return [
        VersionRow(row[0], row[1], row[2], dict(zip(_SHOWN, row[3:], strict=True)))
        for row in connection.execute(statement)
    ]


def one(connection: Connection, deployment_id: int, version: int) -> VersionRow | None:
    """One version with its whole document, or None."""
    row = connection.execute(
        select(_table.c.version, _table.c.state, _table.c.created_at, _table.c.document).where(
            _table.c.deployment_id == deployment_id, _table.c.version == version
        )
    ).one_or_none()
    return None if row is None else VersionRow(*row)
