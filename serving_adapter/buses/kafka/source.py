"""Consuming from Kafka as a member of a group, from positions that live elsewhere."""

from __future__ import annotations

import importlib.util
import logging
import time
from collections.abc import Iterable
from typing import Any

from kafka import KafkaConsumer, TopicPartition, errors
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.structs import OffsetAndMetadata

from serving_adapter.buses.kafka.connection import REFUSED_FOR_GOOD, KafkaConnection
from serving_adapter.buses.kafka.handover import ListenerFailed, Rebalance
from serving_adapter.buses.limits import TOPIC_MAX_MESSAGE_BYTES
from serving_adapter.ports import AssignmentListener, Message, Positions, TransportError

log = logging.getLogger(__name__)


SESSION_SECONDS = 10.0
"""A collector that died hands over after this long; one that is frozen for less keeps its partitions.
kafka-python's default of 45 s would leave a partition unread for that long."""

STALLED_SECONDS = 60.0
"""A collector that does not poll for this long (its database is away) gives its partitions up."""

UNREACHABLE_SECONDS = 60.0
"""A cluster that does not answer for this long is reported; until then poll waits and reconnects."""

_ASK_AFTER_SECONDS = 5.0  # an empty poll says nothing about the cluster: then it is asked, this often
_ASK_MS = 2_000
_CLOSE_MS = 5_000
_FETCH_BYTES = 16 * 1024 * 1024  # what one fetch brings at most: bounds the memory of a collector


class KafkaSource:
    """Reads one topic as a member of a consumer group.

    Every partition starts where ``listener.assigned`` says, never at the group's own offsets. The
    assignment is cooperative: when members come and go, only partitions that move are interrupted.
    The listener is called in the thread that polls (or closes), while heartbeats go on; it may call
    :meth:`commit`. When the group has thrown us out, ``revoked`` comes late: another member may have
    begun, and whatever the listener commits then must be refused by its own store.

    Connects in the first poll. One thread at a time; :meth:`lag` may be called from another one.

    Parameters
    ----------
    connection, topic, group
        The cluster, the topic and the consumer group.
    listener
        Where to start, and whom to tell when partitions go.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        topic: str,
        group: str,
        listener: AssignmentListener,
        *,
        session_seconds: float = SESSION_SECONDS,
        unreachable_seconds: float = UNREACHABLE_SECONDS,
    ) -> None:
        self._connection = connection
        self._topic = topic
        self._group = group
        self._session_seconds = session_seconds
        self._unreachable_seconds = unreachable_seconds
        self._consumer: KafkaConsumer | None = None
        self._rebalance = Rebalance(listener, self._start_at)
        self._untold: dict[int, int] = {}
        self._told: Any = None
        self._last_answer = time.monotonic()
        self._last_asked = self._last_answer

    def poll(self, timeout: float, max_messages: int = 500) -> list[Message]:
        """Next messages in order of offset per partition; empty after ``timeout`` seconds.

        What the listener raises comes out of here, after the partitions were given back.

        Raises
        ------
        TransportError
            The cluster has not answered for ``unreachable_seconds``, or it refuses us.
        """
        deadline = time.monotonic() + timeout
        try:
            consumer = self._consumer or self._connect()
            self._tell_group()
            records = self._rebalance.run(
                lambda: consumer.poll(timeout_ms=int(timeout * 1000), max_records=max_messages)
            )
            _finish_joining(consumer)
            if records:
                self._last_answer = time.monotonic()
            else:
                self._ask(consumer)
        except ListenerFailed as failure:
            self._drop()
            raise failure.cause from failure
        except (errors.KafkaError, OSError, RuntimeError, ValueError, TransportError) as error:
            self._bear(error, deadline)
            return []
        return list(_messages(records))

    def seek(self, partition: int, offset: int) -> None:
        """Read that partition from ``offset`` next; ValueError when it is not assigned."""
        if self._consumer is None or partition not in self._rebalance.assigned:
            raise ValueError(
                f"partition: got {partition}, expected one of {sorted(self._rebalance.assigned)}"
            )
        self._consumer.seek(TopicPartition(self._topic, partition), offset)

    def commit(self, positions: Positions) -> None:
        """Tell the group how far we are; that it could not be told is logged and otherwise ignored."""
        self._untold.update(positions)
        self._tell_group()

    def _tell_group(self) -> None:
        # One request at a time: several fill the connection, and then not even leaving the group passes.
        busy = self._told is not None and not self._told.is_done
        if self._consumer is None or not self._untold or (busy and not self._rebalance.serving):
            return
        offsets = {
            TopicPartition(self._topic, partition): OffsetAndMetadata(offset, "", -1)
            for partition, offset in self._untold.items()
        }
        self._untold = {}
        try:
            if self._rebalance.serving:  # the partitions are about to go: now or never
                self._consumer.commit(offsets, timeout_ms=_ASK_MS)
            else:
                self._told = self._consumer.commit_async(offsets, callback=_log_failed_commit)
        except (errors.KafkaError, RuntimeError) as error:
            log.info("kafka group %s was not told its offsets: %s", self._group, error)

    def lag(self) -> dict[int, int]:
        """Messages not yet read, for every assigned partition; of the last fetch when nobody answers."""
        consumer = self._consumer
        partitions = [TopicPartition(self._topic, p) for p in sorted(self._rebalance.assigned)]
        if consumer is None or not partitions:
            return {}
        try:
            ends = consumer.end_offsets(partitions, timeout_ms=_ASK_MS)
        except (errors.KafkaError, RuntimeError):
            ends = {}
        lags = {}
        for partition in partitions:
            try:
                read = consumer.position(partition, timeout_ms=_ASK_MS)
                end = ends.get(partition) or consumer.highwater(partition)
            except (errors.KafkaError, RuntimeError):  # it went in the meantime
                continue
            if read is not None and end is not None:
                lags[partition.partition] = max(0, end - read)
        return lags

    def close(self) -> None:
        """Hand the partitions over, leave the group and close the connections."""
        failure = self._drop()
        self._rebalance.close()
        if failure is not None:
            raise failure

    def _connect(self) -> KafkaConsumer:
        consumer = self._connection.open(
            KafkaConsumer,
            group_id=self._group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",  # a position that retention has overtaken
            session_timeout_ms=int(self._session_seconds * 1000),
            heartbeat_interval_ms=int(self._session_seconds * 300),
            max_poll_interval_ms=int(STALLED_SECONDS * 1000),
            partition_assignment_strategy=(CooperativeStickyAssignor,),
            fetch_max_bytes=_FETCH_BYTES,
            max_partition_fetch_bytes=TOPIC_MAX_MESSAGE_BYTES,
            metrics_enabled=False,
            request_timeout_ms=10_000,
            metadata_max_age_ms=60_000,
            allow_auto_create_topics=False,
            # Without its C library kafka-python needs 9 ms for 64 KiB; the broker has checked already.
            check_crcs=importlib.util.find_spec("crc32c") is not None,
        )
        self._rebalance.attach(consumer)
        consumer.subscribe([self._topic], listener=self._rebalance)
        self._consumer = consumer
        self._last_answer = time.monotonic()
        return consumer

    def _start_at(self, partitions: frozenset[int], positions: Positions) -> None:
        assert self._consumer is not None
        for partition in sorted(partitions):
            where = TopicPartition(self._topic, partition)
            if partition in positions:
                self._consumer.seek(where, positions[partition])
            else:
                self._consumer.seek_to_beginning(where)

    def _ask(self, consumer: KafkaConsumer) -> None:
        """Find out whether the cluster is silent or gone; KafkaError when it is gone."""
        now = time.monotonic()
        if now - max(self._last_answer, self._last_asked) < _ASK_AFTER_SECONDS:
            return
        self._last_asked = now
        consumer.end_offsets([TopicPartition(self._topic, 0)], timeout_ms=_ASK_MS)
        self._last_answer = time.monotonic()

    def _bear(self, error: Exception, deadline: float) -> None:
        """Wait out a disturbance, or report it when it lasts or cannot pass."""
        cause = error.__cause__ if isinstance(error, TransportError) else error
        hopeless = isinstance(cause, REFUSED_FOR_GOOD) and not isinstance(cause, ConnectionError)
        if hopeless or not getattr(cause, "retriable", False):
            self._drop()
        if hopeless or time.monotonic() - self._last_answer > self._unreachable_seconds:
            raise (
                error
                if isinstance(error, TransportError)
                else self._connection.trouble(error, f"reading {self._topic}")
            ) from error
        log.warning("kafka source for %s: %s", self._topic, error)
        time.sleep(max(0.0, min(0.5, deadline - time.monotonic())))

    def _drop(self) -> Exception | None:
        """Give up this consumer with its partitions; returns what the listener raised on the way."""
        consumer = self._consumer
        failure: Exception | None = None
        if consumer is not None:
            self._wait_for_answer()
            try:
                self._rebalance.run(lambda: consumer.close(autocommit=False, timeout_ms=_CLOSE_MS))
            except ListenerFailed as raised:
                failure = raised.cause
            except (errors.KafkaError, OSError, RuntimeError, ValueError) as error:
                log.info("kafka source for %s: while closing: %s", self._topic, error)
        self._consumer, self._told, self._untold = None, None, {}
        try:
            self._rebalance.revoke_rest()
        except Exception as error:
            log.exception("kafka source for %s: partitions were not finished", self._topic)
            failure = failure or error
        return failure

    def _wait_for_answer(self) -> None:
        deadline = time.monotonic() + _ASK_MS / 1000
        while self._told is not None and not self._told.is_done and time.monotonic() < deadline:
            time.sleep(0.005)


def _finish_joining(consumer: KafkaConsumer) -> None:
    """See that a join which the poll's timeout has interrupted goes on in the next poll.

    kafka-python 3.0.12 may take such a join for done when new topic metadata had caused it: it then never
    looks at the assignment, sends no heartbeats, and waits for messages forever.
    """
    coordinator = consumer._coordinator
    if coordinator.rejoining:
        coordinator.request_rejoin()


def _messages(records: dict[Any, list[Any]]) -> Iterable[Message]:
    now = time.time()
    for where, batch in records.items():
        for record in batch:
            taken_at = record.timestamp / 1000 if record.timestamp and record.timestamp > 0 else now
            yield Message(
                topic=where.topic,
                partition=where.partition,
                offset=record.offset,
                key=record.key or b"",
                value=record.value or b"",
                headers=tuple((name, value or b"") for name, value in record.headers),
                # A topic of somebody else may carry the producer's clock, which may be ahead.
                timestamp=min(taken_at, now),
            )


def _log_failed_commit(_offsets: object, outcome: object) -> None:
    if isinstance(outcome, Exception):
        log.info("kafka group was not told its offsets: %s", outcome)
