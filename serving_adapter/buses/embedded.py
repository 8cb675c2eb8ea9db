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
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO
from urllib.parse import quote

import msgspec

from serving_adapter.buses.bus_file import BusFile
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

_LOOK_SECONDS = 0.02  # SQLite cannot wake a reader: this is how often an idle one looks again
_TRIM_EVERY = 64  # publishes between two looks at retention


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
        self._database = BusFile(path, topic, partitions)
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
        self._database = BusFile(path, topic, partitions)
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
