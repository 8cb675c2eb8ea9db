"""The one ingest pipeline: messages in, sums in the store, each row once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from calibrator.core.sums import SumsOverflowError
from calibrator.store import (
    DataRefusedError,
    FencedError,
    StaleReadError,
    Store,
    StoreUnavailableError,
    positions,
)
from collectors.committing import write_plan
from collectors.dead_letters import letter
from collectors.decoding import Decoded, decode_message, refused
from collectors.folding import fold_deployment
from collectors.options import PipelineOptions
from collectors.plan import make_plan
from collectors.result import IngestResult
from collectors.snapshot import ParameterCache, read
from serving_adapter.ports import Clock, EventSink, Message, TransportError

MAX_ATTEMPTS = 10
"""Plans made anew because another collector changed the same deployment meanwhile."""


class IngestPipeline:
    """Folds verify events into the store, exactly once whatever is delivered how often.

    Parameters
    ----------
    store
        Migrated.
    dead_letters
        Where refused messages go, before the commit that passes over them (at least once).
    clock
        Decides what is in the future or long ago.
    options
        See :class:`PipelineOptions`.
    """

    def __init__(
        self,
        store: Store,
        dead_letters: EventSink,
        clock: Clock,
        options: PipelineOptions | None = None,
    ) -> None:
        self.store = store
        self.options = options or PipelineOptions()
        self._dead_letters = dead_letters
        self._clock = clock
        self._positions: dict[tuple[str, int], int | None] = {}
        self._documents: ParameterCache = {}
        self._published: set[tuple[str, int, int]] = set()

    def positions(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """Where to read these partitions from, read from the store and remembered.

        A partition that was never read is left out.
        """
        with self.store.read() as connection:
            stored = positions.read(connection, self.options.group, topic)
        for partition in partitions:
            self._positions[topic, partition] = stored.get((topic, partition))
        return {
            partition: stored[topic, partition] for partition in partitions if (topic, partition) in stored
        }

    def forget(self, topic: str, partitions: Iterable[int]) -> None:
        """Drop what is remembered of partitions that now belong to somebody else."""
        for partition in partitions:
            self._positions.pop((topic, partition), None)

    def rewind(self, topic: str, partition: int, offset: int) -> None:
        """Move a position back, because the log was made anew; rows that were folded stay folded once.

        Raises
        ------
        FencedError, StoreUnavailableError
            As :meth:`ingest`.
        """
        expected = self.positions(topic, [partition]).get(partition)
        if expected is None or expected <= offset:
            return
        with self.store.write() as connection:
            positions.advance(
                connection, self.options.group, topic, partition, expected, offset, self._clock.now()
            )
        self._positions[topic, partition] = offset

    def ingest(self, messages: Sequence[Message]) -> IngestResult:
        """Fold messages, in order of offset per partition, and move the positions past them.

        1. skip messages before the position
        2. decode and validate
        3. read what the store knows; decide row by row what is new; fold it
        4. publish refused messages to the dead-letter topic
        5. write sums, samples, ledgers and positions in one transaction

        When it raises, nothing of what was not committed with its positions has changed: seek back to
        :meth:`positions` and try again.

        Raises
        ------
        FencedError
            Another collector has moved a position: this one must read it again.
        StoreUnavailableError
            The database is locked, unreachable, full or read-only.
        TransportError
            The dead-letter topic cannot be reached.
        """
        expected = self._expected(messages)
        fresh = [m for m in messages if m.offset >= (expected[m.topic, m.partition] or 0)]
        result = self._fold([decode_message(message) for message in fresh], expected)
        result.skipped_messages = len(messages) - len(fresh)
        return result

    def _expected(self, messages: Sequence[Message]) -> dict[tuple[str, int], int | None]:
        keys = {(message.topic, message.partition) for message in messages}
        if not keys <= self._positions.keys():
            with self.store.read() as connection:
                stored = positions.read(connection, self.options.group)
            for key in keys - self._positions.keys():
                self._positions[key] = stored.get(key)
        return {key: self._positions[key] for key in keys}

    def _fold(self, decoded: Sequence[Decoded], expected: dict[tuple[str, int], int | None]) -> IngestResult:
        try:
            return self._commit(decoded, expected)
        except (DataRefusedError, SumsOverflowError) as error:
            # A value that passed every check and that cannot be stored all the same: find its message.
            if len(decoded) > 1:
                half = len(decoded) // 2
                result = self._fold(decoded[:half], expected)
                result.add(self._fold(decoded[half:], dict(self._positions)))
                return result
            if decoded[0].batch is None and decoded[0].rows is None:
                raise
            if isinstance(error, SumsOverflowError):
                return self._fold([refused(decoded[0].message, str(error), decoded[0].batch)], expected)
            reason = f"refused by the database: {error}"
            return self._fold([Decoded(decoded[0].message, None, reason)], expected)

    def _commit(
        self, decoded: Sequence[Decoded], expected: dict[tuple[str, int], int | None]
    ) -> IngestResult:
        moves: dict[tuple[str, int], tuple[int | None, int]] = {}
        for each in decoded:
            key = (each.message.topic, each.message.partition)
            before, after = moves.get(key, (expected.get(key), 0))
            moves[key] = (before, max(after, each.message.offset + 1))
        if not moves:
            return IngestResult()
        for attempt in range(1, MAX_ATTEMPTS + 1):
            now = self._clock.now()
            with self.store.read() as connection:
                snapshot = read(connection, decoded, self._documents)
            plan = make_plan(decoded, snapshot, now, self.options)
            folded = {name: fold_deployment(each, self.options) for name, each in plan.deployments.items()}
            self._publish(plan.refused)
            try:
                with self.store.write() as connection:
                    write_plan(connection, plan, folded, moves, now, self.options)
            except StaleReadError:
                if attempt == MAX_ATTEMPTS:
                    raise
                continue
            except (FencedError, StoreUnavailableError):
                # Moved by somebody else, or by a commit whose answer was lost: read them again.
                self._positions.clear()
                raise
            break
        self._published.clear()
        for key, (_, after) in moves.items():
            self._positions[key] = plan.result.positions[key] = after
        return plan.result

    def _publish(self, items: Sequence[Decoded]) -> None:
        """Send letters that were not sent by an attempt of ours before."""
        places = [(d.message.topic, d.message.partition, d.message.offset) for d in items]
        unsent = [i for i, place in enumerate(places) if place not in self._published]
        if not unsent:
            return
        sent = self._dead_letters.publish([letter(items[i].message, items[i].reason) for i in unsent])
        self._published.update(places[i] for i in unsent[:sent])
        if sent < len(unsent):
            raise TransportError(f"{len(unsent) - sent} dead letters were not taken")
