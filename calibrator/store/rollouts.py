"""Rollouts: which candidate is on trial, how far it got, and who decided what.

At most one of a deployment is running (a unique index sees to it). A row changes only by compare-and-set on
its stage, so that of two who decide at once one wins, whatever they believe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from calibrator.store import schema
from calibrator.store.errors import ConflictError

SHADOW, CANARY, ALL, ABORTED = "shadow", "canary", "all", "aborted"
RUNNING, DONE = "running", "done"

_table = schema.rollouts
_history = schema.rollout_history
_IDS = 500
"""Ids in one statement: the databases take a bounded number of parameters."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """One candidate's way. ``control_version`` 0 is the identity; times are seconds since 1970.

    ``stage`` is ``shadow``, ``canary``, ``all`` or ``aborted``; ``state`` ``running``, ``done`` or
    ``aborted``. ``rules`` are those it began with, ``evidence`` what the last look found.
    """

    id: int
    deployment_id: int
    version: int
    control_version: int
    stage: str
    state: str
    share: float
    rules: dict[str, Any]
    evidence: dict[str, Any]
    started_at: float
    stage_since: float
    finished_at: float | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a rollout's history: what was decided, why and by whom."""

    at: float
    stage: str
    reason: str
    actor: str


def start(
    connection: Connection,
    deployment_id: int,
    *,
    version: int,
    control_version: int,
    stage: str,
    share: float,
    rules: dict[str, Any],
    at: float,
    reason: str,
    actor: str,
) -> Rollout:
    """Begin a rollout.

    Raises
    ------
    ConflictError
        Another one of this deployment is running.
    """
    try:
        with connection.begin_nested():
            made = connection.execute(
                insert(_table)
                .values(
                    deployment_id=deployment_id, version=version, control_version=control_version,
                    stage=stage, state=RUNNING, share=share, rules=rules, evidence={}, started_at=at,
                    stage_since=at,
                )
                .returning(*_table.c)
            ).one()  # fmt: skip
    except IntegrityError:
        raise ConflictError("a rollout of this deployment is running already") from None
    rollout = _rollout(made)
    note(connection, rollout.id, at, stage, reason, actor)
    return rollout


def get(connection: Connection, rollout_id: int) -> Rollout | None:
    """Return the rollout of that id, or None."""
    row = connection.execute(select(_table).where(_table.c.id == rollout_id)).one_or_none()
    return None if row is None else _rollout(row)


def running(connection: Connection, deployment_id: int) -> Rollout | None:
    """Return the rollout that is under way, or None."""
    row = connection.execute(
        select(_table).where(_table.c.deployment_id == deployment_id, _table.c.state == RUNNING)
    ).one_or_none()
    return None if row is None else _rollout(row)


def recent(
    connection: Connection,
    deployment_id: int | None = None,
    *,
    state: str | None = None,
    before: int | None = None,
    limit: int = 100,
) -> list[Rollout]:
    """Rollouts, newest first; ``before`` goes on behind the rollout of that id."""
    statement = select(_table).order_by(_table.c.id.desc()).limit(limit)
    if deployment_id is not None:
        statement = statement.where(_table.c.deployment_id == deployment_id)
    if state is not None:
        statement = statement.where(_table.c.state == state)
    if before is not None:
        statement = statement.where(_table.c.id < before)
    return [_rollout(row) for row in connection.execute(statement)]


def move(
    connection: Connection, rollout: Rollout, stage: str, state: str, at: float, reason: str, actor: str
) -> None:
    """Take the rollout from the stage that ``rollout`` says to another one.

    Raises
    ------
    ConflictError
        It is not in that stage any more: somebody else decided first.
    """
    ends = state != RUNNING
    changed = connection.execute(
        update(_table)
        .where(_table.c.id == rollout.id, _table.c.stage == rollout.stage, _table.c.state == RUNNING)
        .values(
            stage=stage, state=state, stage_since=at, finished_at=at if ends else None,
            reason=reason if ends else None,
        )
    ).rowcount  # fmt: skip
    if not changed:
        raise ConflictError(f"rollout {rollout.id} is not in stage {rollout.stage} any more")
    note(connection, rollout.id, at, stage, reason, actor)


def set_evidence(connection: Connection, rollout_id: int, evidence: dict[str, Any]) -> None:
    """Store what the last look found. JSON: undefined figures are None, never NaN."""
    connection.execute(update(_table).where(_table.c.id == rollout_id).values(evidence=evidence))


def set_share(connection: Connection, rollout_id: int, share: float) -> None:
    """Store the part of the replicas that takes the candidate."""
    connection.execute(update(_table).where(_table.c.id == rollout_id).values(share=share))


def note(connection: Connection, rollout_id: int, at: float, stage: str, reason: str, actor: str) -> None:
    """Add a line to the history."""
    connection.execute(
        insert(_history).values(rollout_id=rollout_id, at=at, stage=stage, reason=reason, actor=actor[:256])
    )


def history(connection: Connection, rollout_ids: Sequence[int]) -> dict[int, list[Event]]:
    """Lines of each rollout, oldest first."""
    lines: dict[int, list[Event]] = {each: [] for each in rollout_ids}
    rows = connection.execute(
        select(_history).where(_history.c.rollout_id.in_(lines)).order_by(_history.c.id)
    )
    for row in rows:
        lines[row.rollout_id].append(Event(row.at, row.stage, row.reason, row.actor))
    return lines


def delete_before(connection: Connection, cut: float, limit: int) -> int:
    """Delete up to that many rollouts that ended before ``cut``, and what hangs on them; return how many."""
    old = list(
        connection.execute(select(_table.c.id).where(_table.c.finished_at < cut).limit(limit)).scalars()
    )
    for i in range(0, len(old), _IDS):
        some = old[i : i + _IDS]
        for table in (schema.arm_sums, _history):
            connection.execute(delete(table).where(table.c.rollout_id.in_(some)))
        connection.execute(delete(_table).where(_table.c.id.in_(some)))
    return len(old)


def _rollout(row: Row[Any]) -> Rollout:
    return Rollout(**row._mapping)
