"""The store: deployments, windows, samples, ledgers, positions, parameter versions.

Revision ID: 0001
Revises:
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# Frozen copies: a migration must not change when the code that it once served does.
_SCALARS = (
    "drafted", "verified", "accepted", "predicted", "weight", "weight_squared", "weight_predicted",
    "weight_accepted", "brier", "log_loss",
)  # fmt: skip
_BIN_SUMS = ("drafted", "weight", "weight_squared", "predicted", "accepted")
_BINS = 20
_WINDOW_TABLES = ("windows", "raw_windows", "window_hours", "raw_window_hours")
_COUNTERS = ("next_sequence", "folded", "lost", "dead_lettered", "duplicates")

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


def upgrade() -> None:
    op.create_table(
        "deployments",
        _id(),
        _column("name", sa.String(128)),
        _column("gamma", sa.SmallInteger()),
        _column("fingerprint", sa.String(128)),
        _column("settings", sa.JSON()),
        _column("created_at", sa.Double()),
        sa.Column("frozen", sa.Boolean(), server_default=sa.false(), nullable=False),
        _key("deployments", "id"),
        _unique("deployments", "name"),
    )
    op.create_table(
        "segments",
        _id(),
        _column("deployment_id", _ROW_ID),
        _column("name", sa.String(128)),
        _key("segments", "id"),
        _unique("segments", "deployment_id", "name"),
        _refers("segments", "deployment_id", "deployments"),
    )
    sums = [*_SCALARS, *(f"bin_{name}_{b:02d}" for name in _BIN_SUMS for b in range(_BINS))]
    for table in _WINDOW_TABLES:
        op.create_table(
            table,
            sa.Column("deployment_id", _ROW_ID, autoincrement=False, nullable=False),
            sa.Column("start", sa.BigInteger(), autoincrement=False, nullable=False),
            sa.Column("segment_id", _ROW_ID, autoincrement=False, nullable=False),
            _column("sampling", sa.String(8)),
            sa.Column("position", sa.SmallInteger(), autoincrement=False, nullable=False),
            *(_column(name, sa.BigInteger()) for name in sums),
            _key(table, "deployment_id", "start", "segment_id", "sampling", "position"),
            _refers(table, "deployment_id", "deployments"),
            _refers(table, "segment_id", "segments"),
        )
    op.create_table(
        "boots",
        _id(),
        _column("deployment_id", _ROW_ID),
        _column("replica", sa.String(128)),
        _column("boot", sa.String(128)),
        _column("fingerprint", sa.String(128)),
        _column("revision", sa.BigInteger()),
        _column("round_intervals", sa.JSON()),
        *(_column(f"round_{name}", sa.BigInteger()) for name in _COUNTERS),
        _column("step_intervals", sa.JSON()),
        *(_column(f"step_{name}", sa.BigInteger()) for name in _COUNTERS),
        _column("unknown_version", sa.BigInteger()),
        _column("misdated", sa.BigInteger()),
        _column("first_seen", sa.Double()),
        _column("last_seen", sa.Double()),
        _key("boots", "id"),
        _unique("boots", "deployment_id", "replica", "boot"),
        _refers("boots", "deployment_id", "deployments"),
    )
    _index("boots", "deployment_id", "last_seen")
    op.create_table(
        "sample_state",
        _id(),
        _column("deployment_id", _ROW_ID),
        _column("segment_id", _ROW_ID),
        _column("sampling", sa.String(8)),
        _column("half_life_seconds", sa.Double()),
        _column("threshold", sa.Double(), nullable=True),
        _column("kept", sa.BigInteger()),
        _column("seen", sa.BigInteger()),
        _key("sample_state", "id"),
        _unique("sample_state", "deployment_id", "segment_id", "sampling"),
        _refers("sample_state", "deployment_id", "deployments"),
        _refers("sample_state", "segment_id", "segments"),
    )
    op.create_table(
        "sample_rows",
        _id(),
        _column("stratum_id", _ROW_ID),
        _column("priority", sa.Double()),
        _column("arrival", sa.Double()),
        _column("boot_id", _ROW_ID),
        _column("row_number", sa.BigInteger()),
        _column("fingerprint", sa.String(128)),
        _column("share", sa.Double()),
        _column("request", sa.BigInteger()),
        _column("step", sa.BigInteger()),
        _column("logits", sa.LargeBinary()),
        _column("accept_probability", sa.LargeBinary(), nullable=True),
        _column("scheduled", sa.SmallInteger()),
        _column("verified", sa.SmallInteger()),
        _column("accepted", sa.SmallInteger()),
        _column("resolved", sa.SmallInteger()),
        _column("resolved_accepted", sa.SmallInteger()),
        _column("draft_stop", sa.SmallInteger()),
        _column("explore", sa.Double()),
        _column("version", sa.BigInteger()),
        _column("temperature", sa.Double()),
        _key("sample_rows", "id"),
        _unique("sample_rows", "boot_id", "row_number"),
        _refers("sample_rows", "stratum_id", "sample_state"),
        _refers("sample_rows", "boot_id", "boots"),
    )
    _index("sample_rows", "stratum_id", "priority")
    op.create_table(
        "step_state",
        _id(),
        _column("deployment_id", _ROW_ID),
        _column("size_class", sa.SmallInteger()),
        _column("half_life_seconds", sa.Double()),
        _column("threshold", sa.Double(), nullable=True),
        _column("kept", sa.BigInteger()),
        _column("seen", sa.BigInteger()),
        _key("step_state", "id"),
        _unique("step_state", "deployment_id", "size_class"),
        _refers("step_state", "deployment_id", "deployments"),
    )
    op.create_table(
        "step_rows",
        _id(),
        _column("stratum_id", _ROW_ID),
        _column("priority", sa.Double()),
        _column("arrival", sa.Double()),
        _column("boot_id", _ROW_ID),
        _column("step_number", sa.BigInteger()),
        _column("fingerprint", sa.String(128)),
        _column("rows", sa.BigInteger()),
        _column("batch_tokens", sa.BigInteger()),
        _column("requests", sa.BigInteger()),
        _column("context_tokens", sa.Double()),
        _column("step_seconds", sa.Double()),
        _column("draft_seconds", sa.Double()),
        _column("verify_seconds", sa.Double()),
        _column("graph_tokens", sa.BigInteger()),
        _column("predicted_accepted", sa.Double()),
        _column("predicted_seconds", sa.Double()),
        _key("step_rows", "id"),
        _unique("step_rows", "boot_id", "step_number"),
        _refers("step_rows", "stratum_id", "step_state"),
        _refers("step_rows", "boot_id", "boots"),
    )
    _index("step_rows", "stratum_id", "priority")
    op.create_table(
        "positions",
        _column("consumer_group", sa.String(128)),
        _column("topic", sa.String(249)),
        sa.Column("partition", sa.Integer(), autoincrement=False, nullable=False),
        _column("next_offset", sa.BigInteger()),
        _column("updated_at", sa.Double()),
        _key("positions", "consumer_group", "topic", "partition"),
    )
    op.create_table(
        "dead_letters",
        _id(),
        _column("topic", sa.String(249)),
        _column("partition", sa.Integer()),
        _column("offset", sa.BigInteger()),
        _column("reason", sa.Text()),
        _column("at", sa.Double()),
        _column("size", sa.BigInteger()),
        _column("deployment", sa.String(128), nullable=True),
        _column("replica", sa.String(128), nullable=True),
        _column("boot", sa.String(128), nullable=True),
        _column("first_row", sa.BigInteger(), nullable=True),
        _column("row_count", sa.BigInteger(), nullable=True),
        _key("dead_letters", "id"),
        _unique("dead_letters", "topic", "partition", "offset"),
    )
    _index("dead_letters", "deployment", "replica", "boot")
    _index("dead_letters", "at")
    op.create_table(
        "parameter_versions",
        sa.Column("deployment_id", _ROW_ID, autoincrement=False, nullable=False),
        sa.Column("version", sa.BigInteger(), autoincrement=False, nullable=False),
        _column("document", sa.JSON()),
        _column("created_at", sa.Double()),
        _column("state", sa.String(32)),
        _key("parameter_versions", "deployment_id", "version"),
        _refers("parameter_versions", "deployment_id", "deployments"),
    )
    op.create_table(
        "refreshes",
        _id(),
        _column("deployment_id", _ROW_ID),
        _column("started", sa.Double()),
        _column("finished", sa.Double(), nullable=True),
        _column("outcome", sa.String(32), nullable=True),
        _column("reasons", sa.JSON()),
        _column("evidence", sa.JSON()),
        _column("version", sa.BigInteger(), nullable=True),
        _key("refreshes", "id"),
        _refers("refreshes", "deployment_id", "deployments"),
    )
    _index("refreshes", "deployment_id", "started")
    op.create_table(
        "leases",
        _column("name", sa.String(128)),
        _column("holder", sa.String(256)),
        _column("acquired_until", sa.Double()),
        _key("leases", "name"),
    )


def downgrade() -> None:
    for table in (
        "leases", "refreshes", "parameter_versions", "dead_letters", "positions", "step_rows", "step_state",
        "sample_rows", "sample_state", "boots", *reversed(_WINDOW_TABLES), "segments", "deployments",
    ):  # fmt: skip
        op.drop_table(table)
