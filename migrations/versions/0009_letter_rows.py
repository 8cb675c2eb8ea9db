"""All rows that a refused message accounts for: its steps, and what it said was lost before it.

Revision ID: 0009
Revises: 0008
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

COLUMNS = ("rows_lost", "first_step", "step_count", "steps_lost")


def upgrade() -> None:
    for name in COLUMNS:
        op.add_column("dead_letters", sa.Column(name, sa.BigInteger()))


def downgrade() -> None:
    for name in reversed(COLUMNS):
        op.drop_column("dead_letters", name)
