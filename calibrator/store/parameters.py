"""Every parameter document that was ever made: append-only, so that each row can be scored as it was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import Connection, func, select, update

from calibrator.store import schema
from calibrator.store.errors import ConflictError
from calibrator.store.upsert import insert_into
from serving_adapter.contract import ParameterDocument

_table = schema.parameter_versions

SHADOW, CANARY, ABORTED = "shadow", "canary", "aborted"
NOT_IN_FORCE = (SHADOW, CANARY, ABORTED)
"""States of a version that is, or was, only on trial. Without an explicit roll-back none comes into force."""


@dataclass(frozen=True, slots=True)
class ParameterVersion:
    """A document with what became of it (``state``: the service's word)."""

    document: ParameterDocument
    created_at: float
    state: str


def append(
    connection: Connection, deployment_id: int, document: ParameterDocument, at: float, state: str
) -> None:
    """Store a document under its version, once and for all.

    Raises
    ------
    ConflictError
        The version exists, or is not above the latest: versions only rise.
    """
    latest_version = latest_number(connection, deployment_id)
    if document.version <= latest_version:
        raise ConflictError(
            f"version {document.version}: {latest_version} exists already, versions only rise"
        )
    stored = connection.execute(
        insert_into(connection.dialect.name, _table)
        .values(
            deployment_id=deployment_id,
            version=document.version,
            document=msgspec.to_builtins(document),
            created_at=at,
            state=state,
        )
        .on_conflict_do_nothing(index_elements=["deployment_id", "version"])
        .returning(_table.c.version)
    ).scalar_one_or_none()
    if stored is None:
        raise ConflictError(f"version {document.version} was stored by another service")


def latest_number(connection: Connection, deployment_id: int) -> int:
    """Return the highest version that exists, 0 if there is none."""
    highest = select(func.max(_table.c.version)).where(_table.c.deployment_id == deployment_id)
    return int(connection.execute(highest).scalar_one() or 0)


def get(connection: Connection, deployment_id: int, version: int) -> ParameterDocument | None:
    """Return the document of that version, or None."""
    found = connection.execute(
        select(_table.c.document).where(_table.c.deployment_id == deployment_id, _table.c.version == version)
    ).scalar_one_or_none()
    return None if found is None else msgspec.convert(found, ParameterDocument)


def latest(connection: Connection, deployment_id: int, state: str | None = None) -> ParameterVersion | None:
    """Return the highest version (in that state), or None."""
    found = history(connection, deployment_id, state=state, limit=1)
    return found[0] if found else None


def in_force(connection: Connection, deployment_id: int) -> ParameterVersion | None:
    """Return the highest version that everybody is to run, or None: candidates do not count."""
    found = history(connection, deployment_id, candidates=False, limit=1)
    return found[0] if found else None


def history(
    connection: Connection,
    deployment_id: int,
    *,
    state: str | None = None,
    candidates: bool = True,
    limit: int = 100,
) -> list[ParameterVersion]:
    """Versions, highest first; ``candidates``: also those that are or were only on trial."""
    statement = (
        select(_table.c.document, _table.c.created_at, _table.c.state)
        .where(_table.c.deployment_id == deployment_id)
        .order_by(_table.c.version.desc())
        .limit(limit)
    )
    if state is not None:
        statement = statement.where(_table.c.state == state)
    if not candidates:
        statement = statement.where(_table.c.state.not_in(NOT_IN_FORCE))
    return [
        ParameterVersion(msgspec.convert(row.document, ParameterDocument), row.created_at, row.state)
        for row in connection.execute(statement)
    ]


def set_state(connection: Connection, deployment_id: int, version: int, state: str) -> None:
    """Say what became of a version; its document never changes."""
    connection.execute(
        update(_table)
        .where(_table.c.deployment_id == deployment_id, _table.c.version == version)
        .values(state=state)
    )


def created(connection: Connection, deployment_id: int, since_version: int = 0) -> dict[int, float]:
    """When each version from ``since_version`` on was made, in seconds since 1970."""
    rows = connection.execute(
        select(_table.c.version, _table.c.created_at).where(
            _table.c.deployment_id == deployment_id, _table.c.version >= since_version
        )
    )
    return {int(row.version): float(row.created_at) for row in rows}


def temperature_export(connection: Connection, deployment_id: int, version: int) -> dict[str, Any] | None:
    """Return what temperatures alone say of that version, or None while nobody has fitted it."""
    found: dict[str, Any] | None = connection.execute(
        select(_table.c.temperature_export).where(
            _table.c.deployment_id == deployment_id, _table.c.version == version
        )
    ).scalar_one_or_none()
    return found


def keep_temperature_export(
    connection: Connection, deployment_id: int, version: int, export: dict[str, Any]
) -> None:
    """Keep it with the version, unless there is one: a version says the same for ever."""
    connection.execute(
        update(_table)
        .where(
            _table.c.deployment_id == deployment_id,
            _table.c.version == version,
            _table.c.temperature_export.is_(None),
        )
        .values(temperature_export=export)
    )
