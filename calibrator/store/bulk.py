"""Inserting thousands of rows at a time, past the per-row work of the SQL toolkit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Table

from calibrator.store.errors import DataRefusedError, StoreUnavailableError


def insert_columns(connection: Connection, table: Table, columns: Mapping[str, Sequence[Any]]) -> None:
    """Insert rows given as columns of equal length, in the caller's transaction.

    Values are handed to the driver as they are. PostgreSQL takes them by COPY, SQLite by ``executemany``.
    """
    names = tuple(columns)
    rows = list(zip(*columns.values(), strict=True))
    if not rows:
        return
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(_insert(table.name, names), rows)
        return
    import psycopg

    driver: Any = connection.connection.driver_connection
    quoted = ", ".join(f'"{name}"' for name in names)
    try:
        with driver.cursor() as cursor, cursor.copy(f'COPY "{table.name}" ({quoted}) FROM STDIN') as copy:
            for row in rows:
                copy.write_row(row)
    except (psycopg.DataError, psycopg.IntegrityError) as error:
        raise DataRefusedError(" ".join(str(error).split())) from error
    except psycopg.Error as error:
        raise StoreUnavailableError(" ".join(str(error).split())) from error


@lru_cache(maxsize=16)
def _insert(table: str, names: tuple[str, ...]) -> str:
    quoted = ", ".join(f'"{name}"' for name in names)
    marks = ", ".join("?" * len(names))
    return f'INSERT INTO "{table}" ({quoted}) VALUES ({marks})'  # noqa: S608  names of our own columns
