"""The refit of a version as temperatures alone, kept with the version.

Revision ID: 0008
Revises: 0007
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("parameter_versions", sa.Column("temperature_export", sa.JSON()))


def downgrade() -> None:
    op.drop_column("parameter_versions", "temperature_export")
