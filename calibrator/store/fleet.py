"""What an overview of all deployments needs, each by one query however many deployments there are."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, and_, func, select

from calibrator.store import schema
from calibrator.store.deployments import Deployment
from calibrator.store.parameters import NOT_IN_FORCE

JUDGED = ("published", "rolled_out", "unchanged", "conflict", "would_publish")
"""Outcomes of refreshes that had rows to judge."""


@dataclass(frozen=True, slots=True)
class Ingested:
    """Rows of a deployment by what became of them, and when a replica was last heard of.

    ``last_seen`` is in seconds since 1970, None before the first message.
    """

    folded: int = 0
    lost: int = 0
    dead_lettered: int = 0
    duplicates: int = 0
    emitted: int = 0
    boots: int = 0
    last_seen: float | None = None


@dataclass(frozen=True, slots=True)
class LatestVersion:
    """The highest version of a deployment."""

    version: int
    form: str
    explore: float
    state: str
    created_at: float


@dataclass(frozen=True, slots=True)
class Judged:
    """The newest refresh that had rows, with a part of its evidence."""

    refresh_id: int
    finished: float
    evidence: Any


def page(connection: Connection, after: str | None, limit: int) -> list[Deployment]:
    """Deployments by name, behind ``after``."""
    table = schema.deployments
    statement = select(table).order_by(table.c.name).limit(limit)
    if after is not None:
        statement = statement.where(table.c.name > after)
    return [Deployment(**row._mapping) for row in connection.execute(statement)]


def count(connection: Connection) -> int:
    """Count the deployments."""
    return int(connection.execute(select(func.count()).select_from(schema.deployments)).scalar_one())


def ingested(connection: Connection, ids: Collection[int] | None = None) -> dict[int, Ingested]:
    """Rounds by deployment id; those that were never heard of are left out. None: all deployments."""
    table = schema.boots
    statement = select(
        table.c.deployment_id,
        func.sum(table.c.round_folded),
        func.sum(table.c.round_lost),
        func.sum(table.c.round_dead_lettered),
        func.sum(table.c.round_duplicates),
        func.sum(table.c.round_next_sequence),
        func.count(),
        func.max(table.c.last_seen),
    ).group_by(table.c.deployment_id)
    if ids is not None:
        statement = statement.where(table.c.deployment_id.in_(list(ids)))
    return {
        row[0]: Ingested(
            folded=int(row[1]), lost=int(row[2]), dead_lettered=int(row[3]), duplicates=int(row[4]),
            emitted=int(row[5]), boots=int(row[6]), last_seen=float(row[7]),
        )
        for row in connection.execute(statement)
    }  # fmt: skip


def latest_versions(connection: Connection, ids: Collection[int] | None = None) -> dict[int, LatestVersion]:
    """Version in force by deployment id; deployments without one are left out."""
    table = schema.parameter_versions
    newest = (
        select(table.c.deployment_id, func.max(table.c.version).label("version"))
        .where(table.c.state.not_in(NOT_IN_FORCE))
        .group_by(table.c.deployment_id)
    )
    if ids is not None:
        newest = newest.where(table.c.deployment_id.in_(list(ids)))
    highest = newest.subquery()
    rows = connection.execute(
        select(
            table.c.deployment_id,
            table.c.version,
            table.c.document["form"].as_string(),
            table.c.document["explore"].as_float(),
            table.c.state,
            table.c.created_at,
        ).join(
            highest,
            and_(table.c.deployment_id == highest.c.deployment_id, table.c.version == highest.c.version),
        )
    )
    return {row[0]: LatestVersion(row[1], row[2], float(row[3] or 0.0), *row[4:]) for row in rows}


def latest_evidence(
    connection: Connection, part: str, ids: Collection[int] | None = None, outcomes: Sequence[str] = JUDGED
) -> dict[int, Judged]:
    """One part of the evidence of the newest refresh that had rows, by deployment id."""
    table = schema.refreshes
    newest = (
        select(func.max(table.c.id).label("id"))
        .where(table.c.outcome.in_(outcomes))
        .group_by(table.c.deployment_id)
    )
    if ids is not None:
        newest = newest.where(table.c.deployment_id.in_(list(ids)))
    rows = connection.execute(
        select(table.c.deployment_id, table.c.id, table.c.finished, table.c.evidence[part]).where(
            table.c.id.in_(newest)
        )
    )
    return {row[0]: Judged(row[1], row[2], row[3]) for row in rows}


def run_counts(connection: Connection) -> dict[int, dict[str, int]]:
    """Deployment id -> state -> runs that ended so."""
    table = schema.runs
    rows = connection.execute(
        select(table.c.deployment_id, table.c.state, func.count())
        .where(table.c.finished_at.is_not(None))
        .group_by(table.c.deployment_id, table.c.state)
    )
    counts: dict[int, dict[str, int]] = {}
    for deployment_id, state, count in rows:
        counts.setdefault(deployment_id, {})[state] = int(count)
    return counts


def refresh_counts(connection: Connection) -> dict[int, dict[str, int]]:
    """Deployment id -> outcome -> refreshes that ended so."""
    table = schema.refreshes
    rows = connection.execute(
        select(table.c.deployment_id, table.c.outcome, func.count())
        .where(table.c.outcome.is_not(None))
        .group_by(table.c.deployment_id, table.c.outcome)
    )
    counts: dict[int, dict[str, int]] = {}
    for deployment_id, outcome, count in rows:
        counts.setdefault(deployment_id, {})[outcome] = int(count)
    return counts
