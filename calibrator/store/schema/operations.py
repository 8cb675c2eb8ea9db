"""Tables of operations: schedules, runs, rollouts."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    SmallInteger,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
)

from calibrator.core.arms import ARM_SUMS
from calibrator.store.schema.base import RowId, deployment_column, metadata

schedules = Table(
    "schedules",
    metadata,
    Column("deployment_id", RowId, ForeignKey("deployments.id"), primary_key=True, autoincrement=False),
    Column("interval_seconds", Double),  # null, as is cron: the interval of the settings
    Column("cron", String(128)),
    Column("paused", Boolean, nullable=False, server_default=false()),
    Column("since", Double, nullable=False),  # ticks up to here belong to the schedule before
    Column("revision", BigInteger, nullable=False),  # compare-and-set
)

runs = Table(
    "runs",
    metadata,
    Column("id", RowId, primary_key=True),
    deployment_column(),
    Column("kind", String(32), nullable=False),
    Column("trigger", String(16), nullable=False),
    Column("dry_run", Boolean, nullable=False),
    Column("tick", BigInteger),  # ms since 1970 of the schedule's tick; null: not by schedule
    Column("state", String(16), nullable=False),
    Column("outcome", String(32)),
    Column("attempt", SmallInteger, nullable=False),
    Column("holder", String(128)),
    Column("acquired_until", Double),
    Column("created_at", Double, nullable=False),
    Column("started_at", Double),  # of the latest attempt
    Column("finished_at", Double),
    Column("rows_used", BigInteger),
    Column("version", BigInteger),
    Column("refresh_id", RowId),  # its row may be deleted before the run's
    Column("reasons", JSON, nullable=False),
    UniqueConstraint("deployment_id", "kind", "tick"),
    Index(None, "deployment_id", "id"),
    Index(None, "state", "id"),
    # Runs of one deployment never overlap, whatever the services believe.
    Index(
        "ix_runs_one_running",
        "deployment_id",
        unique=True,
        postgresql_where=text("state = 'running'"),
        sqlite_where=text("state = 'running'"),
    ),
    # What asks again before its run has begun is answered by that run.
    Index(
        "ix_runs_one_waiting",
        "deployment_id",
        "kind",
        "trigger",
        "dry_run",
        unique=True,
        postgresql_where=text("state = 'waiting'"),
        sqlite_where=text("state = 'waiting'"),
    ),
)

rollouts = Table(
    "rollouts",
    metadata,
    Column("id", RowId, primary_key=True),
    deployment_column(),
    Column("version", BigInteger, nullable=False),
    Column("control_version", BigInteger, nullable=False),  # 0: the identity
    Column("stage", String(16), nullable=False),
    Column("state", String(16), nullable=False),
    Column("share", Double, nullable=False),
    Column("rules", JSON, nullable=False),  # as they were when it began
    Column("evidence", JSON, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("stage_since", Double, nullable=False),
    Column("finished_at", Double),
    Column("reason", Text),
    Index(None, "deployment_id", "started_at"),
    Index(
        "ix_rollouts_one_running",
        "deployment_id",
        unique=True,
        postgresql_where=text("state = 'running'"),
        sqlite_where=text("state = 'running'"),
    ),
)

rollout_history = Table(
    "rollout_history",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("rollout_id", RowId, ForeignKey("rollouts.id"), nullable=False),
    Column("at", Double, nullable=False),
    Column("stage", String(16), nullable=False),
    Column("reason", Text, nullable=False),
    Column("actor", String(256), nullable=False),
    Index(None, "rollout_id", "at"),
)

arm_sums = Table(
    "arm_sums",
    metadata,
    Column("rollout_id", RowId, ForeignKey("rollouts.id"), primary_key=True, autoincrement=False),
    Column("arm", String(8), primary_key=True),  # shadow, control, canary
    Column("request_group", SmallInteger, primary_key=True, autoincrement=False),
    *(Column(column, BigInteger, nullable=False) for column in ARM_SUMS),
)
"""Sums of a running rollout's rows, by arm and random group of requests."""
