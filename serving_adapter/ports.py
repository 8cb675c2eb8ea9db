"""Ports: everything outside the process, behind one small protocol each.

Each has a real and an embedded implementation, and one parametrised test module runs against both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from serving_adapter.contract import ParameterDocument

Headers = tuple[tuple[str, bytes], ...]


class TransportError(Exception):
    """The bus or store could not be reached or refused the call; trying again may help."""


class MessageRefusedError(Exception):
    """The bus will never take the first message (too large): sending it again cannot help."""

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(f"{topic}: message refused: {reason}")
        self.topic = topic
        self.reason = reason


class VersionConflictError(Exception):
    """A document was not published because the store holds the same or a later version."""

    def __init__(self, deployment: str, version: int, in_force: int) -> None:
        super().__init__(f"{deployment}: version {version} was not published, {in_force} is in force")
        self.deployment = deployment
        self.version = version
        self.in_force = in_force


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A message for the bus. Messages of one key keep their order."""

    key: bytes
    value: bytes
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class Message:
    """A message from the bus. ``timestamp`` is when the bus took it, in seconds since 1970."""

    topic: str
    partition: int
    offset: int
    key: bytes
    value: bytes
    headers: Headers = ()
    timestamp: float = 0.0

    def header(self, name: str, default: str = "") -> str:
        """Value of the first header of that name, as text."""
        for key, value in self.headers:
            if key == name:
                return value.decode("utf-8", errors="replace")
        return default


class EventSink(Protocol):
    """Where verify events go."""

    def publish(self, messages: Sequence[OutgoingMessage]) -> int:
        """Deliver in order; return how many from the front are durably stored.

        Returning fewer than were given means that the rest may or may not have arrived: the caller
        sends them again, and the collector discards what it has seen (rows are numbered).

        Raises
        ------
        TransportError
            When nothing could be delivered.
        MessageRefusedError
            When the first message can never be delivered. With such a message further on, those before
            it are counted and the next call raises.
        """
        ...

    def close(self) -> None:
        """Release connections."""
        ...


Positions = Mapping[int, int]
"""Partition -> offset of the next message to read."""


@dataclass(frozen=True, slots=True)
class AssignmentListener:
    """Called from ``poll`` when partitions come and go.

    ``assigned`` returns where to start each partition (the truth lives in SQL); a partition it leaves
    out starts at the beginning. ``revoked`` must finish and commit before it returns.
    """

    assigned: Callable[[frozenset[int]], Positions]
    revoked: Callable[[frozenset[int]], None] = field(default=lambda _partitions: None)


class EventSource(Protocol):
    """Where collectors read verify events from."""

    def poll(self, timeout: float, max_messages: int = 500) -> list[Message]:
        """Next messages in order of offset per partition; empty after ``timeout`` seconds.

        Raises
        ------
        TransportError
            When the bus cannot be reached.
        """
        ...

    def seek(self, partition: int, offset: int) -> None:
        """Read that partition from ``offset`` next."""
        ...

    def commit(self, positions: Positions) -> None:
        """Tell the bus how far we are: a courtesy for lag tools, never relied upon."""
        ...

    def lag(self) -> dict[int, int]:
        """Messages not yet read, for every assigned partition."""
        ...

    def close(self) -> None:
        """Leave the group and release connections."""
        ...


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """What a replica says of the parameters it was offered.

    ``applied`` is the version in force there (0: identity); ``refused`` the last version it refused,
    with ``reason``; ``forms`` what its engine can apply; ``segment_sets`` whether it applies sets per
    segment, or the pooled set to every row; ``reported_at`` seconds since 1970.
    """

    replica: str
    applied: int
    reported_at: float
    fingerprint: str = ""
    forms: tuple[str, ...] = ("temperature",)
    refused: int = 0
    reason: str = ""
    segment_sets: bool = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """A document on trial, and the part of the replicas that takes it, in (0, 1]."""

    document: bytes
    share: float


class ParameterStore(Protocol):
    """Where parameter documents live. The key is the truth; ``wait_for_change`` is only a hint."""

    def read(self, deployment: str) -> bytes | None:
        """Read the document in force, as stored; None when there is none."""
        ...

    def publish(self, document: ParameterDocument) -> None:
        """Put a sealed document in force if its version is higher, and tell subscribers, in one step.

        Raises
        ------
        VersionConflictError
            The store holds the same or a later version.
        TransportError
            The store cannot be reached.
        """
        ...

    def offer(self, document: ParameterDocument, share: float) -> None:
        """Put a sealed candidate on trial with that share of the replicas; raises as :meth:`publish` does."""
        ...

    def candidate(self, deployment: str) -> Candidate | None:
        """Read the candidate on trial; None when there is none."""
        ...

    def withdraw(self, deployment: str) -> None:
        """Remove the candidate, if any, and tell subscribers."""
        ...

    def wait_for_change(self, deployment: str, timeout: float) -> bool:
        """Wait for a hint that the document changed; False after ``timeout`` seconds."""
        ...

    def report(self, deployment: str, report: ReplicaReport, expire_seconds: float) -> None:
        """Store what a replica applied or refused; it disappears when not repeated in time."""
        ...

    def reports(self, deployment: str) -> dict[str, ReplicaReport]:
        """Reports of all live replicas, by replica."""
        ...

    def close(self) -> None:
        """Release connections."""
        ...


class Clock(Protocol):
    """Time, so that tests and replays can hold it in their hands. UTC only."""

    def now(self) -> float:
        """Seconds since 1970."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        ...
