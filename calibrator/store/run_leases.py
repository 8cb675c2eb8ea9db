"""Who runs a run: a lease in its row, by the database's clock, renewed while the work goes on.

A lease that has ended is a service that has gone: another takes the run over. What a service writes on
behalf of a run it fences with :func:`hold` in the same transaction, so that one that was only slow writes
nothing any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, exists, or_, select, update

from calibrator.store import schema
from calibrator.store.errors import LeaseLostError
from calibrator.store.runs import ABANDONED, COLUMNS, RUNNING, WAITING, Run, run_of

MAX_ATTEMPTS = 3
"""A run that three services did not survive is the likely reason why they did not."""

_table = schema.runs


def claim(
    connection: Connection, holder: str, seconds: float, now: float, deployment_id: int | None = None
) -> Run | None:
    """Take the next run: one whose service has gone before one that waits, the oldest first.

    A run that had its last attempt is ended here. Call it in a transaction of its own.

    Parameters
    ----------
    holder
        Who takes it; no two services, nor two starts of one, share a name.
    seconds
        Length of the lease.
    deployment_id
        Take one of this deployment or none.

    Raises
    ------
    DataRefusedError
        When the transaction ends or before: another service took a run of the same deployment just now.
    """
    other = _table.alias("other")
    occupied = exists().where(other.c.deployment_id == _table.c.deployment_id, other.c.state == RUNNING)
    free = or_(
        and_(_table.c.state == RUNNING, _table.c.acquired_until <= now),
        and_(_table.c.state == WAITING, ~occupied),
    )
    candidates = (
        select(_table.c.id, _table.c.attempt)
        .where(free)
        .order_by(_table.c.state, _table.c.id)  # "running" comes before "waiting"
        .limit(1)
        .with_for_update(skip_locked=True)
    )
    if deployment_id is not None:
        candidates = candidates.where(_table.c.deployment_id == deployment_id)
    while True:
        found = connection.execute(candidates).one_or_none()
        if found is None:
            return None
        if found.attempt >= MAX_ATTEMPTS:
            _end_unfinished(connection, found.id, found.attempt, now)
            continue
        taken = connection.execute(
            update(_table)
            .where(_table.c.id == found.id)
            .values(
                state=RUNNING,
                holder=holder,
                acquired_until=now + seconds,
                attempt=_table.c.attempt + 1,
                started_at=now,
            )
            .returning(*COLUMNS)
        )
        return run_of(taken.one())


def renew(connection: Connection, run: Run, seconds: float, now: float) -> bool:
    """Hold a run for that many seconds from now; False when another service holds it already."""
    return bool(
        connection.execute(update(_table).where(_held(run)).values(acquired_until=now + seconds)).rowcount
    )


def hold(connection: Connection, run: Run, refresh_id: int) -> None:
    """Fence the transaction: nobody takes the run over before it ends. Notes the refresh of the run.

    Raises
    ------
    LeaseLostError
        Another service has taken it over.
    """
    if not connection.execute(update(_table).where(_held(run)).values(refresh_id=refresh_id)).rowcount:
        raise LeaseLostError(f"run {run.id}: taken over by another service")


def finish(
    connection: Connection,
    run: Run,
    now: float,
    state: str,
    *,
    outcome: str | None = None,
    reasons: Sequence[str] = (),
    rows_used: int | None = None,
    version: int | None = None,
) -> None:
    """End a run.

    Raises
    ------
    LeaseLostError
        Another service has taken it over.
    """
    values: dict[str, Any] = {
        "state": state,
        "outcome": outcome,
        "reasons": list(reasons),
        "rows_used": rows_used,
        "version": version,
        "finished_at": now,
        "acquired_until": None,
    }
    if not connection.execute(update(_table).where(_held(run)).values(**values)).rowcount:
        raise LeaseLostError(f"run {run.id}: taken over by another service")


def give_back(connection: Connection, run: Run, now: float) -> bool:
    """Let another service take the run over at once, as if this one had never begun."""
    return bool(
        connection.execute(
            update(_table)
            .where(_held(run))
            .values(acquired_until=now, holder=None, attempt=_table.c.attempt - 1)
        ).rowcount
    )


def _held(run: Run) -> ColumnElement[bool]:
    # The attempt too: a service may have lost a run and taken it over again.
    return and_(
        _table.c.id == run.id,
        _table.c.state == RUNNING,
        _table.c.holder == run.holder,
        _table.c.attempt == run.attempt,
    )


def _end_unfinished(connection: Connection, run_id: int, attempts: int, now: float) -> None:
    reason = f"given up: {attempts} services ended, or lost the database, before they had finished it"
    connection.execute(
        update(_table)
        .where(_table.c.id == run_id)
        .values(state=ABANDONED, reasons=[reason], finished_at=now, acquired_until=None)
    )
