"""One set of statements, true of the embedded bus and of Kafka."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from serving_adapter.buses.kafka import KafkaConnection, TopicPlan, create_topics
from serving_adapter.buses.limits import MAX_BUS_MESSAGE_BYTES
from serving_adapter.ports import (
    AssignmentListener,
    EventSink,
    EventSource,
    Message,
    MessageRefusedError,
    OutgoingMessage,
)
from tests.buses import DEADLINE, PARTITIONS, Bus, Ledger, numbered, publish_all, read, values


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.servers)])
def bus(request: pytest.FixtureRequest, tmp_path: Path) -> Bus:
    if request.param == "embedded":
        return Bus("embedded", str(tmp_path / "bus.sqlite"), "events")
    address: str = request.getfixturevalue("kafka").bootstrap
    topic: str = request.getfixturevalue("kafka_topic")("events")
    create_topics(KafkaConnection(address), [TopicPlan(topic, PARTITIONS, 3_600_000)])
    return Bus("kafka", address, topic)


@pytest.fixture
def sink(bus: Bus) -> Iterator[EventSink]:
    opened = bus.sink()
    yield opened
    opened.close()


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def source(bus: Bus, ledger: Ledger) -> Iterator[EventSource]:
    opened = bus.source(ledger.listener())
    yield opened
    opened.close()


def test_a_message_arrives_as_it_was_sent(bus: Bus, sink: EventSink, source: EventSource) -> None:
    before = time.time()
    sent = OutgoingMessage(
        b"\x00key\xff", bytes(range(256)), (("content-type", b"a"), ("x", b"\xff\x00"), ("x", b""))
    )
    publish_all(sink, [sent])
    (message,) = read(source, 1)
    assert (message.key, message.value, message.headers) == (sent.key, sent.value, sent.headers)
    assert message.topic == bus.topic
    assert message.offset == 0
    assert before - 1 <= message.timestamp <= time.time() + 1
    assert message.header("content-type") == "a"


@pytest.mark.parametrize("value", [b"", b"\xff{", b"x" * 5_000_000])
def test_bytes_that_mean_nothing_pass_between_good_ones(
    sink: EventSink, source: EventSource, value: bytes
) -> None:
    publish_all(sink, [OutgoingMessage(b"k", v) for v in (b"before", value, b"after")])
    assert values(read(source, 3)) == [b"before", value, b"after"]


def test_publishing_nothing_is_fine(sink: EventSink) -> None:
    assert sink.publish([]) == 0


def test_messages_of_one_key_keep_their_order_and_their_partition(
    sink: EventSink, source: EventSource
) -> None:
    for start in range(0, 400, 50):
        publish_all(sink, numbered(400)[start : start + 50])
    messages = read(source, 400)
    assert sorted(int(message.value) for message in messages) == list(range(400))
    for key in {message.key for message in messages}:
        mine = [message for message in messages if message.key == key]
        assert len({message.partition for message in mine}) == 1
        assert [int(message.value) for message in mine] == sorted(int(message.value) for message in mine)
    for partition in {message.partition for message in messages}:
        offsets = [message.offset for message in messages if message.partition == partition]
        assert offsets == list(range(len(offsets)))


def test_a_silent_bus_gives_an_empty_list(source: EventSource) -> None:
    assert source.poll(0.05) == []


def test_a_poll_gives_at_most_as_many_as_asked_for(sink: EventSink, source: EventSource) -> None:
    publish_all(sink, numbered(100))
    found: list[Message] = []
    while len(found) < 100:
        batch = source.poll(1.0, max_messages=7)
        assert len(batch) <= 7
        found += batch
    assert sorted(int(message.value) for message in found) == list(range(100))


def test_the_listener_hears_of_every_partition_in_the_thread_that_polls(
    sink: EventSink, source: EventSource, ledger: Ledger
) -> None:
    publish_all(sink, numbered(10))
    read(source, 10)
    assert ledger.assigned == set(range(PARTITIONS))
    source.close()
    assert ledger.assigned == set()
    assert [name for name, _ in ledger.calls] == ["assigned", "revoked"]
    assert ledger.threads == {threading.get_ident()}


def test_reading_resumes_at_the_given_positions_and_else_at_the_beginning(
    bus: Bus, sink: EventSink, source: EventSource, ledger: Ledger
) -> None:
    publish_all(sink, numbered(100))
    first = read(source, 100)
    source.close()
    partition = first[0].partition
    there = [message for message in first if message.partition == partition]
    ledger.positions = {partition: 5}
    again = bus.source(ledger.listener())
    expected = 100 - 5
    messages = read(again, expected)
    again.close()
    assert len(messages) == expected
    assert values([m for m in messages if m.partition == partition]) == values(there[5:])


def test_offsets_that_the_bus_was_told_do_not_count(
    bus: Bus, sink: EventSink, source: EventSource, ledger: Ledger
) -> None:
    publish_all(sink, numbered(20))
    for message in read(source, 20):
        source.commit({message.partition: message.offset + 1})
    source.close()
    again = bus.source(ledger.listener())
    assert len(read(again, 20)) == 20
    again.close()


def test_a_consumer_that_stops_between_poll_and_commit_reads_the_same_again(
    bus: Bus, sink: EventSink, source: EventSource, ledger: Ledger
) -> None:
    publish_all(sink, numbered(30))
    ledger.advance(read(source, 30))
    publish_all(sink, numbered(12))
    lost = read(source, 12)  # polled, never committed
    source.close()
    again = bus.source(ledger.listener())
    assert sorted(read(again, 12), key=lambda m: (m.partition, m.offset)) == sorted(
        lost, key=lambda m: (m.partition, m.offset)
    )
    again.close()


def test_a_position_past_the_end_starts_at_the_beginning(bus: Bus, sink: EventSink, ledger: Ledger) -> None:
    publish_all(sink, numbered(20))
    ledger.positions = dict.fromkeys(range(PARTITIONS), 1_000_000)
    source = bus.source(ledger.listener())
    assert sorted(int(m.value) for m in read(source, 20)) == list(range(20))
    source.close()


def test_seeking_back_reads_again(sink: EventSink, source: EventSource) -> None:
    publish_all(sink, [OutgoingMessage(b"k", b"%d" % i) for i in range(10)])
    messages = read(source, 10)
    source.seek(messages[0].partition, 7)
    assert values(read(source, 3)) == [b"7", b"8", b"9"]


def test_seeking_in_a_partition_of_somebody_else_is_an_error(source: EventSource) -> None:
    with pytest.raises(ValueError, match="partition: got 99"):
        source.seek(99, 0)


def test_lag_counts_what_was_not_read(sink: EventSink, source: EventSource) -> None:
    publish_all(sink, numbered(40))
    read(source, 40)
    assert source.lag() == dict.fromkeys(range(PARTITIONS), 0)
    publish_all(sink, numbered(25))
    assert sum(source.lag().values()) == 25
    read(source, 25)
    assert sum(source.lag().values()) == 0


def test_what_the_listener_raises_comes_out_of_poll_and_the_next_poll_asks_again(
    bus: Bus, sink: EventSink
) -> None:
    publish_all(sink, numbered(10))
    asked: list[frozenset[int]] = []

    def assigned(partitions: frozenset[int]) -> dict[int, int]:
        asked.append(partitions)
        if len(asked) == 1:
            raise LookupError("the database is away")
        return {}

    source = bus.source(AssignmentListener(assigned))
    with pytest.raises(LookupError, match="the database is away"):
        read(source, 1)
    assert len(read(source, 10)) == 10
    assert len(asked) == 2
    source.close()


def test_the_listener_may_commit_while_partitions_go(bus: Bus, sink: EventSink) -> None:
    publish_all(sink, numbered(10))
    told: list[int] = []
    source: EventSource

    def revoked(partitions: frozenset[int]) -> None:
        source.commit(dict.fromkeys(partitions, 1))
        told.extend(partitions)

    source = bus.source(AssignmentListener(lambda _partitions: {}, revoked))
    read(source, 10)
    source.close()
    assert sorted(told) == list(range(PARTITIONS))


def test_a_message_too_large_is_refused_and_the_ones_before_it_are_stored(
    sink: EventSink, source: EventSource
) -> None:
    large = OutgoingMessage(b"k", b"x" * (MAX_BUS_MESSAGE_BYTES + 1))
    good = [OutgoingMessage(b"k", b"1"), OutgoingMessage(b"k", b"2")]
    assert sink.publish([*good, large, OutgoingMessage(b"k", b"3")]) == 2
    with pytest.raises(MessageRefusedError, match=str(MAX_BUS_MESSAGE_BYTES)):
        sink.publish([large, OutgoingMessage(b"k", b"3")])
    publish_all(sink, [OutgoingMessage(b"k", b"3")])
    assert values(read(source, 3)) == [b"1", b"2", b"3"]


def test_the_largest_message_passes_even_if_it_cannot_be_compressed(
    sink: EventSink, source: EventSource
) -> None:
    value = os.urandom(MAX_BUS_MESSAGE_BYTES - 1)
    publish_all(sink, [OutgoingMessage(b"k", value)])
    assert values(read(source, 1)) == [value]


def test_a_dead_letter_is_cut_rather_than_refused(bus: Bus, source: EventSource) -> None:
    dead_letters = bus.sink(truncate=True)
    value = os.urandom(MAX_BUS_MESSAGE_BYTES + 1000)
    publish_all(dead_letters, [OutgoingMessage(b"k", value, (("reason", b"too large"),))])
    dead_letters.close()
    (message,) = read(source, 1)
    assert value.startswith(message.value)
    assert len(message.value) > MAX_BUS_MESSAGE_BYTES - 1000
    assert message.header("reason") == "too large"
    assert message.header("truncated-from") == str(len(value))


def test_groups_do_not_know_of_each_other(bus: Bus, sink: EventSink) -> None:
    publish_all(sink, numbered(20))
    sources = [bus.source(Ledger().listener(), group=name) for name in ("one", "two")]
    assert [len(read(source, 20)) for source in sources] == [20, 20]
    for source in sources:
        source.close()


def test_many_publishers_at_once_lose_nothing(bus: Bus, source: EventSource) -> None:
    def publish(number: int) -> None:
        sink = bus.sink()
        for step in range(20):
            publish_all(sink, [OutgoingMessage(b"%d" % number, b"%d" % (step * 5 + i)) for i in range(5)])
        sink.close()

    threads = [threading.Thread(target=publish, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    messages = read(source, 400)
    for number in range(4):
        mine = [int(m.value) for m in messages if m.key == b"%d" % number]
        assert mine == list(range(100))


def test_members_of_a_group_share_the_work_and_a_leaving_one_hands_over(bus: Bus, sink: EventSink) -> None:
    shared: dict[int, int] = {}
    ledgers = [Ledger(shared), Ledger(shared)]
    members = [bus.source(ledger.listener()) for ledger in ledgers]
    folded: list[bytes] = []
    overlap: list[set[int]] = []

    def work(member: EventSource, ledger: Ledger) -> None:
        for message in member.poll(0.05):
            if message.offset == shared.get(message.partition, 0):  # as the collectors' database fences
                shared[message.partition] = message.offset + 1
                folded.append(message.value)
        overlap.append(ledgers[0].assigned & ledgers[-1].assigned if len(ledgers) > 1 else set())

    def work_until(condition: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + DEADLINE
        while not condition() and time.monotonic() < deadline:
            for member, ledger in zip(members, ledgers, strict=True):
                work(member, ledger)
        return condition()

    publish_all(sink, numbered(50, keys=32))
    assert work_until(lambda: len(folded) == 50)
    if bus.kind == "kafka":
        assert work_until(lambda: {len(ledger.assigned) for ledger in ledgers} == {2})
    publish_all(sink, numbered(50, keys=32))
    assert work_until(lambda: len(folded) == 100)
    leaving = 0 if ledgers[0].assigned else 1
    members.pop(leaving).close()
    assert ledgers.pop(leaving).assigned == set()
    publish_all(sink, numbered(50, keys=32))
    assert work_until(lambda: ledgers[0].assigned == set(range(PARTITIONS)) and len(folded) >= 150)
    assert sorted(folded, key=int) == sorted([b"%d" % i for i in range(50)] * 3, key=int)
    assert not any(overlap)
    for member in members:
        member.close()


READER = """
import sys
from serving_adapter.buses.embedded import EmbeddedSource
from serving_adapter.buses.kafka import KafkaConnection, KafkaSource
from serving_adapter.ports import AssignmentListener
kind, address, topic = sys.argv[1:]
listener = AssignmentListener(lambda partitions: {})
if kind == "kafka":
    there = KafkaConnection(address), topic, f"collectors-{topic}"
    source = KafkaSource(*there, listener, session_seconds=3.0)
else:
    source = EmbeddedSource(address, topic, listener, group=f"collectors-{topic}")
while True:
    for message in source.poll(0.5):
        print(message.value.decode(), flush=True)
"""


@pytest.mark.faults
def test_what_a_killed_consumer_had_polled_is_read_by_the_next_one(
    bus: Bus, sink: EventSink, source: EventSource
) -> None:
    publish_all(sink, numbered(10))
    arguments = [sys.executable, "-c", READER, bus.kind, bus.address, bus.topic]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        polled = {int(process.stdout.readline()) for _ in range(10)}
        os.kill(process.pid, signal.SIGKILL)
    assert polled == set(range(10))
    assert sorted(int(m.value) for m in read(source, 10)) == list(range(10))
