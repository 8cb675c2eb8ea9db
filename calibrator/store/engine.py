"""Engines for SQLite and PostgreSQL, set up so that both behave alike."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    IntegrityError,
    NotSupportedError,
    ProgrammingError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.pool import StaticPool

from calibrator.store.errors import DataRefusedError, SchemaError, StoreError, StoreUnavailableError
from calibrator.store.patience import keep_patience

LOCK_SECONDS = 5
"""A lock is waited for this long: less than the ten seconds in which a collector must have drained."""
CONNECT_SECONDS = 5
IDLE_SECONDS = 30
"""A collector frozen inside a transaction loses it after this long, so that others can go on."""
APPLICATION = "dspark-calibrator"
"""What our connections call themselves."""


def normalised(url: str) -> URL:
    """Parse a database URL; ``postgresql://`` and ``postgres://`` mean psycopg 3.

    Raises
    ------
    StoreError
        When it is no URL, or one of a database that is not supported.
    """
    try:
        parsed = make_url(url)
    except Exception as error:
        raise StoreError(f"database URL: got {url!r}, expected sqlite:///FILE or postgresql://...") from error
    if parsed.drivername in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in ("sqlite", "sqlite+pysqlite", "postgresql+psycopg"):
        raise StoreError(f"database URL: got {parsed.drivername}, expected sqlite or postgresql")
    return parsed


def open_engine(url: str, pool_size: int = 5, wait_seconds: float | None = None) -> Engine:
    """Open a pool of connections.

    SQLite: WAL, foreign keys, a busy timeout, and transactions that this module begins itself (the driver
    begins them too late to serialise writers). PostgreSQL: connections are tested before use, so that a
    restarted server costs one reconnect, not one failure per pooled connection.

    Parameters
    ----------
    url
        See :class:`calibrator.store.store.Store`.
    pool_size
        Connections kept open.
    wait_seconds
        With it the pool has these connections and no more, and a free one is waited for this long. Without,
        it may grow for a while.
    """
    parsed = normalised(url)
    pool: dict[str, Any] = {"pool_size": pool_size}
    if wait_seconds is not None:
        pool |= {"max_overflow": 0, "pool_timeout": wait_seconds}
    if parsed.drivername == "postgresql+psycopg":
        server = create_engine(
            parsed,
            **pool,
            pool_pre_ping=True,
            connect_args={
                "connect_timeout": CONNECT_SECONDS,
                "tcp_user_timeout": 10_000,
                "application_name": APPLICATION,
                "options": f"-c timezone=UTC -c lock_timeout={LOCK_SECONDS}s "
                f"-c idle_in_transaction_session_timeout={IDLE_SECONDS}s",
            },
        )
        keep_patience(server)
        return server
    if parsed.database in (None, "", ":memory:"):
        engine = create_engine(parsed, poolclass=StaticPool, connect_args={"check_same_thread": False})
    else:
        engine = create_engine(parsed, **pool, connect_args={"timeout": LOCK_SECONDS})
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {LOCK_SECONDS * 1000}")
    cursor.execute("PRAGMA journal_mode = WAL")
    # With WAL this never corrupts; a power cut may undo the last commits, positions and sums alike.
    cursor.execute("PRAGMA synchronous = NORMAL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that reads first and writes later can fail half-way with "database is locked".
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


@contextmanager
def translated() -> Iterator[None]:
    """Turn database errors into the store's own, by what a caller may do about them."""
    try:
        yield
    except PoolTimeoutError as error:
        raise StoreUnavailableError(str(error)) from error
    except DBAPIError as error:
        text = " ".join(str(error.orig).split())
        if isinstance(error, DataError | IntegrityError) or isinstance(
            error.orig, OverflowError | UnicodeError
        ):
            raise DataRefusedError(text) from error
        missing = "no such table" in text or "no such column" in text
        if missing or isinstance(error, ProgrammingError | NotSupportedError):
            raise SchemaError(text) from error
        raise StoreUnavailableError(text) from error
    except (OverflowError, UnicodeError) as error:
        raise DataRefusedError(str(error)) from error
