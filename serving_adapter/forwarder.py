"""The loop from the event ring to the bus.

1. Copy rows out of the ring (nothing is held meanwhile) and encode them.
2. Hand the messages to the sink, in order.
3. Settle in the ring what the sink confirmed: a prefix.
4. What it did not confirm is handed over again, byte for byte, after a pause.

Killed between 2 and 3, the next forwarder sends rows a second time, perhaps cut into other messages; rows
are numbered per boot and the collector folds each number once. While the sink is away a bounded number of
messages waits here, and behind them the ring takes what comes, overwriting the oldest and counting.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from serving_adapter.batches import BatchBuilder, Encoding, PendingMessage, rows_per_message
from serving_adapter.clock import SystemClock
from serving_adapter.ports import Clock, EventSink, TransportError
from serving_adapter.ring_reader import RingReader, RingSet

log = logging.getLogger(__name__)

_POLLS_PER_FLUSH, _LONGEST_POLL = 5, 0.1
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0


@dataclass(slots=True)
class ForwarderCounters:
    """What a forwarder did since it was made."""

    rounds: int = 0
    steps: int = 0
    messages: int = 0
    bytes: int = 0
    lost: int = 0
    steps_lost: int = 0
    retries: int = 0
    invalid: int = 0
    unreadable: int = 0
    boots_finished: int = 0


class Forwarder:
    """Drains every boot's ring of one name into a sink.

    Parameters
    ----------
    ring
        ``DSPARK_RING``; the engine may start later.
    open_sink
        Called when a sink is needed first; may raise ``TransportError``, and is then called again.
    flush_seconds, flush_bytes
        A message goes out after this time or at this size, whichever comes first.
    encoding
        ``msgpack`` or ``json``.
    most_pending
        Messages that wait here, at most.
    """

    def __init__(
        self,
        ring: str,
        open_sink: Callable[[], EventSink],
        *,
        flush_seconds: float = 0.05,
        flush_bytes: int = 65536,
        encoding: Encoding = "msgpack",
        most_pending: int = 64,
        clock: Clock | None = None,
        jitter: random.Random | None = None,
    ) -> None:
        self._rings = RingSet(ring)
        self._open_sink = open_sink
        self._sink: EventSink | None = None
        self._flush_seconds, self._flush_bytes = flush_seconds, flush_bytes
        self._encoding: Encoding = encoding
        self._most_pending = most_pending
        self._clock: Clock = clock or SystemClock()
        self._jitter = jitter or random.Random()  # noqa: S311 - spreads retries, keeps no secret
        self._builders: dict[str, BatchBuilder] = {}
        self._pending: deque[PendingMessage] = deque()
        self._flushed = self._clock.monotonic()
        self._told_busy = False
        self._failures = 0
        self._retry_at = 0.0
        self._stopping = threading.Event()
        self.counters = ForwarderCounters()
        self.last_error = ""

    @property
    def pending(self) -> int:
        """Messages encoded and not confirmed yet."""
        return len(self._pending)

    def run(self, drain_seconds: float = 10.0) -> None:
        """Forward until :meth:`stop`, then drain for at most ``drain_seconds``, then let go of the ring."""
        try:
            # More often than it flushes: rows of a full message do not wait for the time.
            period = min(_LONGEST_POLL, self._flush_seconds / _POLLS_PER_FLUSH)
            while not self._stopping.wait(period):
                self.guarded(self.step)
            self.guarded(lambda: self.drain(drain_seconds))
        finally:
            self.close()

    def stop(self) -> None:
        """Make :meth:`run` drain and return."""
        self._stopping.set()

    def guarded(self, action: Callable[[], object]) -> None:
        """Run and survive: whatever goes wrong in one pass, the next one tries again."""
        try:
            action()
        except Exception as error:
            self._fail(error)
            log.exception("forwarder_failed")

    def step(self) -> int:
        """One pass: read what is due, send what waits; returns rows confirmed by the sink."""
        now = self._clock.monotonic()
        if not self._pending:
            self._read(due=now - self._flushed >= self._flush_seconds)
        if self._pending and now < self._retry_at:
            return 0
        confirmed = 0
        while self._pending:
            rows, complete = self._send()
            confirmed += rows
            if not complete:
                break
            self._read(due=False)
        return confirmed

    def drain(self, seconds: float) -> bool:
        """Send everything that is in the ring now; False when time ran out first."""
        deadline = self._clock.monotonic() + seconds
        while True:
            self._read(due=True)
            if not self._pending:
                return True
            _, complete = self._send()
            left = deadline - self._clock.monotonic()
            if left <= 0:
                return False
            if not complete:
                self._clock.sleep(min(left, max(0.0, self._retry_at - self._clock.monotonic())))

    def _read(self, *, due: bool) -> None:
        """Encode full messages, and when ``due`` the rest as well."""
        readers = self._rings.refresh()
        self.counters.unreadable = self._rings.unreadable
        if self._rings.busy and not self._told_busy:
            self._told_busy = True
            log.warning("ring_busy ring=%s reason='another sidecar reads this ring'", self._rings.path)
        for reader in readers:
            builder = self._builder(reader)
            most_rounds, most_steps = rows_per_message(reader.shape, self._flush_bytes)
            while len(self._pending) < self._most_pending:
                rounds, steps = reader.unread
                if not (rounds >= most_rounds or steps >= most_steps or (due and (rounds or steps))):
                    break
                emitted_at = int(self._clock.now() * 1e9)
                invalid = builder.invalid
                messages = builder.build(*reader.read(most_rounds, most_steps), emitted_at)
                self._pending += messages
                if builder.invalid > invalid:
                    self.counters.invalid += builder.invalid - invalid
                    log.error(
                        "rows_invalid count=%d last=%r", builder.invalid - invalid, builder.last_invalid
                    )
                if not messages:
                    break  # a step of which the engine is just about to publish the rounds
        if due or self._pending:
            self._flushed = self._clock.monotonic()
        if not self._pending and due:
            self._forget_finished()

    def _builder(self, reader: RingReader) -> BatchBuilder:
        builder = self._builders.get(reader.text.boot)
        if builder is None:
            builder = self._builders[reader.text.boot] = BatchBuilder(reader, self._encoding)
            log.info("ring_attached boot=%s settled=%d", reader.text.boot, reader.settled.rounds)
        return builder

    def _send(self) -> tuple[int, bool]:
        """Hand over what waits: rows confirmed, and whether all of it was."""
        try:
            if self._sink is None:
                self._sink = self._open_sink()
            confirmed = self._sink.publish([entry.message for entry in self._pending])
        except TransportError as error:
            self._fail(error)
            return 0, False
        rows = self._settle(min(confirmed, len(self._pending)))
        if self._pending:
            self._fail(TransportError("the bus took fewer messages than it was given"))
            return rows, False
        self._failures, self._retry_at = 0, 0.0
        return rows, True

    def _settle(self, confirmed: int) -> int:
        rows = 0
        for _ in range(confirmed):
            entry = self._pending.popleft()
            before = entry.reader.settled
            entry.reader.settle(entry.settled)
            counters = self.counters
            counters.lost += entry.settled.rounds_lost - before.rounds_lost
            counters.steps_lost += entry.settled.steps_lost - before.steps_lost
            counters.rounds += entry.rounds
            counters.steps += entry.steps
            counters.messages += 1
            counters.bytes += len(entry.message.value)
            rows += entry.rounds
            if entry.settled.rounds_lost > before.rounds_lost:
                lost = entry.settled.rounds_lost - before.rounds_lost
                log.warning("rows_lost boot=%s count=%d", entry.reader.text.boot, lost)
        return rows

    def _fail(self, error: Exception) -> None:
        """Pause before the next try: exponential, with jitter so that a fleet does not come back at once."""
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(self._failures, 16))
        self._failures += 1
        self._retry_at = self._clock.monotonic() + pause * self._jitter.uniform(0.5, 1.0)
        self.counters.retries += 1
        if str(error) != self.last_error or self._failures == 1:
            log.warning("bus_unavailable failures=%d reason=%r", self._failures, str(error))
        self.last_error = str(error)

    def _forget_finished(self) -> None:
        finished = self._rings.release_finished()
        for boot in finished:
            self._builders.pop(boot, None)
            log.info("ring_finished boot=%s", boot)
        self.counters.boots_finished += len(finished)

    def close(self) -> None:
        """Let go of ring and sink."""
        self._pending.clear()
        self._builders.clear()
        self._rings.close()
        if self._sink is not None:
            with contextlib.suppress(TransportError):
                self._sink.close()
            self._sink = None
