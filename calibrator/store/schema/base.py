"""What every table shares: one metadata, one naming convention, one kind of row id.

Every constraint is named (by the convention below), so that migrations can address it on every database.
No native enums: a new word must not need a migration. All times are seconds since 1970 (UTC).
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Column, ForeignKey, Integer, MetaData

NAMING_CONVENTION = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}
metadata = MetaData(naming_convention=NAMING_CONVENTION)

# SQLite numbers rows by itself only in a column declared INTEGER.
RowId = BigInteger().with_variant(Integer, "sqlite")


def deployment_column(**options: Any) -> Column[Any]:
    """Build the column that says whose row it is."""
    return Column("deployment_id", RowId, ForeignKey("deployments.id"), nullable=False, **options)
