"""Operations: schedules, runs, rollouts.

Revision ID: 0004
Revises: 0003
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

# Frozen copies: a migration must not change when the code that it once served does.
_ARM_SUMS = (
    "rounds", "accepted", "verified", "at_risk", "candidate_log_loss", "control_log_loss",
    "candidate_brier", "control_brier", "candidate_gap", "control_gap", "steps", "log_step_ratio",
)  # fmt: skip
_ROW_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def _id() -> sa.Column:
    return sa.Column("id", _ROW_ID, nullable=False)


def _column(name: str, kind: sa.types.TypeEngine, nullable: bool = False) -> sa.Column:
    return sa.Column(name, kind, nullable=nullable)


def _key(table: str, *columns: str) -> sa.PrimaryKeyConstraint:
    return sa.PrimaryKeyConstraint(*columns, name=op.f(f"pk_{table}"))


def _unique(table: str, *columns: str) -> sa.UniqueConstraint:
    return sa.UniqueConstraint(*columns, name=op.f(f"uq_{table}_{'_'.join(columns)}"))


def _refers(table: str, column: str, to: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint([column], [f"{to}.id"], name=op.f(f"fk_{table}_{column}_{to}"))


def _index(table: str, *columns: str) -> None:
    op.create_index(op.f(f"ix_{table}_{'_'.join(columns)}"), table, list(columns))


def _one_per(name: str, table: str, columns: list[str], where: str) -> None:
    condition = sa.text(where)
    op.create_index(
        op.f(name), table, columns, unique=True, postgresql_where=condition, sqlite_where=condition
    )


def upgrade() -> None:
    op.create_table(
        "schedules",
        sa.Column("deployment_id", _ROW_ID, autoincrement=False, nullable=False),
        _column("interval_seconds", sa.Double(), nullable=True),
        _column("cron", sa.String(128), nullable=True),
        sa.Column("paused", sa.Boolean(), server_default=sa.false(), nullable=False),
        _column("since", sa.Double()),
        _column("revision", sa.BigInteger()),
        _key("schedules", "deployment_id"),
        _refers("schedules", "deployment_id", "deployments"),
    )
    op.create_table(
        "runs",
        _id(),
        _column("deployment_id", _ROW_ID),
        _column("kind", sa.String(32)),
        _column("trigger", sa.String(16)),
        _column("dry_run", sa.Boolean()),
        _column("tick", sa.BigInteger(), nullable=True),
        _column("state", sa.String(16)),
        _column("outcome", sa.String(32), nullable=True),
        _column("attempt", sa.SmallInteger()),
        _column("holder", sa.String(128), nullable=True),
        _column("acquired_until", sa.Double(), nullable=True),
        _column("created_at", sa.Double()),
        _column("started_at", sa.Double(), nullable=True),
        _column("finished_at", sa.Double(), nullable=True),
        _column("rows_used", sa.BigInteger(), nullable=True),
        _column("version", sa.BigInteger(), nullable=True),
        _column("refresh_id", _ROW_ID, nullable=True),
        _column("reasons", sa.JSON()),
        _key("runs", "id"),
        _unique("runs", "deployment_id", "kind", "tick"),
        _refers("runs", "deployment_id", "deployments"),
    )
    _index("runs", "deployment_id", "id")
    _index("runs", "state", "id")
    _one_per("ix_runs_one_running", "runs", ["deployment_id"], "state = 'running'")
    _one_per(
        "ix_runs_one_waiting", "runs", ["deployment_id", "kind", "trigger", "dry_run"], "state = 'waiting'"
    )
    _create_rollouts()


def _create_rollouts() -> None:
    op.create_table(
        "rollouts",
        _id(),
        _column("deployment_id", _ROW_ID),
        _column("version", sa.BigInteger()),
        _column("control_version", sa.BigInteger()),
        _column("stage", sa.String(16)),
        _column("state", sa.String(16)),
        _column("share", sa.Double()),
        _column("rules", sa.JSON()),
        _column("evidence", sa.JSON()),
        _column("started_at", sa.Double()),
        _column("stage_since", sa.Double()),
        _column("finished_at", sa.Double(), nullable=True),
        _column("reason", sa.Text(), nullable=True),
        _key("rollouts", "id"),
        _refers("rollouts", "deployment_id", "deployments"),
    )
    _index("rollouts", "deployment_id", "started_at")
    _one_per("ix_rollouts_one_running", "rollouts", ["deployment_id"], "state = 'running'")
    op.create_table(
        "rollout_history",
        _id(),
        _column("rollout_id", _ROW_ID),
        _column("at", sa.Double()),
        _column("stage", sa.String(16)),
        _column("reason", sa.Text()),
        _column("actor", sa.String(256)),
        _key("rollout_history", "id"),
        _refers("rollout_history", "rollout_id", "rollouts"),
    )
    _index("rollout_history", "rollout_id", "at")
    op.create_table(
        "arm_sums",
        sa.Column("rollout_id", _ROW_ID, autoincrement=False, nullable=False),
        _column("arm", sa.String(8)),
        sa.Column("request_group", sa.SmallInteger(), autoincrement=False, nullable=False),
        *(_column(name, sa.BigInteger()) for name in _ARM_SUMS),
        _key("arm_sums", "rollout_id", "arm", "request_group"),
        _refers("arm_sums", "rollout_id", "rollouts"),
    )


def downgrade() -> None:
    for table in ("arm_sums", "rollout_history", "rollouts", "runs", "schedules"):
        op.drop_table(table)
