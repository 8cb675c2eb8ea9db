"""Every attempt to refresh the parameters, published or not, with its reasons and evidence."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import Connection, insert, select, update

from calibrator.store import schema

ABANDONED, FAILED = "abandoned", "failed"

_table = schema.refreshes


@dataclass(frozen=True, slots=True)
class Refresh:
    """One attempt. ``finished`` and ``outcome`` are None while it runs."""

    id: int
    started: float
    finished: float | None
    outcome: str | None
    reasons: list[str]
    evidence: dict[str, Any]
    version: int | None


def start(connection: Connection, deployment_id: int, at: float) -> int:
    """Note that a refresh begins; return its id."""
    made = connection.execute(
        insert(_table)
        .values(deployment_id=deployment_id, started=at, reasons=[], evidence={})
        .returning(_table.c.id)
    )
    return int(made.scalar_one())


def abandon(connection: Connection, deployment_id: int, at: float) -> int:
    """Close what a service that died left open; return how many. Only the holder of the lease may."""
    return connection.execute(
        update(_table)
        .where(_table.c.deployment_id == deployment_id, _table.c.outcome.is_(None))
        .values(finished=at, outcome=ABANDONED, reasons=["the service that began it did not finish it"])
    ).rowcount


def finish(
    connection: Connection,
    refresh_id: int,
    at: float,
    outcome: str,
    reasons: list[str],
    evidence: dict[str, Any],
    version: int | None = None,
) -> None:
    """Note how it ended. ``evidence`` is JSON: undefined figures are None, never NaN."""
    connection.execute(
        update(_table)
        .where(_table.c.id == refresh_id)
        .values(finished=at, outcome=outcome, reasons=reasons, evidence=evidence, version=version)
    )


def get(connection: Connection, refresh_id: int) -> Refresh | None:
    """Return the refresh of that id, or None."""
    row = connection.execute(
        select(*(_table.c[f.name] for f in fields(Refresh))).where(_table.c.id == refresh_id)
    ).one_or_none()
    return None if row is None else Refresh(*row)


def recent(connection: Connection, deployment_id: int, limit: int = 100) -> list[Refresh]:
    """Newest first."""
    rows = connection.execute(
        select(*(_table.c[f.name] for f in fields(Refresh)))
        .where(_table.c.deployment_id == deployment_id)
        .order_by(_table.c.started.desc(), _table.c.id.desc())
        .limit(limit)
    )
    return [Refresh(*row) for row in rows]
