"""Making the topics with the settings that the rest relies on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kafka import errors
from kafka.admin import KafkaAdminClient

from serving_adapter.buses.kafka.connection import KafkaConnection
from serving_adapter.buses.limits import TOPIC_MAX_MESSAGE_BYTES


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """A topic to make. ``replication`` -1 is the broker's default."""

    name: str
    partitions: int
    retention_ms: int
    replication: int = -1
    max_message_bytes: int = TOPIC_MAX_MESSAGE_BYTES


def create_topics(connection: KafkaConnection, plans: Sequence[TopicPlan]) -> list[str]:
    """Make the topics that do not exist; returns their names. Existing ones are left as they are.

    Raises
    ------
    TransportError
        The cluster cannot be reached, or does not let us make a topic.
    """
    admin = connection.open(KafkaAdminClient, request_timeout_ms=15_000)
    created = []
    try:
        for plan in plans:
            options = {
                "num_partitions": plan.partitions,
                "replication_factor": plan.replication,
                "configs": {
                    "retention.ms": str(plan.retention_ms),
                    "max.message.bytes": str(plan.max_message_bytes),
                    # So that a message's time is when the broker took it, whatever the clock of the pod.
                    "message.timestamp.type": "LogAppendTime",
                },
            }
            try:
                admin.create_topics({plan.name: options}, wait_for_metadata=True)
            except errors.TopicAlreadyExistsError:
                continue
            created.append(plan.name)
    except (errors.KafkaError, RuntimeError) as error:
        raise connection.trouble(error, "creating topics") from error
    finally:
        admin.close()
    return created


def count_partitions(connection: KafkaConnection, topics: Sequence[str]) -> dict[str, int]:
    """Partitions of each topic, 0 for one that does not exist.

    Raises
    ------
    TransportError
        The cluster cannot be reached, or does not show us its topics.
    """
    admin = connection.open(KafkaAdminClient, request_timeout_ms=15_000)
    try:
        existing = {topic for topic in admin.list_topics() if topic in topics}
        described = admin.describe_topics(sorted(existing)) if existing else []
    except (errors.KafkaError, RuntimeError) as error:
        raise connection.trouble(error, "looking at topics") from error
    finally:
        admin.close()
    found = {topic["name"]: len(topic["partitions"]) for topic in described}
    return {topic: found.get(topic, 0) for topic in topics}
