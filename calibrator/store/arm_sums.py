"""Sums of a rollout's arms in SQL: added by upsert in the transaction of the rows they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from sqlalchemy import Connection, delete, select

from calibrator.core.arms import ARM_SUMS, ArmSums
from calibrator.store import schema
from calibrator.store.upsert import insert_into

_table = schema.arm_sums
_KEY = ("rollout_id", "arm", "request_group")


def add(connection: Connection, rollout_id: int, sums: Mapping[str, ArmSums]) -> None:
    """Add sums to arms, by name; groups without rows are not written."""
    rows: list[dict[str, Any]] = []
    for arm in sorted(sums):
        values = sums[arm].values
        for group in np.flatnonzero(values.any(axis=1)).tolist():
            named = dict(zip(ARM_SUMS, values[group].tolist(), strict=True))
            rows.append({"rollout_id": rollout_id, "arm": arm, "request_group": group, **named})
    if not rows:
        return
    statement = insert_into(connection.dialect.name, _table)
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=list(_KEY),
            set_={name: _table.c[name] + statement.excluded[name] for name in ARM_SUMS},
        ),
        rows,
    )


def load(connection: Connection, rollout_id: int) -> dict[str, ArmSums]:
    """Sums by arm; an arm without rows is left out."""
    arms: dict[str, ArmSums] = {}
    for row in connection.execute(select(_table).where(_table.c.rollout_id == rollout_id)):
        sums = arms.setdefault(row.arm, ArmSums.zeros())
        sums.values[row.request_group] = [row._mapping[name] for name in ARM_SUMS]
    return arms


def forget(connection: Connection, deployment_id: int) -> int:
    """Delete the sums of rollouts that have ended (their evidence is kept with them); return how many."""
    ended = select(schema.rollouts.c.id).where(
        schema.rollouts.c.deployment_id == deployment_id, schema.rollouts.c.state != "running"
    )
    return connection.execute(delete(_table).where(_table.c.rollout_id.in_(ended))).rowcount
