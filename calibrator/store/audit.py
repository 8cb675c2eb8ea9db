"""Who changed what, when, from what to what. Appended to, never edited."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import Connection, insert, select, update

from calibrator.store import schema

_table = schema.audit


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One change or attempt. ``status`` is that of the HTTP answer; None when its service died on the way."""

    id: int
    at: float
    subject: str
    role: str
    method: str
    path: str
    status: int | None
    before: Any
    after: Any
    request_id: str


def begin(
    connection: Connection, *, at: float, subject: str, role: str, method: str, path: str, request_id: str
) -> int:
    """Note who is about to do what, before it is done; return the id for :func:`finish`."""
    made = connection.execute(
        insert(_table)
        .values(
            at=at, subject=subject, role=role, method=method, path=path, request_id=request_id,
        )
        .returning(_table.c.id)
    )  # fmt: skip
    return int(made.scalar_one())


def finish(connection: Connection, entry_id: int, status: int, before: Any, after: Any) -> None:
    """Note what came of it; ``before`` and ``after`` are JSON or None."""
    connection.execute(
        update(_table).where(_table.c.id == entry_id).values(status=status, before=before, after=after)
    )


def recent(connection: Connection, limit: int = 100, before_id: int | None = None) -> list[AuditEntry]:
    """Newest first; only entries older than ``before_id`` when it is given."""
    statement = select(*(_table.c[f.name] for f in fields(AuditEntry))).order_by(_table.c.id.desc())
    if before_id is not None:
        statement = statement.where(_table.c.id < before_id)
    return [AuditEntry(*row) for row in connection.execute(statement.limit(limit))]
