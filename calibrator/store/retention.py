"""Deleting what is old, in small transactions, so that collectors hardly notice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection, Table, delete, func, select

from calibrator.store import deployments, drift_sums, forgetting, rollouts, runs, schema
from calibrator.store.store import Store

DAY = 86_400
_SLICE_SECONDS = 6 * 3600
_BATCH_ROWS = 5_000
KEPT_VERSIONS = 8
"""Versions whose evidence of drift is kept: only that of the one in force is looked at."""


@dataclass(frozen=True, slots=True)
class Retention:
    """Days that each kind of row is kept.

    ``rollout_days`` count from a rollout's end. Of ``cut_days`` the latest cut of a deployment and segment is
    left out: it says for ever which rows are not used any more.
    """

    window_days: float = 31.0
    hour_days: float = 400.0
    dead_letter_days: float = 30.0
    refresh_days: float = 400.0
    run_days: float = 100.0
    episode_days: float = 400.0
    audit_days: float = 400.0
    rollout_days: float = 400.0
    cut_days: float = 400.0


def apply(store: Store, now: float, keep: Retention | None = None) -> dict[str, int]:
    """Delete what is older than ``keep`` says; return rows deleted per table.

    Each transaction deletes a few hours of windows, or a few thousand other rows. Boots, positions and
    parameter versions are kept: without them what was read cannot be told from what was not.
    """
    keep = keep or Retention()
    days: dict[Table, float] = {
        schema.windows: keep.window_days,
        schema.raw_windows: keep.window_days,
        schema.window_hours: keep.hour_days,
        schema.raw_window_hours: keep.hour_days,
        schema.pooled_hours: keep.hour_days,
        schema.raw_pooled_hours: keep.hour_days,
        schema.cost_drift: keep.window_days,
        schema.ledger_sums: keep.window_days,
    }
    with store.read() as connection:
        owners = [each.id for each in deployments.every(connection)]
    deleted = {}
    for table, table_days in days.items():
        cut = int(now - table_days * DAY)
        deleted[table.name] = sum(_windows_before(store, table, owner, cut) for owner in owners)
    for table, column, table_days in (
        (schema.dead_letters, "at", keep.dead_letter_days),
        (schema.refreshes, "started", keep.refresh_days),
        (schema.episodes, "ended_at", keep.episode_days),
        (schema.audit, "at", keep.audit_days),
    ):
        deleted[table.name] = _rows_before(store, table, column, now - table_days * DAY)
    deleted[schema.drift_sums.name] = sum(_evidence_of_old_versions(store, owner) for owner in owners)
    for table, delete_before, table_days in (
        (schema.runs, runs.delete_before, keep.run_days),
        (schema.rollouts, rollouts.delete_before, keep.rollout_days),
        (schema.sample_cuts, forgetting.delete_before, keep.cut_days),
    ):
        deleted[table.name] = _batches(store, delete_before, now - table_days * DAY)
    return deleted


def _batches(store: Store, delete_before: Callable[[Connection, float, int], int], cut: float) -> int:
    total = 0
    while True:
        with store.write() as connection:
            gone = delete_before(connection, cut, _BATCH_ROWS)
        total += gone
        if gone < _BATCH_ROWS:
            return total


def _windows_before(store: Store, table: Table, owner: int, cut: int) -> int:
    total = 0
    mine = table.c.deployment_id == owner
    while True:
        with store.write() as connection:
            oldest = connection.execute(select(func.min(table.c.start)).where(mine)).scalar_one()
            if oldest is None or oldest >= cut:
                return total
            end = min(cut, oldest + _SLICE_SECONDS)
            total += connection.execute(delete(table).where(mine, table.c.start < end)).rowcount


def _evidence_of_old_versions(store: Store, owner: int) -> int:
    with store.write() as connection:
        deployments.lock(connection, [owner])
        return drift_sums.forget(connection, owner, KEPT_VERSIONS)


def _rows_before(store: Store, table: Table, column: str, cut: float) -> int:
    total = 0
    batch = select(table.c.id).where(table.c[column] < cut).limit(_BATCH_ROWS)
    while True:
        with store.write() as connection:
            gone = connection.execute(delete(table).where(table.c.id.in_(batch))).rowcount
        total += gone
        if gone < _BATCH_ROWS:
            return total
