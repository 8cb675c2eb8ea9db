"""Recency: until when rows were forgotten.

Revision ID: 0006
Revises: 0005
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_ROW_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "sample_cuts",
        sa.Column("id", _ROW_ID, nullable=False),
        sa.Column("deployment_id", _ROW_ID, nullable=False),
        sa.Column("segment", sa.String(128)),
        sa.Column("before", sa.Double, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_sample_cuts"),
        sa.ForeignKeyConstraint(
            ["deployment_id"], ["deployments.id"], name="fk_sample_cuts_deployment_id_deployments"
        ),
    )
    op.create_index("ix_sample_cuts_deployment_id_before", "sample_cuts", ["deployment_id", "before"])


def downgrade() -> None:
    op.drop_table("sample_cuts")
