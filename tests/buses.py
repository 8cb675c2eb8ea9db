"""A bus of either kind, the database that its readers keep positions in, and reading with a deadline."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from serving_adapter.buses.embedded import EmbeddedSink, EmbeddedSource
from serving_adapter.buses.kafka import KafkaConnection, KafkaSink, KafkaSource
from serving_adapter.ports import (
    AssignmentListener,
    EventSink,
    EventSource,
    Message,
    OutgoingMessage,
)

DEADLINE = 60.0
PARTITIONS = 4


@dataclass
class Bus:
    """A bus with one empty topic."""

    kind: str
    address: str
    topic: str

    def sink(self, truncate: bool = False) -> EventSink:
        if self.kind == "kafka":
            return KafkaSink(KafkaConnection(self.address), self.topic, truncate=truncate)
        return EmbeddedSink(self.address, self.topic, truncate=truncate)

    def source(self, listener: AssignmentListener, group: str = "collectors") -> EventSource:
        group = f"{group}-{self.topic}"
        if self.kind == "kafka":
            return KafkaSource(
                KafkaConnection(self.address), self.topic, group, listener, session_seconds=3.0
            )
        return EmbeddedSource(self.address, self.topic, listener, group=group)


@dataclass
class Ledger:
    """The truth about positions, as the collectors' database keeps it, and what happened to it."""

    positions: dict[int, int] = field(default_factory=dict)
    assigned: set[int] = field(default_factory=set)
    calls: list[tuple[str, frozenset[int]]] = field(default_factory=list)
    threads: set[int] = field(default_factory=set)

    def listener(self) -> AssignmentListener:
        def assigned(partitions: frozenset[int]) -> dict[int, int]:
            self.calls.append(("assigned", partitions))
            self.threads.add(threading.get_ident())
            self.assigned |= partitions
            return {p: self.positions[p] for p in partitions if p in self.positions}

        def revoked(partitions: frozenset[int]) -> None:
            self.calls.append(("revoked", partitions))
            self.threads.add(threading.get_ident())
            self.assigned -= partitions

        return AssignmentListener(assigned, revoked)

    def advance(self, messages: list[Message]) -> None:
        for message in messages:
            self.positions[message.partition] = message.offset + 1


def read(source: EventSource, count: int) -> list[Message]:
    """Messages until there are that many, and whatever comes with the last of them."""
    found: list[Message] = []
    deadline = time.monotonic() + DEADLINE
    while len(found) < count and time.monotonic() < deadline:
        found += source.poll(0.2)
    return found


def numbered(count: int, keys: int = 8) -> list[OutgoingMessage]:
    return [OutgoingMessage(b"replica-%d" % (i % keys), b"%d" % i) for i in range(count)]


def publish_all(sink: EventSink, messages: list[OutgoingMessage]) -> None:
    assert sink.publish(messages) == len(messages)


def values(messages: list[Message]) -> list[bytes]:
    return [message.value for message in messages]


def until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
