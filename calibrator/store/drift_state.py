"""How far the evidence of a deployment has been read: one JSON value, changed by compare-and-set."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, select, update

from calibrator.store import schema
from calibrator.store.errors import StaleReadError
from calibrator.store.upsert import insert_into

_table = schema.drift_state


@dataclass(frozen=True, slots=True)
class DriftState:
    """What an evaluator left behind; ``revision`` is 0 before the first one."""

    revision: int = 0
    evaluated_at: float = 0.0
    state: dict[str, Any] = field(default_factory=dict)


def load(connection: Connection, deployment_id: int) -> DriftState:
    """Return the state of a deployment, an empty one before the first evaluation."""
    row = connection.execute(
        select(_table.c.revision, _table.c.evaluated_at, _table.c.state).where(
            _table.c.deployment_id == deployment_id
        )
    ).one_or_none()
    return DriftState() if row is None else DriftState(*row)


def save(
    connection: Connection, deployment_id: int, read: DriftState, at: float, state: dict[str, Any]
) -> None:
    """Replace the state if nobody changed it since it was read, in the caller's transaction.

    Raises
    ------
    StaleReadError
        Another evaluator was faster; what it read must not be counted again.
    """
    values = {"revision": read.revision + 1, "evaluated_at": at, "state": state}
    if read.revision == 0:
        statement = insert_into(connection.dialect.name, _table).values(deployment_id=deployment_id, **values)
        statement = statement.on_conflict_do_nothing(index_elements=["deployment_id"])
    else:
        statement = (
            update(_table)
            .where(_table.c.deployment_id == deployment_id, _table.c.revision == read.revision)
            .values(**values)
        )
    stored = connection.execute(statement.returning(_table.c.revision)).scalar_one_or_none()
    if stored is None:
        raise StaleReadError("the drift of this deployment was evaluated by another service")
