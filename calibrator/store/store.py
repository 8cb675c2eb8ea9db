"""The store: transactions, migrations, and the check that the tables are those of this release."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from calibrator.store.engine import open_engine, translated
from calibrator.store.errors import FileReplacedError, SchemaError, StoreUnavailableError
from calibrator.store.silence import end_silent_transactions, waited_for_lock

_MIGRATION_LOCK = 0x6473_7061_726B  # "dspark": a PostgreSQL advisory lock


def migrations_folder() -> Path:
    """Where the migrations are: inside the installed package, or at the top of the source tree."""
    packaged = Path(__file__).parent / "migrations"
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "migrations"


class Store:
    """A SQLite or PostgreSQL database with the tables of :mod:`calibrator.store.schema`.

    Parameters
    ----------
    url
        ``sqlite:///relative.db``, ``sqlite:////absolute.db`` or ``postgresql://user:password@host/name``.
    pool_size
        Connections kept open.
    wait_seconds
        With it there are never more, and a free one is waited for this long; without, there may be a few more
        for a while.

    Raises
    ------
    StoreError
        When the URL cannot be used. Opening connects to nothing.
    """

    def __init__(self, url: str, pool_size: int = 5, wait_seconds: float | None = None) -> None:
        self.engine = open_engine(url, pool_size, wait_seconds)
        self._in_memory = self.engine.url.database in (None, "", ":memory:")
        self._one_connection = threading.RLock()
        self._file: tuple[int, int] | None = None

    @property
    def dialect(self) -> str:
        """``sqlite`` or ``postgresql``."""
        return self.engine.dialect.name

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One consistent reading transaction on SQLite; on PostgreSQL each statement sees the latest."""
        with translated(), self._serialised(), self.engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """One transaction: everything in it is committed at the end, or nothing is.

        Raises
        ------
        StoreUnavailableError
            Locked, unreachable, full, read-only: nothing was changed.
        DataRefusedError
            A value that the database cannot hold: nothing was changed.
        """
        try:
            with translated(), self._serialised(), self.engine.connect() as connection:
                writer = connection.execution_options(writes=True)
                with writer.begin():
                    yield writer
        except StoreUnavailableError as error:
            if waited_for_lock(error):
                end_silent_transactions(self.engine)
            raise

    @contextmanager
    def _serialised(self) -> Iterator[None]:
        if not self._in_memory:
            yield
            return
        # A database in memory is one connection, which threads must take in turn.
        with self._one_connection:
            yield

    def migrate(self, revision: str = "head") -> None:
        """Bring the tables to that revision, forwards; processes that do so at once take turns."""
        with self.write() as connection:
            self._lock_migrations(connection)
            command.upgrade(self._alembic(connection), revision)

    def downgrade(self, revision: str = "base") -> None:
        """Bring the tables back to that revision; whatever later revisions hold is dropped."""
        with self.write() as connection:
            self._lock_migrations(connection)
            command.downgrade(self._alembic(connection), revision)

    def revision(self) -> str | None:
        """Migration that the database is at; None for a database without tables."""
        with self.read() as connection:
            return MigrationContext.configure(connection).get_current_revision()

    def check_schema(self) -> None:
        """Raise unless the database is at this release's revision.

        Raises
        ------
        SchemaError
            Saying which revision was found and how to mend it.
        """
        head = ScriptDirectory.from_config(self._alembic(None)).get_current_head()
        found = self.revision()
        if found != head:
            raise SchemaError(
                f"the database is at revision {found or 'none'}, this release needs {head}: "
                "run `dspark-calibrator migrate`"
            )

    def check_file(self) -> None:
        """Raise when the SQLite file is not the one that was there at the first call.

        Open connections go on with a file that was deleted: what they write is lost with the last of them.

        Raises
        ------
        FileReplacedError
            Deleted, or another file in its place.
        """
        if self.dialect != "sqlite" or self._in_memory:
            return
        path = Path(str(self.engine.url.database))
        try:
            found = path.stat()
        except OSError as error:
            raise FileReplacedError(f"{path}: {error.strerror}, while it is in use") from error
        identity = (found.st_dev, found.st_ino)
        if self._file is None:
            self._file = identity
        if self._file != identity:
            raise FileReplacedError(f"{path}: another file has taken its place while it is in use")

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    def _lock_migrations(self, connection: Connection) -> None:
        if self.dialect == "postgresql":
            connection.execute(text("SET LOCAL lock_timeout = 0"))
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _MIGRATION_LOCK})

    @staticmethod
    def _alembic(connection: Connection | None) -> Config:
        config = Config()
        config.set_main_option("script_location", str(migrations_folder()).replace("%", "%%"))
        config.attributes["connection"] = connection
        return config
