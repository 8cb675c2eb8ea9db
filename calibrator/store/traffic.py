"""Histograms of the confidences of all drafted rows, from the windows under the identity."""

from __future__ import annotations

import numpy as np
from sqlalchemy import BigInteger, Connection, cast, func, select

from calibrator.core.windows import BIN_SUMS, WINDOW_BINS, WindowSums
from calibrator.store import schema

_table = schema.raw_windows
_DRAFTED = [f"bin_drafted_{b:02d}" for b in range(WINDOW_BINS)]


def span(connection: Connection, deployment_id: int, since: float = 0.0) -> tuple[int, int] | None:
    """Start of the first and of the latest window from ``since`` on that has rows; None without any."""
    first, last = connection.execute(
        select(func.min(_table.c.start), func.max(_table.c.start)).where(
            _table.c.deployment_id == deployment_id, _table.c.start >= since
        )
    ).one()
    return None if first is None else (int(first), int(last))


def histogram(connection: Connection, deployment_id: int, gamma: int, start: float, end: float) -> WindowSums:
    """Drafted rows by bin and position in the windows that start in ``[start, end)``.

    Only the sums ``drafted`` of the bins are there. Predictions under the identity do not move when a new
    version is published, so histograms of any two times can be compared.
    """
    totals = [cast(func.sum(_table.c[name]), BigInteger) for name in _DRAFTED]
    rows = connection.execute(
        select(_table.c.position, *totals)
        .where(
            _table.c.deployment_id == deployment_id,
            _table.c.start >= int(np.ceil(start)),
            _table.c.start < end,
        )
        .group_by(_table.c.position)
    )
    sums = WindowSums.zeros(gamma)
    for position, *counts in rows:
        if position <= gamma:
            sums.bins[position - 1, BIN_SUMS.index("drafted")] = counts
    return sums
