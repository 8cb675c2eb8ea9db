"""When a deployment is recalibrated: what an operator has set; without a row the settings' interval holds."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, select, update

from calibrator.store import schema
from calibrator.store.errors import StaleReadError
from calibrator.store.upsert import insert_into

_table = schema.schedules


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule as stored.

    ``interval_seconds`` or ``cron`` says when; both None stand for the service's own interval. Ticks up to
    ``since`` (seconds since 1970) are not made up for: they belong to what was set before. ``revision``
    rises by one with every change; 0 is a deployment that nobody has set anything for.
    """

    interval_seconds: float | None = None
    cron: str | None = None
    paused: bool = False
    since: float = 0.0
    revision: int = 0


def get(connection: Connection, deployment_id: int) -> Schedule:
    """Return the schedule of a deployment; one that nobody has set is the default one."""
    return every(connection, deployment_id).get(deployment_id, Schedule())


def every(connection: Connection, deployment_id: int | None = None) -> dict[int, Schedule]:
    """Schedules that somebody has set, by deployment id."""
    columns = (_table.c[name] for name in ("interval_seconds", "cron", "paused", "since", "revision"))
    statement = select(_table.c.deployment_id, *columns)
    if deployment_id is not None:
        statement = statement.where(_table.c.deployment_id == deployment_id)
    return {row[0]: Schedule(*row[1:]) for row in connection.execute(statement)}


def put(connection: Connection, deployment_id: int, schedule: Schedule, *, revision: int) -> Schedule:
    """Replace the schedule of that ``revision`` (0: none was set yet) and return the new one.

    Raises
    ------
    StaleReadError
        Somebody else has changed it since it was read.
    """
    values = {
        "interval_seconds": schedule.interval_seconds,
        "cron": schedule.cron,
        "paused": schedule.paused,
        "since": schedule.since,
        "revision": revision + 1,
    }
    if revision == 0:
        statement = (
            insert_into(connection.dialect.name, _table)
            .values(deployment_id=deployment_id, **values)
            .on_conflict_do_nothing(index_elements=["deployment_id"])
        )
    else:
        statement = (
            update(_table)
            .where(_table.c.deployment_id == deployment_id, _table.c.revision == revision)
            .values(**values)
        )
    if connection.execute(statement.returning(_table.c.deployment_id)).first() is None:
        raise StaleReadError("the schedule has changed since it was read")
    return get(connection, deployment_id)
