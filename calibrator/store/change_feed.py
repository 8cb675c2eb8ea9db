"""What changed lately, as keys with states: two looks compared say what happened in between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, or_, select

from calibrator.store import fleet, schema

NEWEST = 200
"""Rows of each kind looked at: nothing changes that is older, or it is open and looked at anyway."""

Key = tuple[str, int, Any]
"""(kind, deployment id, what of it)."""


@dataclass(frozen=True, slots=True)
class Look:
    """States by key; ``progress`` is apart because it changes all the time. ``names`` are of deployments."""

    states: dict[Key, dict[str, Any]]
    progress: dict[int, dict[str, Any]]
    names: dict[int, str]


def look(connection: Connection) -> Look:
    """Look at everything that can change, a handful of small queries however large the store is."""
    states: dict[Key, dict[str, Any]] = {}
    table = schema.deployments
    names: dict[int, str] = {}
    for row in connection.execute(
        select(table.c.id, table.c.name, table.c.frozen, table.c.fingerprint, table.c.settings)
    ):
        names[row.id] = row.name
        states["deployment", row.id, None] = {
            "frozen": row.frozen,
            "fingerprint": row.fingerprint,
            "settings": row.settings,
        }
    for deployment_id, latest in fleet.latest_versions(connection).items():
        states["version", deployment_id, latest.version] = {"id": latest.version, "state": latest.state}
    _newest(connection, states, "refresh", schema.refreshes, ("outcome", "version"), "finished")
    _newest(connection, states, "episode", schema.episodes, ("kind", "ended_at"), "ended_at")
    _newest(connection, states, "run", schema.runs, ("state", "outcome", "attempt", "version"), "finished_at")
    _newest(connection, states, "rollout", schema.rollouts, ("stage", "state", "version"), "finished_at")
    progress = {
        deployment_id: {"rounds": each.folded, "lost": each.lost, "last_seen": each.last_seen}
        for deployment_id, each in fleet.ingested(connection).items()
    }
    return Look(states, progress, names)


def _newest(
    connection: Connection,
    states: dict[Key, dict[str, Any]],
    kind: str,
    table: Any,
    shown: tuple[str, ...],
    finished: str,
) -> None:
    newest = select(table.c.id).order_by(table.c.id.desc()).limit(NEWEST)
    statement = (
        select(table.c.id, table.c.deployment_id, *(table.c[name] for name in shown))
        .where(or_(table.c.id.in_(newest), table.c[finished].is_(None)))
        .order_by(table.c.id.desc())
        .limit(2 * NEWEST)
    )
    for row in connection.execute(statement):
        states[kind, row.deployment_id, row.id] = {
            "id": row.id,
            **{name: row._mapping[name] for name in shown},
        }
