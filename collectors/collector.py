"""The loop of a collector: source -> pipeline, for as long as it is not told to stop."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from calibrator.store import FencedError, StaleReadError, StoreUnavailableError
from collectors.pipeline import IngestPipeline
from collectors.result import IngestResult
from collectors.statistics import CollectorStatistics
from serving_adapter.ports import AssignmentListener, Clock, EventSource, Message, TransportError

log = logging.getLogger(__name__)

POLL_SECONDS = 0.2
MAX_MESSAGES = 500
"""Per ingest: about 30 MB of flushes, and one transaction."""

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0

_LAG_SECONDS = 5.0

Progress = Callable[[CollectorStatistics], None]


class Collector:
    """Reads verify events and folds them, surviving a database or a bus that comes and goes.

    Nothing is read ahead: when ``stop`` is set, the ingest in progress is finished and committed, the
    partitions are handed over, and :meth:`run` returns, within ten seconds even when the database does not
    answer (its locks are waited for half as long).

    Parameters
    ----------
    pipeline
        Where rows go.
    topic
        What ``open_source`` reads.
    open_source
        Opens the source with the listener that it is given.
    clock
        For times in the statistics.
    on_progress
        Called after every ingest and every empty poll, in the collector's thread.
    """

    def __init__(
        self,
        pipeline: IngestPipeline,
        topic: str,
        open_source: Callable[[AssignmentListener], EventSource],
        clock: Clock,
        on_progress: Progress | None = None,
        *,
        poll_seconds: float = POLL_SECONDS,
        max_messages: int = MAX_MESSAGES,
        first_pause_seconds: float = FIRST_PAUSE_SECONDS,
    ) -> None:
        self.statistics = CollectorStatistics(clock.now())
        self._pipeline = pipeline
        self._topic = topic
        self._open_source = open_source
        self._clock = clock
        self._on_progress = on_progress or (lambda _statistics: None)
        self._poll_seconds = poll_seconds
        self._max_messages = max_messages
        self._first_pause = first_pause_seconds
        self._pause = first_pause_seconds
        self._source: EventSource | None = None
        self._next: dict[int, int] = {}
        self._displaced: set[int] = set()
        self._lag_asked_at = 0.0

    def run(self, stop: threading.Event) -> CollectorStatistics:
        """Collect until ``stop`` is set; return the statistics.

        Raises
        ------
        SchemaError
            The database was migrated away from under us; everything transient is waited out.
        """
        try:
            while not stop.is_set():
                try:
                    self._turn()
                    self._pause = self._first_pause
                except (StoreUnavailableError, StaleReadError) as error:
                    self.statistics.store_errors += 1
                    self._wait_out(error, stop)
                except TransportError as error:
                    self.statistics.transport_errors += 1
                    self._wait_out(error, stop)
        finally:
            self._close()
        return self.statistics

    def listener(self) -> AssignmentListener:
        """Return what the source must be opened with."""
        return AssignmentListener(assigned=self._assigned, revoked=self._revoked)

    def _turn(self) -> None:
        if self._source is None:
            self._source = self._open_source(self.listener())
        if self._displaced:
            self._seek_back()
        messages = self._source.poll(self._poll_seconds, self._max_messages)
        if messages:
            self._ingest(messages)
        now = self._clock.monotonic()
        self.statistics.update_rate(now)
        if now - self._lag_asked_at >= _LAG_SECONDS or not self._lag_asked_at:
            self._lag_asked_at = now
            self.statistics.lag = self._source.lag()
        self._on_progress(self.statistics)

    def _ingest(self, messages: list[Message]) -> None:
        read = {message.partition for message in messages}
        # Until these are committed the source is ahead of the truth.
        self._displaced |= read
        try:
            self._rewind(messages)
            result = self._pipeline.ingest(messages)
        except FencedError as error:
            self.statistics.fenced += 1
            self.statistics.last_error = str(error)
            log.warning("collector fenced: %s", error)
            return
        self._displaced -= read
        self._committed(result)

    def _committed(self, result: IngestResult) -> None:
        self.statistics.ingest_done(result, self._clock.now())
        positions = {p: offset for (topic, p), offset in result.positions.items() if topic == self._topic}
        self._next.update(positions)
        if result.dead_lettered_messages:
            log.warning("collector dead-lettered %d messages", result.dead_lettered_messages)
        assert self._source is not None
        self._source.commit(positions)

    def _rewind(self, messages: Iterable[Message]) -> None:
        """A source that goes back by itself reads a log that was made anew: our position means nothing."""
        first: dict[int, int] = {}
        for message in messages:
            first.setdefault(message.partition, message.offset)
        for partition, offset in first.items():
            if offset < self._next.get(partition, 0):
                log.warning("collector rewinds %s/%d to %d", self._topic, partition, offset)
                self._pipeline.rewind(self._topic, partition, offset)
                self._next[partition] = offset
                self.statistics.rewinds += 1

    def _seek_back(self) -> None:
        """Put the source where the store says, after an ingest that was not committed."""
        assert self._source is not None
        stored = self._pipeline.positions(self._topic, self._displaced)
        for partition in sorted(self._displaced):
            offset = stored.get(partition, 0)
            try:
                self._source.seek(partition, offset)
            except ValueError:  # it went to somebody else meanwhile
                self._next.pop(partition, None)
            else:
                self._next[partition] = offset
        self._displaced.clear()

    def _assigned(self, partitions: frozenset[int]) -> dict[int, int]:
        # When the store does not answer this raises, and the source gives the partitions back: to begin
        # at a guess could skip what only the store knows.
        stored = self._pipeline.positions(self._topic, partitions)
        self.statistics.rebalances += 1
        self.statistics.partitions |= partitions
        self._displaced -= partitions
        self._next.update({partition: stored.get(partition, 0) for partition in partitions})
        log.info("collector assigned %s", sorted(partitions))
        return stored

    def _revoked(self, partitions: frozenset[int]) -> None:
        # Every ingest is committed before the next poll, so that there is nothing left to finish.
        self.statistics.rebalances += 1
        self.statistics.partitions -= partitions
        self._displaced -= partitions
        for partition in partitions:
            self._next.pop(partition, None)
            self.statistics.lag.pop(partition, None)
        self._pipeline.forget(self._topic, partitions)
        log.info("collector gave up %s", sorted(partitions))

    def _wait_out(self, error: Exception, stop: threading.Event) -> None:
        self.statistics.last_error = str(error)
        log.warning("collector waits %.1f s: %s", self._pause, error)
        stop.wait(self._pause)
        self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)

    def _close(self) -> None:
        if self._source is None:
            return
        try:
            self._source.close()
        except (TransportError, StoreUnavailableError) as error:
            log.warning("collector closed without an answer: %s", error)
        self._source = None
