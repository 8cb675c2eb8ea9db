"""What only Kafka has: brokers that go and come, rebalances, topics, TLS and accounts."""

import os
import threading
import time
from collections.abc import Callable

import pytest
from kafka.admin import ConfigResource, KafkaAdminClient

from serving_adapter.buses import describe_topics, ensure_topics, open_dead_letters, open_sink, open_source
from serving_adapter.buses.kafka import KafkaConnection, KafkaSink, KafkaSource, TopicPlan, create_topics
from serving_adapter.ports import (
    AssignmentListener,
    Message,
    MessageRefusedError,
    OutgoingMessage,
    TransportError,
)
from serving_adapter.settings import Settings
from tools.servers import ExistingServer, KafkaServer

Server = KafkaServer | ExistingServer
DEADLINE = 90.0
FROM_THE_BEGINNING = AssignmentListener(lambda _partitions: {})


@pytest.fixture
def connection(kafka: Server) -> KafkaConnection:
    return KafkaConnection(kafka.bootstrap)


@pytest.fixture
def topic(connection: KafkaConnection, kafka_topic: Callable[[str], str]) -> str:
    name = kafka_topic("events")
    create_topics(connection, [TopicPlan(name, 4, 3_600_000)])
    return name


def source_of(connection: KafkaConnection, topic: str, **settings: float) -> KafkaSource:
    return KafkaSource(
        connection, topic, f"collectors-{topic}", FROM_THE_BEGINNING, session_seconds=6.0, **settings
    )


def read(source: KafkaSource, count: int) -> list[Message]:
    found: list[Message] = []
    deadline = time.monotonic() + DEADLINE
    while len(found) < count and time.monotonic() < deadline:
        found += source.poll(0.2)
    return found


def settings_of(connection: KafkaConnection, topic: str) -> dict[str, str]:
    admin = connection.open(KafkaAdminClient)
    (described,) = admin.describe_configs([ConfigResource("topic", topic)], config_filter="all").values()
    admin.close()
    found: dict[str, str] = {
        name: value["value"] if isinstance(value, dict) else value for name, value in described[topic].items()
    }
    return found


@pytest.mark.servers
def test_topics_are_made_once_with_their_settings(
    connection: KafkaConnection, kafka_topic: Callable[[str], str]
) -> None:
    plan = TopicPlan(kafka_topic("events"), 12, 24 * 3_600_000)
    assert create_topics(connection, [plan]) == [plan.name]
    assert create_topics(connection, [plan]) == []
    settings = settings_of(connection, plan.name)
    assert settings["retention.ms"] == "86400000"
    assert settings["max.message.bytes"] == str(8 * 1024 * 1024)
    assert settings["message.timestamp.type"] == "LogAppendTime"


@pytest.mark.servers
def test_settings_open_the_whole_bus(kafka: Server, kafka_topic: Callable[[str], str]) -> None:
    settings = Settings(
        kafka_bootstrap=kafka.bootstrap,
        kafka_topic=kafka_topic("events"),
        kafka_dead_letter_topic=kafka_topic("dead"),
        kafka_group=kafka_topic("group"),
        kafka_partitions=3,
    )
    assert describe_topics(settings) == {settings.kafka_topic: 0, settings.kafka_dead_letter_topic: 0}
    assert ensure_topics(settings) == [settings.kafka_topic, settings.kafka_dead_letter_topic]
    assert ensure_topics(settings) == []
    assert describe_topics(settings) == {settings.kafka_topic: 3, settings.kafka_dead_letter_topic: 1}
    sink, dead_letters = open_sink(settings), open_dead_letters(settings)
    assert sink.publish([OutgoingMessage(b"k", b"event")]) == 1
    assert dead_letters.publish([OutgoingMessage(b"k", os.urandom(9_000_000))]) == 1
    assigned: list[frozenset[int]] = []

    def start(partitions: frozenset[int]) -> dict[int, int]:
        assigned.append(partitions)
        return {}

    source = open_source(settings, AssignmentListener(start))
    found: list[Message] = []
    deadline = time.monotonic() + DEADLINE
    while not found and time.monotonic() < deadline:
        found = source.poll(0.2)
    assert [(m.topic, m.value) for m in found] == [(settings.kafka_topic, b"event")]
    assert assigned == [frozenset({0, 1, 2})]
    for each in (source, sink, dead_letters):
        each.close()


@pytest.mark.servers
@pytest.mark.parametrize("compression", ["auto", "lz4", "gzip", "none"])
def test_every_compression_is_read_back(connection: KafkaConnection, topic: str, compression: str) -> None:
    sink = KafkaSink(KafkaConnection(connection.bootstrap, compression=compression), topic)
    sink.publish([OutgoingMessage(b"k", b"abc" * 1000)])
    source = source_of(connection, topic)
    assert [m.value for m in read(source, 1)] == [b"abc" * 1000]
    source.close()
    sink.close()


@pytest.mark.servers
def test_a_topic_that_does_not_exist_is_named(connection: KafkaConnection) -> None:
    sink = KafkaSink(connection, "nonesuch")
    with pytest.raises(TransportError, match="no topic nonesuch"):
        sink.publish([OutgoingMessage(b"k", b"v")])
    sink.close()


@pytest.mark.servers
def test_a_topic_that_is_made_later_is_found(
    connection: KafkaConnection, kafka_topic: Callable[[str], str]
) -> None:
    name = kafka_topic("later")
    source = source_of(connection, name)
    assert source.poll(1.0) == []
    create_topics(connection, [TopicPlan(name, 1, 3_600_000)])
    sink = KafkaSink(connection, name)
    sink.publish([OutgoingMessage(b"k", b"v")])
    source.close()
    source = source_of(connection, name)
    assert [m.value for m in read(source, 1)] == [b"v"]
    source.close()
    sink.close()


@pytest.mark.servers
def test_a_message_above_the_limit_of_the_broker_is_refused_and_its_neighbours_pass(
    connection: KafkaConnection, kafka_topic: Callable[[str], str]
) -> None:
    name = kafka_topic("small")
    create_topics(connection, [TopicPlan(name, 1, 3_600_000, max_message_bytes=100_000)])
    large = OutgoingMessage(b"k", os.urandom(150_000))
    good = [OutgoingMessage(b"k", b"%d" % i) for i in range(4)]
    sink = KafkaSink(connection, name)
    assert sink.publish(good[:2]) == 2
    with pytest.raises(MessageRefusedError, match="more than the broker takes"):
        sink.publish([large, *good[2:]])
    assert sink.publish(good[2:]) == 2
    sink.close()
    source = source_of(connection, name)
    values = [m.value for m in read(source, 4)]
    assert [v for v in dict.fromkeys(values) if len(v) == 1] == [b"0", b"1", b"2", b"3"]
    source.close()


@pytest.mark.servers
def test_messages_that_are_too_large_together_go_apart(
    connection: KafkaConnection, kafka_topic: Callable[[str], str]
) -> None:
    name = kafka_topic("small")
    create_topics(connection, [TopicPlan(name, 1, 3_600_000, max_message_bytes=100_000)])
    messages = [OutgoingMessage(b"k", b"%d" % i + os.urandom(30_000)) for i in range(9)]
    sink = KafkaSink(connection, name)
    assert sink.publish(messages) == 9
    sink.close()
    source = source_of(connection, name)
    assert [m.value for m in read(source, 9)] == [m.value for m in messages]
    source.close()


@pytest.mark.servers
def test_a_dead_letter_fits_a_topic_with_a_small_limit(
    connection: KafkaConnection, kafka_topic: Callable[[str], str]
) -> None:
    name = kafka_topic("small")
    create_topics(connection, [TopicPlan(name, 1, 3_600_000, max_message_bytes=1_000_000)])
    sink = KafkaSink(connection, name, truncate=True)
    value = os.urandom(5_000_000)
    assert sink.publish([OutgoingMessage(b"k", value, (("reason", b"why"),))]) == 1
    sink.close()
    source = source_of(connection, name)
    (message,) = read(source, 1)
    assert value.startswith(message.value)
    assert (message.header("reason"), message.header("truncated-from")) == ("why", "5000000")
    source.close()


@pytest.mark.servers
def test_lag_may_be_asked_while_another_thread_polls(connection: KafkaConnection, topic: str) -> None:
    sink, source = KafkaSink(connection, topic), source_of(connection, topic)
    sink.publish([OutgoingMessage(b"k", b"0")])
    read(source, 1)
    poller = threading.Thread(target=lambda: source.poll(2.0))
    poller.start()
    while poller.is_alive():
        assert source.lag() == dict.fromkeys(range(4), 0)
    source.close()
    sink.close()


@pytest.mark.servers
def test_polls_too_short_for_a_join_still_join(connection: KafkaConnection, topic: str) -> None:
    sink = KafkaSink(connection, topic)
    sink.publish([OutgoingMessage(b"k", b"v")])
    for attempt in range(8):
        source = KafkaSource(connection, topic, f"{topic}-{attempt}", FROM_THE_BEGINNING)
        found: list[Message] = []
        deadline = time.monotonic() + DEADLINE
        while not found and time.monotonic() < deadline:
            found = source.poll(0.002 * attempt)
        assert [m.value for m in found] == [b"v"]
        source.close()
    sink.close()


@pytest.mark.servers
def test_positions_are_kept_apart_from_what_the_group_was_told(
    connection: KafkaConnection, topic: str
) -> None:
    sink, source = KafkaSink(connection, topic), source_of(connection, topic)
    sink.publish([OutgoingMessage(b"k", b"%d" % i) for i in range(200)])
    (partition,) = {m.partition for m in read(source, 200)}
    for offset in range(1, 201):
        source.commit({partition: offset})
    assert sum(source.lag().values()) == 0
    source.close()
    again = source_of(connection, topic)
    assert len(read(again, 200)) == 200
    again.close()
    sink.close()


@pytest.mark.faults
@pytest.mark.servers
def test_a_frozen_broker_holds_nobody_and_is_used_again_when_it_moves(
    kafka: Server, connection: KafkaConnection, topic: str
) -> None:
    sink, source = KafkaSink(connection, topic, publish_seconds=1.0), source_of(connection, topic)
    assert sink.publish([OutgoingMessage(b"k", b"before")]) == 1
    assert [m.value for m in read(source, 1)] == [b"before"]
    kafka.pause()
    try:
        with pytest.raises(TransportError):
            sink.publish([OutgoingMessage(b"k", b"during")])
        assert source.poll(0.1) == []
    finally:
        kafka.resume()
    assert sink.publish([OutgoingMessage(b"k", b"after")]) == 1
    arrived = [m.value for m in read(source, 1)]
    while b"after" not in arrived:
        arrived += [m.value for m in read(source, 1)]
    assert [v for v in arrived if v != b"during"] == [b"after"]
    source.close()
    sink.close()


@pytest.mark.faults
@pytest.mark.servers
def test_what_was_acknowledged_survives_a_killed_broker_and_the_reader_goes_on(
    kafka: Server, connection: KafkaConnection, topic: str
) -> None:
    sink = KafkaSink(connection, topic, publish_seconds=3.0)
    source = source_of(connection, topic)
    messages = [OutgoingMessage(b"replica-%d" % (i % 3), b"%d" % i) for i in range(300)]
    found: list[Message] = []
    stop = threading.Event()

    def collect() -> None:
        while not stop.is_set():
            found.extend(source.poll(0.1))  # never raises while the broker is away for a moment

    collector = threading.Thread(target=collect)
    collector.start()
    errors = 0

    def publish_from(position: int, upto: int) -> int:
        nonlocal errors
        try:
            return position + sink.publish(messages[position : min(position + 7, upto)])
        except TransportError:
            errors += 1
            return position

    position = 0
    while position < 100:
        position = publish_from(position, 100)
    kafka.kill()
    while errors == 0:
        position = publish_from(position, 200)
    restart = threading.Thread(target=kafka.start)
    restart.start()
    deadline = time.monotonic() + DEADLINE
    while position < 300 and time.monotonic() < deadline:
        position = publish_from(position, 300)
    restart.join()
    while len({m.value for m in found}) < 300 and time.monotonic() < deadline and collector.is_alive():
        time.sleep(0.05)
    stop.set()
    collector.join()
    source.close()
    sink.close()
    assert position == 300
    assert {int(m.value) for m in found} == set(range(300))
    assert sink.producers_made > 1
    for key in {m.key for m in messages}:
        # Some arrive twice, but the first arrivals keep the order in which they were sent.
        mine = [int(m.value) for m in sorted(found, key=lambda m: (m.partition, m.offset)) if m.key == key]
        assert list(dict.fromkeys(mine)) == sorted(set(mine))
