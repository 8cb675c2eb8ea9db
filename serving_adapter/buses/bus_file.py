"""The SQLite file under the embedded bus."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from serving_adapter.ports import TransportError

BUSY_SECONDS = 5.0
"""How long a writer waits for another one before it gives up."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS topics (
    topic TEXT PRIMARY KEY,
    partitions INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS ends (
    topic TEXT NOT NULL,
    partition INTEGER NOT NULL,
    next_offset INTEGER NOT NULL,
    PRIMARY KEY (topic, partition)
);
CREATE TABLE IF NOT EXISTS messages (
    topic TEXT NOT NULL,
    partition INTEGER NOT NULL,
    position INTEGER NOT NULL,
    key BLOB NOT NULL,
    value BLOB NOT NULL,
    headers BLOB NOT NULL,
    taken_at REAL NOT NULL,
    PRIMARY KEY (topic, partition, position)
);
CREATE TABLE IF NOT EXISTS commits (
    consumers TEXT NOT NULL,
    topic TEXT NOT NULL,
    partition INTEGER NOT NULL,
    position INTEGER NOT NULL,
    PRIMARY KEY (consumers, topic, partition)
);
"""


class BusFile:
    """One connection to the file, shared by the threads of this process."""

    def __init__(self, path: Path | str, topic: str, partitions: int) -> None:
        self.path = Path(path)
        self.topic = topic
        self._lock = threading.Lock()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(
                self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
        except (OSError, sqlite3.Error) as error:
            raise TransportError(f"bus {self.path}: {error}") from error
        with self.run() as connection:
            # Normal: the death of every process loses nothing, that of the machine may lose the last moment.
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            known = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'commits'").fetchone()
        if known is None:
            with self.transaction() as connection:
                for statement in filter(str.strip, _SCHEMA.split(";")):
                    connection.execute(statement)
        self.partitions = self._partitions(partitions)

    @contextmanager
    def run(self) -> Iterator[sqlite3.Connection]:
        """The connection, alone, with SQLite's errors as the port's."""
        with self._lock:
            try:
                yield self._connection
            except sqlite3.Error as error:
                raise TransportError(f"bus {self.path}: {error}") from error

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """One write transaction: all of it or nothing."""
        with self.run() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def _partitions(self, wanted: int) -> int:
        """How many partitions the topic has; whoever comes first decides."""
        select = "SELECT partitions FROM topics WHERE topic = ?"
        with self.run() as connection:
            row = connection.execute(select, (self.topic,)).fetchone()
        if row is None:
            with self.transaction() as connection:
                connection.execute("INSERT OR IGNORE INTO topics VALUES (?, ?)", (self.topic, wanted))
                connection.executemany(
                    "INSERT OR IGNORE INTO ends SELECT ?, ?, 0 WHERE ? < "
                    "(SELECT partitions FROM topics WHERE topic = ?)",
                    [(self.topic, p, p, self.topic) for p in range(wanted)],
                )
                row = connection.execute(select, (self.topic,)).fetchone()
        return int(row[0])

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()
