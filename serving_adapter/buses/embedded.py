"""The event bus in one SQLite file: what a laptop, a demo or a single machine uses instead of Kafka.

Several processes may write and one reads. Partitions, offsets, order per key, retention and the hand-over of
partitions are those of the Kafka bus, so the code above cannot tell them apart.

The file is in write-ahead mode: a message is kept from the moment :meth:`EmbeddedSink.publish` returns, also
when every process is killed then. Like the file itself, the bus belongs to one machine: SQLite's write-ahead
mode and the owner's lock do not work over a network file system.
"""

from __future__ import annotations

import fcntl
import logging
import sqlite3
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from urllib.parse import quote

import msgspec

from serving_adapter.buses.limits import MAX_BUS_MESSAGE_BYTES, cut_to_size, message_bytes
from serving_adapter.clock import SystemClock
from serving_adapter.ports import (
    AssignmentListener,
    Clock,
    Headers,
    Message,
    MessageRefusedError,
    OutgoingMessage,
    Positions,
    TransportError,
)

log = logging.getLogger(__name__)

PARTITIONS = 4
KEPT_SECONDS = 24 * 3600.0
KEPT_MESSAGES = 50_000
"""Per partition. At about 20 flushes a second and replica this is 40 minutes of one busy replica."""

BUSY_SECONDS = 5.0
"""How long a writer waits for another one before it gives up."""

_LOOK_SECONDS = 0.02  # SQLite cannot wake a reader: this is how often an idle one looks again
_TRIM_EVERY = 64  # publishes between two looks at retention

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


class _Database:
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
        with self._lock:
            self._connection.close()


class EmbeddedSink:
    """Appends messages to a topic of the file.

    Parameters
    ----------
    path, topic
        The file, made with its folder where there is none, and the topic in it.
    partitions
        How many the topic gets when this is the first to open it.
    kept_messages, kept_seconds
        Retention: a message goes when it is older, or when that many newer ones are in its partition.
    max_message_bytes, truncate
        A larger message is refused, or cut to that size with the header ``truncated-from`` (dead letters).
    """

    def __init__(
        self,
        path: Path | str,
        topic: str,
        *,
        partitions: int = PARTITIONS,
        kept_messages: int = KEPT_MESSAGES,
        kept_seconds: float = KEPT_SECONDS,
        max_message_bytes: int = MAX_BUS_MESSAGE_BYTES,
        truncate: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._database = _Database(path, topic, partitions)
        self._kept_messages = kept_messages
        self._kept_seconds = kept_seconds
        self._max_message_bytes = max_message_bytes
        self._truncate = truncate
        self._clock = clock or SystemClock()
        self._published = 0

    def publish(self, messages: Sequence[OutgoingMessage]) -> int:
        """Append all of them in one transaction; returns their number.

        Raises
        ------
        MessageRefusedError
            The first message is too large. With a larger one further on, those before it are stored.
        TransportError
            The file cannot be written: nothing was stored.
        """
        accepted: list[OutgoingMessage] = []
        for message in messages:
            size = message_bytes(message)
            if size > self._max_message_bytes:
                if not self._truncate:
                    break
                message = cut_to_size(message, self._max_message_bytes)
            accepted.append(message)
        if messages and not accepted:
            raise MessageRefusedError(
                self._database.topic,
                f"{message_bytes(messages[0])} bytes, at most {self._max_message_bytes}",
            )
        if accepted:
            self._append(accepted)
        return len(accepted)

    def _append(self, messages: Sequence[OutgoingMessage]) -> None:
        topic, now = self._database.topic, self._clock.now()
        with self._database.transaction() as connection:
            ends: dict[int, int] = dict(
                connection.execute("SELECT partition, next_offset FROM ends WHERE topic = ?", (topic,))
            )
            rows = []
            for message in messages:
                partition = zlib.crc32(message.key) % self._database.partitions
                headers = msgspec.msgpack.encode(message.headers)
                rows.append((topic, partition, ends[partition], message.key, message.value, headers, now))
                ends[partition] += 1
            connection.executemany("INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
            connection.executemany(
                "UPDATE ends SET next_offset = ? WHERE topic = ? AND partition = ?",
                [(end, topic, partition) for partition, end in ends.items()],
            )
            if self._published % _TRIM_EVERY == 0:
                self._trim(connection, ends, now)
        self._published += 1

    def _trim(self, connection: sqlite3.Connection, ends: dict[int, int], now: float) -> None:
        topic = self._database.topic
        connection.executemany(
            "DELETE FROM messages WHERE topic = ? AND partition = ? AND position < ?",
            [(topic, partition, end - self._kept_messages) for partition, end in ends.items()],
        )
        for partition in ends:
            # From the oldest on, so that a partition without old messages costs one look.
            first_young = connection.execute(
                "SELECT position FROM messages WHERE topic = ? AND partition = ? AND taken_at >= ? "
                "ORDER BY position LIMIT 1",
                (topic, partition, now - self._kept_seconds),
            ).fetchone()
            before = ends[partition] if first_young is None else first_young[0]
            connection.execute(
                "DELETE FROM messages WHERE topic = ? AND partition = ? AND position < ?",
                (topic, partition, before),
            )

    def close(self) -> None:
        """Close the file."""
        self._database.close()


class EmbeddedSource:
    """Reads a topic of the file; the reader that holds the lock beside it gets every partition.

    A second reader of the same group waits without partitions, and takes over as soon as the first one
    closes or dies (the operating system gives the lock back). Reading never removes anything.

    Parameters
    ----------
    path, topic
        The file and the topic in it, made where there is none.
    listener
        Told in :meth:`poll` when the partitions come, and in :meth:`close` when they go.
    group
        Readers of different groups do not know of each other.
    partitions
        How many the topic gets when this is the first to open it.
    """

    def __init__(
        self,
        path: Path | str,
        topic: str,
        listener: AssignmentListener,
        *,
        group: str = "dspark",
        partitions: int = PARTITIONS,
    ) -> None:
        self._database = _Database(path, topic, partitions)
        self._listener = listener
        self._group = group
        self._lock_path = Path(f"{path}.{quote(f'{group}.{topic}', safe='')}.lock")
        self._lock: IO[bytes] | None = None
        self._positions: dict[int, int] = {}
        self._first = 0  # the partition that is read first, in turn, so that none starves

    def poll(self, timeout: float, max_messages: int = 500) -> list[Message]:
        """Next messages, in order per partition; empty after ``timeout`` seconds, or while another one owns.

        Raises
        ------
        TransportError
            The file cannot be read.
        """
        deadline = time.monotonic() + timeout
        while True:
            if self._owns():
                found = self._read(max_messages)
                if found:
                    return found
            left = deadline - time.monotonic()
            if left <= 0:
                return []
            time.sleep(min(left, _LOOK_SECONDS))

    def seek(self, partition: int, offset: int) -> None:
        """Read that partition from ``offset`` next; ValueError when it is not assigned."""
        if partition not in self._positions:
            raise ValueError(f"partition: got {partition}, expected one of {sorted(self._positions)}")
        self._positions[partition] = offset

    def commit(self, positions: Positions) -> None:
        """Note how far the group is, for whoever looks into the file."""
        with self._database.transaction() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO commits VALUES (?, ?, ?, ?)",
                [(self._group, self._database.topic, p, offset) for p, offset in positions.items()],
            )

    def committed(self) -> dict[int, int]:
        """What :meth:`commit` noted last, by partition."""
        with self._database.run() as connection:
            return dict(
                connection.execute(
                    "SELECT partition, position FROM commits WHERE consumers = ? AND topic = ?",
                    (self._group, self._database.topic),
                )
            )

    def lag(self) -> dict[int, int]:
        """Messages not yet read, for every assigned partition."""
        ends = self._ends()
        return {p: max(0, ends.get(p, 0) - position) for p, position in self._positions.items()}

    def close(self) -> None:
        """Tell the listener that the partitions go, give the lock back and close the file."""
        try:
            if self._positions:
                self._listener.revoked(frozenset(self._positions))
        finally:
            self._positions = {}
            if self._lock is not None:
                self._lock.close()
                self._lock = None
            self._database.close()

    def _owns(self) -> bool:
        if self._positions:
            return True
        if self._lock is None:
            lock: IO[bytes] | None = None
            try:
                lock = self._lock_path.open("ab")
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if lock is not None:
                    lock.close()
                return False
            except OSError as error:
                raise TransportError(f"bus {self._lock_path}: {error}") from error
            self._lock = lock
        partitions = frozenset(range(self._database.partitions))
        given = self._listener.assigned(partitions)
        self._positions = {p: given.get(p, 0) for p in sorted(partitions)}
        return True

    def _read(self, max_messages: int) -> list[Message]:
        found: list[Message] = []
        count, topic = self._database.partitions, self._database.topic
        with self._database.run() as connection:
            for i in range(count):
                partition = (self._first + i) % count
                # Every partition gets its part, the last one what the others left.
                room = -(-(max_messages - len(found)) // (count - i))
                rows = connection.execute(
                    "SELECT position, key, value, headers, taken_at FROM messages "
                    "WHERE topic = ? AND partition = ? AND position >= ? ORDER BY position LIMIT ?",
                    (topic, partition, self._positions[partition], room),
                ).fetchall()
                found += [
                    Message(topic, partition, position, key, value, _headers(headers), taken_at)
                    for position, key, value, headers, taken_at in rows
                ]
        self._first = (self._first + 1) % count
        if not found:
            self._reset_positions_past_the_end()
        for message in found:
            self._positions[message.partition] = message.offset + 1
        return found

    def _reset_positions_past_the_end(self) -> None:
        """Start over where the file is younger than our position (somebody removed it), as Kafka does."""
        ends = self._ends()
        for partition, position in self._positions.items():
            if position > ends.get(partition, 0):
                log.warning(
                    "bus %s: position %d of partition %d is past its end %d: reading from the beginning",
                    self._database.path, position, partition, ends.get(partition, 0),
                )  # fmt: skip
                self._positions[partition] = 0

    def _ends(self) -> dict[int, int]:
        with self._database.run() as connection:
            return dict(
                connection.execute(
                    "SELECT partition, next_offset FROM ends WHERE topic = ?", (self._database.topic,)
                )
            )


def _headers(packed: bytes) -> Headers:
    return tuple((name, value) for name, value in msgspec.msgpack.decode(packed))
