"""Evidence of drift in SQL: growing sums per version, segment and position."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from sqlalchemy import Connection, delete, select

from calibrator.core.drift import COLUMNS, DriftSums
from calibrator.store import schema
from calibrator.store.additive import add_rows

_table = schema.drift_sums


def add(connection: Connection, deployment_id: int, sums: Mapping[tuple[int, int], DriftSums]) -> None:
    """Add sums by (version, segment id), in the caller's transaction."""
    if not sums:
        return
    keys = [
        (version, segment, position)
        for (version, segment), each in sums.items()
        for position in range(1, each.gamma + 1)
    ]
    values = np.concatenate([each.values for each in sums.values()])
    add_rows(connection, _table, deployment_id, np.array(keys, dtype=np.int64), values)


def load(
    connection: Connection, deployment_id: int, gamma: int, since_version: int = 0
) -> dict[int, dict[str, DriftSums]]:
    """Totals by version and segment name, of ``since_version`` and later ones."""
    segments = schema.segments
    statement = (
        select(_table.c.version, segments.c.name, _table.c.position, *(_table.c[name] for name in COLUMNS))
        .join(segments, segments.c.id == _table.c.segment_id)
        .where(_table.c.deployment_id == deployment_id, _table.c.version >= since_version)
    )
    found: dict[int, dict[str, DriftSums]] = {}
    for version, segment, position, *values in connection.execute(statement):
        sums = found.setdefault(version, {}).setdefault(segment, DriftSums.zeros(gamma))
        if position <= gamma:
            sums.values[position - 1] = values
    return found


def forget(connection: Connection, deployment_id: int, keep_versions: int) -> int:
    """Delete the sums of all but the latest versions; return rows deleted.

    The caller's transaction holds the deployment, so that no collector adds to them meanwhile.
    """
    mine = _table.c.deployment_id == deployment_id
    latest = connection.execute(
        select(_table.c.version).where(mine).distinct().order_by(_table.c.version.desc()).limit(keep_versions)
    ).scalars()
    oldest = min(latest, default=0)
    return connection.execute(delete(_table).where(mine, _table.c.version < oldest)).rowcount
