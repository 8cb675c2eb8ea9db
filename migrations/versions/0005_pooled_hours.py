"""Hours added up over segments and sampling buckets, so that a month of them is read in milliseconds.

Revision ID: 0005
Revises: 0004
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

# Frozen copies: a migration must not change when the code that it once served does.
_SCALARS = (
    "drafted", "verified", "accepted", "predicted", "weight", "weight_squared", "weight_predicted",
    "weight_accepted", "brier", "log_loss",
)  # fmt: skip
_BIN_SUMS = ("drafted", "weight", "weight_squared", "predicted", "accepted")
_BINS = 20
_SUMS = (*_SCALARS, *(f"bin_{name}_{b:02d}" for name in _BIN_SUMS for b in range(_BINS)))
_POOLED = {"pooled_hours": "window_hours", "raw_pooled_hours": "raw_window_hours"}
_KEY = ("deployment_id", "start", "position")

_ROW_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    for table, source in _POOLED.items():
        op.create_table(
            table,
            sa.Column("deployment_id", _ROW_ID, autoincrement=False, nullable=False),
            sa.Column("start", sa.BigInteger(), autoincrement=False, nullable=False),
            sa.Column("position", sa.SmallInteger(), autoincrement=False, nullable=False),
            *(sa.Column(name, sa.BigInteger(), nullable=False) for name in _SUMS),
            sa.PrimaryKeyConstraint(*_KEY, name=op.f(f"pk_{table}")),
            sa.ForeignKeyConstraint(
                ["deployment_id"], ["deployments.id"], name=op.f(f"fk_{table}_deployment_id_deployments")
            ),
        )
        keys = ", ".join(f'"{name}"' for name in _KEY)
        columns = ", ".join(_SUMS)
        totals = ", ".join(f"CAST(sum({name}) AS BIGINT)" for name in _SUMS)
        op.execute(
            f"INSERT INTO {table} ({keys}, {columns}) SELECT {keys}, {totals} FROM {source} GROUP BY {keys}"  # noqa: S608
        )
        index = op.f(f"ix_{source}_deployment_id_segment_id_start")
        op.create_index(index, source, ["deployment_id", "segment_id", "start"])


def downgrade() -> None:
    for table, source in _POOLED.items():
        op.drop_index(op.f(f"ix_{source}_deployment_id_segment_id_start"), source)
        op.drop_table(table)
