"""Sums of squared weights in units of 2**-8 instead of 2**-24, so that they cannot overflow.

Revision ID: 0007
Revises: 0006
"""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_TABLES = ("windows", "raw_windows", "window_hours", "raw_window_hours", "pooled_hours", "raw_pooled_hours")
_COLUMNS = ("weight_squared", *(f"bin_weight_squared_{b:02d}" for b in range(20)))


def upgrade() -> None:
    _set("({name} + 32768) / 65536")


def downgrade() -> None:
    _set("{name} * 65536")


def _set(expression: str) -> None:
    values = ", ".join(f"{name} = {expression.format(name=name)}" for name in _COLUMNS)
    for table in _TABLES:
        op.execute(f"UPDATE {table} SET {values}")  # noqa: S608
