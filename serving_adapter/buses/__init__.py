"""The event bus: Kafka where a cluster is named in the settings, else one SQLite file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from serving_adapter.ports import AssignmentListener, EventSink, EventSource

if TYPE_CHECKING:
    from serving_adapter.buses.kafka import KafkaConnection
    from serving_adapter.settings import Settings

DEAD_LETTER_HOURS = 7 * 24.0
"""Long enough to be looked at after a weekend."""


def open_sink(settings: Settings) -> EventSink:
    """Where the forwarder publishes verify events."""
    if settings.kafka_bootstrap:
        from serving_adapter.buses.kafka import KafkaSink

        return KafkaSink(_connection(settings), settings.kafka_topic)
    from serving_adapter.buses.embedded import EmbeddedSink

    return EmbeddedSink(settings.bus_path, settings.kafka_topic)


def open_source(settings: Settings, listener: AssignmentListener) -> EventSource:
    """Where a collector reads verify events; it shares them with the others of its group."""
    if settings.kafka_bootstrap:
        from serving_adapter.buses.kafka import KafkaSource

        return KafkaSource(_connection(settings), settings.kafka_topic, settings.kafka_group, listener)
    from serving_adapter.buses.embedded import EmbeddedSource

    return EmbeddedSource(settings.bus_path, settings.kafka_topic, listener, group=settings.kafka_group)


def open_dead_letters(settings: Settings) -> EventSink:
    """Where collectors put what they refused, with the reason in a header.

    A message that is too large for the topic is cut, with its size in the header ``truncated-from``: a
    dead letter is never refused for its size.
    """
    topic = settings.kafka_dead_letter_topic
    if settings.kafka_bootstrap:
        from serving_adapter.buses.kafka import KafkaSink

        return KafkaSink(_connection(settings), topic, truncate=True)
    from serving_adapter.buses.embedded import EmbeddedSink

    return EmbeddedSink(
        settings.bus_path, topic, partitions=1, kept_seconds=DEAD_LETTER_HOURS * 3600, truncate=True
    )


def ensure_topics(settings: Settings) -> list[str]:
    """Make the topics that do not exist yet; returns their names. The embedded bus makes its own.

    Raises
    ------
    TransportError
        The cluster cannot be reached, or does not let us make a topic.
    """
    if not settings.kafka_bootstrap:
        return []
    from serving_adapter.buses.kafka import TopicPlan, create_topics

    hour = 3_600_000
    return create_topics(
        _connection(settings),
        [
            TopicPlan(
                settings.kafka_topic, settings.kafka_partitions, int(settings.kafka_retention_hours * hour)
            ),
            TopicPlan(settings.kafka_dead_letter_topic, 1, int(DEAD_LETTER_HOURS * hour)),
        ],
    )


def describe_topics(settings: Settings) -> dict[str, int]:
    """Partitions of the topics of the settings, 0 for one that does not exist.

    Raises
    ------
    TransportError
        The cluster cannot be reached, or does not show us its topics.
    """
    from serving_adapter.buses.kafka import count_partitions

    return count_partitions(_connection(settings), [settings.kafka_topic, settings.kafka_dead_letter_topic])


def _connection(settings: Settings) -> KafkaConnection:
    from serving_adapter.buses.kafka import KafkaConnection

    return KafkaConnection(
        bootstrap=settings.kafka_bootstrap,
        security_protocol=settings.kafka_security_protocol,
        sasl_mechanism=settings.kafka_sasl_mechanism,
        username=settings.kafka_username,
        password=settings.kafka_password,
        ca_file=settings.kafka_ca_file,
        cert_file=settings.kafka_cert_file,
        key_file=settings.kafka_key_file,
        compression=settings.kafka_compression,
    )
