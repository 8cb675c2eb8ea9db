"""Publishing to Kafka: idempotent, acknowledged by all replicas, within a bounded time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

from kafka import KafkaProducer, errors

from serving_adapter.buses.kafka.connection import KafkaConnection
from serving_adapter.buses.limits import (
    MAX_BUS_MESSAGE_BYTES,
    TOPIC_MAX_MESSAGE_BYTES,
    cut_to_size,
    message_bytes,
)
from serving_adapter.ports import MessageRefusedError, OutgoingMessage

log = logging.getLogger(__name__)

PUBLISH_SECONDS = 10.0
"""Longest that one call of publish takes, with a dead cluster too."""

IN_FLIGHT_BYTES = 16 * 1024 * 1024
"""kafka-python 3 has no bound on its buffer, so this is what one call hands over at most."""

BATCH_BYTES = 256 * 1024
"""Flushes of one partition go together up to here; a broker takes 1 MiB by default."""

_TOO_LARGE = (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError)
_CUT_FURTHER_BYTES = 256 * 1024  # for dead letters on a topic that was made with a small limit


class KafkaSink:
    """Publishes messages to one topic, keys deciding the partition.

    One call is one attempt: what the cluster has not acknowledged within ``PUBLISH_SECONDS`` is given
    back to the caller. Whenever that happens the producer is thrown away, because its state (producer
    id, sequence numbers, messages waiting to be sent again) no longer matches what the caller believes;
    the next call makes a new one. Threads may share a sink.

    Parameters
    ----------
    connection, topic
        The cluster and an existing topic: it is not made by itself.
    max_message_bytes, truncate
        A larger message is refused, or cut to that size with the header ``truncated-from`` (dead
        letters).
    """

    def __init__(
        self,
        connection: KafkaConnection,
        topic: str,
        *,
        max_message_bytes: int = MAX_BUS_MESSAGE_BYTES,
        truncate: bool = False,
        publish_seconds: float = PUBLISH_SECONDS,
    ) -> None:
        self._connection = connection
        self._topic = topic
        self._max_message_bytes = max_message_bytes
        self._truncate = truncate
        self._publish_seconds = publish_seconds
        self._lock = threading.Lock()
        self._producer: KafkaProducer | None = None
        self.producers_made = 0
        """How often a producer was made: more than once means that one was given up."""

    def publish(self, messages: Sequence[OutgoingMessage]) -> int:
        """Send in order; returns how many from the front all in-sync replicas have.

        Messages after a failed one are not counted, although some may have arrived.

        Raises
        ------
        MessageRefusedError
            The first message is larger than the sink or the broker takes.
        TransportError
            None was acknowledged: the cluster cannot be reached, the topic does not exist, or we may
            not write to it.
        """
        if not messages:
            return 0
        with self._lock:
            acknowledged, error = self._attempt(messages)
            if acknowledged or error is None:
                return acknowledged
            if not isinstance(error, _TOO_LARGE):
                raise self._connection.trouble(error, f"publishing to {self._topic}") from error
            if self._truncate:
                acknowledged, error = self._attempt([cut_to_size(messages[0], _CUT_FURTHER_BYTES)])
                if acknowledged:
                    return acknowledged
        raise MessageRefusedError(
            self._topic, f"{message_bytes(messages[0])} bytes are more than the broker takes ({error})"
        ) from error

    def _attempt(self, messages: Sequence[OutgoingMessage]) -> tuple[int, Exception | None]:
        """How many were acknowledged, and why the next one was not."""
        deadline = time.monotonic() + self._publish_seconds
        sent: list[Any] = []
        handed = 0
        failure: Exception | None = None
        producer = self._open()
        for message in messages:
            size = message_bytes(message)
            if size > self._max_message_bytes:
                if not self._truncate:
                    failure = errors.MessageSizeTooLargeError(f"at most {self._max_message_bytes}")
                    break
                message = cut_to_size(message, self._max_message_bytes)
            handed += size
            if sent and handed > IN_FLIGHT_BYTES:
                break
            try:
                sent.append(
                    producer.send(
                        self._topic, key=message.key, value=message.value, headers=list(message.headers)
                    )
                )
            except errors.KafkaTimeoutError:
                failure = errors.KafkaTimeoutError(f"there is no topic {self._topic}, or nobody answers")
                break
            except (errors.KafkaError, ValueError, RuntimeError) as error:
                failure = error
                break
        for count, future in enumerate(sent):
            try:
                # Not flush(): its timeout starts anew with every batch.
                future.get(timeout=max(0.0, deadline - time.monotonic()))
            except (errors.KafkaError, RuntimeError) as error:
                # Also when it was too large: the sequence number it took leaves a gap that the broker
                # refuses ever after.
                self._discard()
                return count, error
        if failure is not None and not isinstance(failure, _TOO_LARGE):
            self._discard()
        return len(sent), failure

    def _open(self) -> KafkaProducer:
        if self._producer is None:
            self._producer = self._connection.open(
                KafkaProducer,
                enable_idempotence=True,
                acks="all",
                compression_type=self._connection.compression_type(),
                batch_size=BATCH_BYTES,
                metrics_enabled=False,
                linger_ms=0,  # the forwarder has gathered already
                max_request_size=TOPIC_MAX_MESSAGE_BYTES + BATCH_BYTES,
                max_block_ms=3_000,
                request_timeout_ms=5_000,
                delivery_timeout_ms=8_000,
                allow_auto_create_topics=False,
            )
            self.producers_made += 1
        return self._producer

    def _discard(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            log.warning(
                "kafka producer for %s given up; a new one is made with the next publish", self._topic
            )
            # At once, so that what waits in it does not arrive after it has been sent again.
            producer._sender.force_close()
            threading.Thread(target=_close, args=(producer,), name="kafka-discard", daemon=True).start()

    def close(self) -> None:
        """Close the producer; everything that publish counted is stored already."""
        with self._lock:
            producer, self._producer = self._producer, None
        if producer is not None:
            _close(producer)


def _close(producer: KafkaProducer) -> None:
    """Close within a second, whatever still waits in it."""
    try:
        producer.close(timeout=1)
    except errors.KafkaError:
        # close() flushes first and, when that times out, leaves the sender thread running for good.
        producer._sender.force_close()
