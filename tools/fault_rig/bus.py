"""The bus seen from outside: how far it goes, and messages that nobody of ours would send."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from serving_adapter.ports import Message
from serving_adapter.settings import Settings


def ends(settings: Settings, topic: str | None = None) -> dict[int, int]:
    """Offset behind the last message, for every partition of a topic."""
    topic = topic or settings.kafka_topic
    if not settings.kafka_bootstrap:
        with closing(sqlite3.connect(settings.bus_path, timeout=10)) as connection:
            query = "SELECT partition, next_offset FROM ends WHERE topic = ?"
            return dict(connection.execute(query, (topic,)).fetchall())
    with closing(KafkaConsumer(bootstrap_servers=settings.kafka_bootstrap)) as consumer:
        partitions = consumer.partitions_for_topic(topic) or set()
        found = consumer.end_offsets([TopicPartition(topic, p) for p in partitions])
    return {where.partition: end for where, end in found.items()}


def everything(settings: Settings, topic: str) -> list[Message]:
    """All messages of a Kafka topic, in order per partition."""
    wanted = {partition: end for partition, end in ends(settings, topic).items() if end}
    found: list[Message] = []
    with closing(
        KafkaConsumer(
            bootstrap_servers=settings.kafka_bootstrap,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=16 * 1024 * 1024,
        )
    ) as consumer:
        consumer.assign([TopicPartition(topic, partition) for partition in wanted])
        consumer.seek_to_beginning()
        while any(consumer.position(TopicPartition(topic, p)) < end for p, end in wanted.items()):
            for where, records in consumer.poll(timeout_ms=1000).items():
                found += [
                    Message(
                        topic, where.partition, r.offset, r.key or b"", r.value or b"", tuple(r.headers),
                        r.timestamp / 1000,
                    )
                    for r in records
                ]  # fmt: skip
    return found


def send(settings: Settings, messages: Iterable[tuple[int, bytes, bytes, list[tuple[str, bytes]]]]) -> None:
    """Put messages (partition, key, value, headers) on the topic of verify events as they are."""
    producer = KafkaProducer(
        bootstrap_servers=settings.kafka_bootstrap, acks="all", max_request_size=16 * 1024 * 1024
    )
    with closing(producer):
        sent = [
            producer.send(settings.kafka_topic, partition=partition, key=key, value=value, headers=headers)
            for partition, key, value, headers in messages
        ]
        for each in sent:
            each.get(30)
