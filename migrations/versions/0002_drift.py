"""Drift, step costs, throughput ledger.

Revision ID: 0002
Revises: 0001
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

# Frozen copies: a migration must not change when the code that it once served does.
_EVIDENCE = (
    "verified", "gap", "drafted", "acceptance",
    "above_0", "above_1", "above_2", "above_3", "above_4",
    "below_0", "below_1", "below_2", "below_3", "below_4",
)  # fmt: skip
_WEIGHTS = ("weight", "weight_squared")
_LEDGER = (
    "steps", "requests", "budget", "seconds", "draft_seconds", "verify_seconds", "rounds", "drafted",
    "verified", "accepted", "emitted", "scaled_accepted", "scaled_emitted", "reported_seconds",
    "spent_seconds",
)  # fmt: skip

_ROW_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def _column(name: str, kind: sa.types.TypeEngine, nullable: bool = False) -> sa.Column:
    return sa.Column(name, kind, nullable=nullable)


def _key(name: str, kind: sa.types.TypeEngine | None = None) -> sa.Column:
    return sa.Column(name, kind or sa.BigInteger(), autoincrement=False, nullable=False)


def _refers(table: str, column: str, to: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint([column], [f"{to}.id"], name=op.f(f"fk_{table}_{column}_{to}"))


def _sums(table: str, keys: list[sa.Column], sums: tuple[str, ...], *more: sa.schema.SchemaItem) -> None:
    """Create a table of additive sums per deployment and ``keys``."""
    names = ["deployment_id", *(key.name for key in keys)]
    op.create_table(
        table,
        _key("deployment_id", _ROW_ID),
        *keys,
        *(_column(name, sa.BigInteger()) for name in sums),
        sa.PrimaryKeyConstraint(*names, name=op.f(f"pk_{table}")),
        _refers(table, "deployment_id", "deployments"),
        *more,
    )


def upgrade() -> None:
    _sums(
        "drift_sums",
        [_key("version"), _key("segment_id", _ROW_ID), _key("position", sa.SmallInteger())],
        _EVIDENCE,
        _refers("drift_sums", "segment_id", "segments"),
    )
    _sums("cost_drift", [_key("start"), _key("regime"), _key("context"), _key("bin")], _WEIGHTS)
    _sums("cost_totals", [_key("regime"), _key("context"), _key("bin")], _WEIGHTS)
    _sums("ledger_sums", [_key("start"), _key("load")], _LEDGER)
    op.create_table(
        "drift_state",
        _key("deployment_id", _ROW_ID),
        _column("revision", sa.BigInteger()),
        _column("evaluated_at", sa.Double()),
        _column("state", sa.JSON()),
        sa.PrimaryKeyConstraint("deployment_id", name=op.f("pk_drift_state")),
        _refers("drift_state", "deployment_id", "deployments"),
    )
    op.create_table(
        "episodes",
        _column("id", _ROW_ID),
        _column("deployment_id", _ROW_ID),
        _column("kind", sa.String(16)),
        _column("segment", sa.String(128), nullable=True),
        _column("position", sa.SmallInteger(), nullable=True),
        _column("load_regime", sa.BigInteger(), nullable=True),
        _column("context_bucket", sa.BigInteger(), nullable=True),
        _column("direction", sa.String(8), nullable=True),
        _column("started_at", sa.Double()),
        _column("alarmed_at", sa.Double()),
        _column("ended_at", sa.Double(), nullable=True),
        _column("gap", sa.Double(), nullable=True),
        _column("summary", sa.Text()),
        _column("remedy", sa.Text()),
        _column("version", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_episodes")),
        _refers("episodes", "deployment_id", "deployments"),
    )
    op.create_index(op.f("ix_episodes_deployment_id_ended_at"), "episodes", ["deployment_id", "ended_at"])
    op.create_index(op.f("ix_episodes_ended_at"), "episodes", ["ended_at"])


def downgrade() -> None:
    for table in ("episodes", "drift_state", "ledger_sums", "cost_totals", "cost_drift", "drift_sums"):
        op.drop_table(table)
