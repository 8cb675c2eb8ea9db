"""Deleting a deployment that nothing was ever measured or published for."""

from __future__ import annotations

from sqlalchemy import Connection, exists, select
from sqlalchemy import delete as delete_from

from calibrator.store import schema

_KEPT = {
    "rows of replicas": schema.boots,
    "counted rows": schema.segments,
    "versions": schema.parameter_versions,
    "rollouts": schema.rollouts,
}
"""Whatever else hangs on a deployment comes from one of these, or from its schedule."""
_WITH_IT = (schema.runs, schema.refreshes, schema.schedules, schema.drift_state)


def delete(connection: Connection, deployment_id: int) -> list[str]:
    """Delete a deployment with its schedule and the runs that found no rows.

    Returns
    -------
    What it holds, in words, when it was left as it is; empty when it is gone.
    """
    kept = [
        words
        for words, table in _KEPT.items()
        if connection.execute(select(exists().where(table.c.deployment_id == deployment_id))).scalar_one()
    ]
    if kept:
        return kept
    for table in _WITH_IT:
        connection.execute(delete_from(table).where(table.c.deployment_id == deployment_id))
    connection.execute(delete_from(schema.deployments).where(schema.deployments.c.id == deployment_id))
    return []
