"""Runs of jobs: a queue in the database, and its history.

A run waits, runs, and ends as done, failed or abandoned; :mod:`calibrator.store.run_leases` says who runs it.
Unique indexes, not the services' good behaviour, see to it that a tick is there once and that runs of one
deployment never overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import (
    Connection,
    Row,
    Select,
    and_,
    delete,
    exists,
    func,
    literal,
    or_,
    select,
    update,
)

from calibrator.store import schema
from calibrator.store.leases import database_now
from calibrator.store.upsert import insert_into

RECALIBRATE = "recalibrate"
SCHEDULE, MANUAL, ALARM = "schedule", "manual", "alarm"
WAITING, RUNNING, DONE, FAILED, ABANDONED = "waiting", "running", "done", "failed", "abandoned"
STATES = (WAITING, RUNNING, DONE, FAILED, ABANDONED)

_table = schema.runs


@dataclass(frozen=True, slots=True)
class Run:
    """One run. Times are seconds since 1970 by the database's clock; ``tick`` is in ms since 1970.

    ``started_at`` is that of the latest attempt. ``refresh_id`` is the refresh that it made, whose row may
    have been deleted meanwhile.
    """

    id: int
    deployment_id: int
    kind: str
    trigger: str
    dry_run: bool
    tick: int | None
    state: str
    outcome: str | None
    attempt: int
    holder: str | None
    acquired_until: float | None
    created_at: float
    started_at: float | None
    finished_at: float | None
    rows_used: int | None
    version: int | None
    refresh_id: int | None
    reasons: list[str]

    @property
    def finished(self) -> bool:
        """Whether nothing will change any more."""
        return self.state in (DONE, FAILED, ABANDONED)


COLUMNS = tuple(_table.c[field.name] for field in fields(Run))


def request_run(
    connection: Connection,
    deployment_id: int,
    trigger: str,
    dry_run: bool = False,
    *,
    now: float | None = None,
) -> Run:
    """Ask for a run outside the schedule; any service picks it up.

    A run of that trigger and kind that still waits answers for this request too: it will see all that this
    one would have seen. So asking again and again does not fill the queue.

    Parameters
    ----------
    trigger
        :data:`MANUAL` or :data:`ALARM`.
    now
        Seconds since 1970; the database's clock when left out.
    """
    at = database_now(connection) if now is None else now
    waiting = and_(
        _table.c.deployment_id == deployment_id,
        _table.c.kind == RECALIBRATE,
        _table.c.trigger == trigger,
        _table.c.dry_run == dry_run,
        _table.c.state == WAITING,
    )
    while True:
        values = _fresh(deployment_id, trigger, dry_run, None, at)
        made = connection.execute(
            insert_into(connection.dialect.name, _table)
            .values(**values)
            .on_conflict_do_nothing()
            .returning(*COLUMNS)
        ).one_or_none()
        # The one in the way may begin before it is looked at: then there is room for another.
        found = made or connection.execute(select(*COLUMNS).where(waiting)).one_or_none()
        if found is not None:
            return run_of(found)


def add_tick(connection: Connection, deployment_id: int, tick: int, now: float) -> bool:
    """Queue the run of a tick (ms since 1970) once, whoever asks and how often.

    A scheduled run that still waits becomes the run of this later tick: what was missed is not made up for.

    Returns
    -------
    Whether this call has queued it.
    """
    mine = and_(_table.c.deployment_id == deployment_id, _table.c.kind == RECALIBRATE)
    moved = connection.execute(
        update(_table)
        .where(mine, _table.c.trigger == SCHEDULE, _table.c.state == WAITING, _table.c.tick < tick)
        .values(tick=tick, created_at=now)
    ).rowcount
    if moved:
        return True
    later = _table.alias("later")
    known = exists().where(
        later.c.deployment_id == deployment_id, later.c.kind == RECALIBRATE, later.c.tick >= tick
    )
    values = _fresh(deployment_id, SCHEDULE, False, tick, now)
    row = select(*(literal(value, _table.c[name].type) for name, value in values.items())).where(~known)
    made = connection.execute(
        insert_into(connection.dialect.name, _table)
        .from_select(list(values), row)
        .on_conflict_do_nothing()
        .returning(_table.c.id)
    )
    return made.first() is not None


def latest_ticks(connection: Connection) -> dict[int, int]:
    """Latest tick (ms since 1970) that has a run, by deployment id."""
    # One look into the index per deployment, however long its history is.
    owner = schema.deployments.c.id
    newest = (
        select(func.max(_table.c.tick))
        .where(_table.c.deployment_id == owner, _table.c.kind == RECALIBRATE)
        .scalar_subquery()
    )
    return {row[0]: row[1] for row in connection.execute(select(owner, newest)) if row[1] is not None}


def get(connection: Connection, run_id: int) -> Run | None:
    """Return the run of that id, or None."""
    row = connection.execute(select(*COLUMNS).where(_table.c.id == run_id)).one_or_none()
    return None if row is None else run_of(row)


def recent(
    connection: Connection,
    *,
    deployment_id: int | None = None,
    state: str | None = None,
    before: int | None = None,
    limit: int = 100,
) -> list[Run]:
    """Runs, newest first; ``before`` is the id that the page before ended with."""
    statement: Select[Any] = select(*COLUMNS).order_by(_table.c.id.desc()).limit(limit)
    if deployment_id is not None:
        statement = statement.where(_table.c.deployment_id == deployment_id)
    if state is not None:
        statement = statement.where(_table.c.state == state)
    if before is not None:
        statement = statement.where(_table.c.id < before)
    return [run_of(row) for row in connection.execute(statement)]


def latest(connection: Connection, deployment_ids: Sequence[int]) -> dict[int, Run]:
    """Newest run of each of these deployments."""
    owner = schema.deployments.c.id
    newest = select(func.max(_table.c.id)).where(_table.c.deployment_id == owner).scalar_subquery()
    wanted = select(newest).where(owner.in_(list(deployment_ids)))
    rows = connection.execute(select(*COLUMNS).where(_table.c.id.in_(wanted)))
    return {row.deployment_id: run_of(row) for row in rows}


def delete_before(connection: Connection, cut: float, limit: int) -> int:
    """Delete up to that many finished runs that began before ``cut``; return how many.

    The latest tick of every deployment stays: without it, it would be run again.
    """
    other = _table.alias("other")
    newest = (
        select(func.max(other.c.tick))
        .where(other.c.deployment_id == _table.c.deployment_id, other.c.kind == _table.c.kind)
        .scalar_subquery()
    )
    old = (
        select(_table.c.id)
        .where(
            _table.c.state.in_((DONE, FAILED, ABANDONED)),
            _table.c.created_at < cut,
            or_(_table.c.tick.is_(None), _table.c.tick < newest),
        )
        .limit(limit)
    )
    return connection.execute(delete(_table).where(_table.c.id.in_(old))).rowcount


def _fresh(deployment_id: int, trigger: str, dry_run: bool, tick: int | None, now: float) -> dict[str, Any]:
    return {
        "deployment_id": deployment_id,
        "kind": RECALIBRATE,
        "trigger": trigger,
        "dry_run": dry_run,
        "tick": tick,
        "state": WAITING,
        "attempt": 0,
        "created_at": now,
        "reasons": [],
    }


def run_of(row: Row[Any]) -> Run:
    """Make a run of a row of :data:`COLUMNS`."""
    return Run(**row._mapping)
