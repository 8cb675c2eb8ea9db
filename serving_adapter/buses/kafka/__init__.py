"""The event bus over Apache Kafka (kafka-python)."""

from serving_adapter.buses.kafka.connection import KafkaConnection
from serving_adapter.buses.kafka.sink import KafkaSink
from serving_adapter.buses.kafka.source import KafkaSource
from serving_adapter.buses.kafka.topics import TopicPlan, count_partitions, create_topics

__all__ = ["KafkaConnection", "KafkaSink", "KafkaSource", "TopicPlan", "count_partitions", "create_topics"]
