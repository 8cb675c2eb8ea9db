"""Deployments and their segments."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, func, select, update

from calibrator.store import schema
from calibrator.store.upsert import insert_into

MAX_SEGMENTS = 64
"""Segments of one deployment, the last resort included: labels are an operator's, and bounded."""
OTHER_SEGMENT = "other"

_table = schema.deployments


@dataclass(frozen=True, slots=True)
class Deployment:
    """One target, drafter and engine configuration, served by any number of replicas."""

    id: int
    name: str
    gamma: int
    fingerprint: str
    settings: dict[str, Any]
    created_at: float
    frozen: bool


def _deployment(row: Row[Any]) -> Deployment:
    return Deployment(**row._mapping)


def register(connection: Connection, name: str, gamma: int, fingerprint: str, at: float) -> Deployment:
    """Return the deployment of that name, made now if there is none.

    What exists already is left as it is: compare ``gamma`` of the result.
    """
    connection.execute(
        insert_into(connection.dialect.name, _table)
        .values(name=name, gamma=gamma, fingerprint=fingerprint, settings={}, created_at=at)
        .on_conflict_do_nothing(index_elements=["name"])
    )
    return _deployment(connection.execute(select(_table).where(_table.c.name == name)).one())


def get(connection: Connection, name: str) -> Deployment | None:
    """Return the deployment of that name, or None."""
    row = connection.execute(select(_table).where(_table.c.name == name)).one_or_none()
    return None if row is None else _deployment(row)


def by_id(connection: Connection, deployment_id: int) -> Deployment | None:
    """Return the deployment of that id, or None."""
    row = connection.execute(select(_table).where(_table.c.id == deployment_id)).one_or_none()
    return None if row is None else _deployment(row)


def named(connection: Connection, names: Iterable[str]) -> dict[str, Deployment]:
    """Deployments of these names, those that exist."""
    rows = connection.execute(select(_table).where(_table.c.name.in_(sorted(set(names)))))
    return {row.name: _deployment(row) for row in rows}


def every(connection: Connection) -> list[Deployment]:
    """All deployments, by name."""
    return [_deployment(row) for row in connection.execute(select(_table).order_by(_table.c.name))]


def count(connection: Connection) -> int:
    """Count the deployments."""
    return int(connection.execute(select(func.count()).select_from(_table)).scalar_one())


def lock(connection: Connection, deployment_ids: Iterable[int]) -> None:
    """Hold these deployments until the transaction ends, in one order, so that writers never deadlock.

    On SQLite a writing transaction holds the whole database already.
    """
    if connection.dialect.name == "sqlite":
        return
    connection.execute(
        select(_table.c.id)
        .where(_table.c.id.in_(sorted(set(deployment_ids))))
        .order_by(_table.c.id)
        .with_for_update(key_share=True)
    ).all()


def set_frozen(connection: Connection, deployment_id: int, frozen: bool) -> None:
    """Hold (or release) the parameters in force: a frozen deployment is measured, not refreshed."""
    connection.execute(update(_table).where(_table.c.id == deployment_id).values(frozen=frozen))


def set_fingerprint(connection: Connection, deployment_id: int, fingerprint: str) -> None:
    """Name the fingerprint that evidence is taken from."""
    connection.execute(update(_table).where(_table.c.id == deployment_id).values(fingerprint=fingerprint))


def set_settings(connection: Connection, deployment_id: int, settings: dict[str, Any]) -> None:
    """Replace the settings."""
    connection.execute(update(_table).where(_table.c.id == deployment_id).values(settings=settings))


def segments(connection: Connection, deployment_id: int) -> dict[str, int]:
    """Segment name -> id."""
    table = schema.segments
    rows = connection.execute(select(table.c.name, table.c.id).where(table.c.deployment_id == deployment_id))
    return {row.name: row.id for row in rows}


def add_segments(connection: Connection, deployment_id: int, names: Iterable[str]) -> dict[str, int]:
    """Add segments that are not there yet; return all, name -> id. The caller keeps the bound."""
    rows = [{"deployment_id": deployment_id, "name": name} for name in sorted(set(names))]
    if rows:
        statement = insert_into(connection.dialect.name, schema.segments).on_conflict_do_nothing(
            index_elements=["deployment_id", "name"]
        )
        connection.execute(statement, rows)
    return segments(connection, deployment_id)


def admit_segments(known: Iterable[str], wanted: Iterable[str]) -> dict[str, str]:
    """Decide which segment each wanted label is counted under.

    Known labels keep their name; new ones are taken on, first come, until :data:`MAX_SEGMENTS` is reached
    (one place is kept for ``other``); the rest is ``other``, as is a label that cannot be printed.
    """
    taken = {*known, OTHER_SEGMENT}
    admitted = {}
    for name in wanted:
        if name not in taken and (len(taken) >= MAX_SEGMENTS or not name.isprintable()):
            admitted[name] = OTHER_SEGMENT
        else:
            taken.add(name)
            admitted[name] = name
    return admitted
