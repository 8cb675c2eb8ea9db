"""Leases: of two services started by mistake, one does the job. Time is the database's, not the pod's."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Double, Table, cast, delete, func, literal_column, or_, select

from calibrator.store import schema
from calibrator.store.upsert import insert_into

_table: Table = schema.leases


def database_now(connection: Connection) -> float:
    """Seconds since 1970 by the clock of the database."""
    return float(connection.execute(select(_now(connection.dialect.name))).scalar_one())


def acquire(connection: Connection, name: str, holder: str, seconds: float) -> float | None:
    """Take the lease, or renew it, for that many seconds from now.

    Returns
    -------
    Until when it is held, or None when somebody else holds it. Take it in a transaction of its own.
    """
    now = _now(connection.dialect.name)
    statement = insert_into(connection.dialect.name, _table).values(
        name=name, holder=holder, acquired_until=now + seconds
    )
    statement = statement.on_conflict_do_update(
        index_elements=["name"],
        set_={"holder": statement.excluded.holder, "acquired_until": statement.excluded.acquired_until},
        where=or_(_table.c.holder == holder, _table.c.acquired_until <= now),
    ).returning(_table.c.acquired_until)
    until = connection.execute(statement).scalar_one_or_none()
    return None if until is None else float(until)


def release(connection: Connection, name: str, holder: str) -> bool:
    """Give the lease back; False when it was not this holder's any more."""
    return bool(
        connection.execute(delete(_table).where(_table.c.name == name, _table.c.holder == holder)).rowcount
    )


def holder_of(connection: Connection, name: str) -> str | None:
    """Who holds the lease now, or None."""
    found = connection.execute(
        select(_table.c.holder).where(
            _table.c.name == name, _table.c.acquired_until > _now(connection.dialect.name)
        )
    ).scalar_one_or_none()
    return None if found is None else str(found)


def _now(dialect: str) -> Any:
    if dialect == "sqlite":
        return literal_column("((julianday('now') - 2440587.5) * 86400.0)", Double)
    return cast(func.extract("epoch", func.clock_timestamp()), Double)
