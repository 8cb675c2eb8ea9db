"""``INSERT ... ON CONFLICT`` for both databases."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Table
from sqlalchemy.dialects import postgresql, sqlite


def insert_into(dialect: str, table: Table) -> Any:
    """Begin an insert that knows ``on_conflict_do_update`` and ``on_conflict_do_nothing``.

    Parameters
    ----------
    dialect
        ``connection.dialect.name``.
    table
        Where to.
    """
    return sqlite.insert(table) if dialect == "sqlite" else postgresql.insert(table)
