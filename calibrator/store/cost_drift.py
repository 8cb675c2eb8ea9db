"""Predicted against measured step time in SQL: by window for figures, over all time for alarms."""

from __future__ import annotations

import numpy as np
from sqlalchemy import BigInteger, Connection, cast, func, select

from calibrator.core.cost import DriftCells, DriftFigures
from calibrator.core.cost.drift import DRIFT_KEYS, DRIFT_SUMS
from calibrator.core.cost.sparse import add_up
from calibrator.store import schema
from calibrator.store.additive import add_rows

_windows, _totals = schema.cost_drift, schema.cost_totals


def add(connection: Connection, deployment_id: int, cells: DriftCells) -> None:
    """Add cells whose epoch is the start of their window, in the caller's transaction."""
    if not len(cells.keys):
        return
    add_rows(connection, _windows, deployment_id, cells.keys, cells.sums)
    add_rows(connection, _totals, deployment_id, *add_up(cells.keys[:, 1:], cells.sums))


def totals(connection: Connection, deployment_id: int) -> DriftCells:
    """Cells over all time, all of epoch 0: they only ever grow."""
    columns = [_totals.c[name] for name in (*DRIFT_KEYS[1:], *DRIFT_SUMS)]
    rows = connection.execute(select(*columns).where(_totals.c.deployment_id == deployment_id)).all()
    if not rows:
        return DriftCells.empty()
    values = np.array([tuple(row) for row in rows], dtype=np.int64)
    split = len(DRIFT_KEYS) - 1
    keys = np.concatenate([np.zeros((len(values), 1), dtype=np.int64), values[:, :split]], axis=1)
    return DriftCells.from_arrays(keys, values[:, split:])


def cells(connection: Connection, deployment_id: int, start: float, end: float) -> DriftCells:
    """Cells of the windows that start in ``[start, end)``, added up: all of the epoch ``start``."""
    keys = [_windows.c[name] for name in DRIFT_KEYS[1:]]
    sums = [cast(func.sum(_windows.c[name]), BigInteger) for name in DRIFT_SUMS]
    rows = connection.execute(
        select(*keys, *sums)
        .where(
            _windows.c.deployment_id == deployment_id,
            _windows.c.start >= int(np.ceil(start)),
            _windows.c.start < end,
        )
        .group_by(*keys)
    ).all()
    if not rows:
        return DriftCells.empty()
    values = np.array([tuple(row) for row in rows], dtype=np.int64)
    epoch = np.full((len(values), 1), int(start), dtype=np.int64)
    return DriftCells.from_arrays(
        np.concatenate([epoch, values[:, : len(keys)]], axis=1), values[:, len(keys) :]
    )


def figures(connection: Connection, deployment_id: int, start: float, end: float) -> list[DriftFigures]:
    """Figures of the windows that start in ``[start, end)``.

    Returns
    -------
    One of all steps (``regime`` and ``context`` None), then one per load regime, then one per context
    bucket. Nothing where no step carried a prediction.
    """
    found = cells(connection, deployment_id, start, end)
    return [*found.figures(), *found.figures(["regime"]), *found.figures(["context"])]
