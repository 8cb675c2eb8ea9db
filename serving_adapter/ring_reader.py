"""The event ring, reader's side: rows are copied out, delivered elsewhere, and only then settled.

A row is settled when it was delivered or counted as lost. What is settled lies in the ring itself, as two
records of which one word says the current one: the reader fills the other record and turns the word, so
that cursor and losses move together at whatever instant the reader is killed. A new reader goes on from
there. Rows that were overwritten before they were settled are lost, each counted once.

The reader of :mod:`serving_adapter.ring`; see there for the protocol.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_adapter.contract import NO_STOP
from serving_adapter.contract.steps import STEP_COLUMNS
from serving_adapter.ring import retired_path, retired_rings, settled_rows
from serving_adapter.ring_layout import (
    CONTEXT,
    GIVEN_DRAFT_STOP,
    GIVEN_RESOLVED,
    GIVEN_RESOLVED_ACCEPTED,
    HALF_MAX,
    LOCK_READER,
    LOCK_WRITER,
    STEPS,
    WORD_CREATED,
    WORD_DISCARDED,
    WORD_REJECTED,
    WORD_ROUNDS_RESERVED,
    WORD_ROUNDS_WRITTEN,
    WORD_SETTLED,
    WORD_SETTLED_RECORDS,
    WORD_STEPS_RESERVED,
    WORD_STEPS_WRITTEN,
    WORD_WITHHELD,
    RingLayout,
)
from serving_adapter.shared_memory import Fence, Segment, SharedMemoryError, segment_path
from serving_adapter.step_claims import steps_within

_LOOK_AROUND = 100
"""Passes between two searches for rings that another reader held before."""


class RingBusyError(SharedMemoryError):
    """Another reader holds the ring."""


@dataclass(frozen=True, slots=True)
class Settled:
    """How far a boot's rows are delivered or counted as lost; all four since the boot began."""

    rounds: int = 0
    rounds_lost: int = 0
    steps: int = 0
    steps_lost: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Rows copied out of a ring. Rows ``[first - lost, first)`` were overwritten before they were read."""

    first: int
    lost: int
    count: int
    columns: dict[str, NDArray[Any]]

    @property
    def end(self) -> int:
        """Number of the row after the last."""
        return self.first + self.count

    def head(self, count: int) -> Chunk:
        """Only the first rows."""
        return Chunk(self.first, self.lost, count, {name: c[:count] for name, c in self.columns.items()})


class RingReader:
    """The one reader of one boot's ring.

    Parameters
    ----------
    segment
        A mapped ring; it is closed with the reader.

    Raises
    ------
    RingBusyError
        Another reader holds the ring.
    SharedMemoryError
        The segment is no ring.
    """

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.layout = RingLayout.read(segment)
        if not segment.lock(LOCK_READER):
            raise RingBusyError(f"{segment.path}: another sidecar reads this ring")
        self.shape, self.text = self.layout.shape, self.layout.text
        self._words = segment.words
        self._fence = Fence()
        settled = self.settled
        self._rounds, self._steps = settled.rounds, settled.steps

    @property
    def settled(self) -> Settled:
        """What is settled so far."""
        return Settled(*settled_rows(self.layout))

    def settle(self, settled: Settled) -> None:
        """Record how far rows are delivered or counted as lost, in one indivisible step."""
        words = self._words
        other = 1 - (words[WORD_SETTLED] & 1)
        first = WORD_SETTLED_RECORDS[other]
        words[first], words[first + 1] = settled.rounds, settled.rounds_lost
        words[first + 2], words[first + 3] = settled.steps, settled.steps_lost
        self._fence()
        words[WORD_SETTLED] = other

    @property
    def created(self) -> int:
        """When the boot began, in nanoseconds since 1970."""
        return self._words[WORD_CREATED]

    @property
    def written(self) -> tuple[int, int]:
        """Rounds and step rows written since the boot began."""
        return self._words[WORD_ROUNDS_WRITTEN], self._words[WORD_STEPS_WRITTEN]

    @property
    def rejected(self) -> int:
        """Calls of ``observe`` that the adapter refused since the boot began."""
        return self._words[WORD_REJECTED]

    @property
    def withheld(self) -> int:
        """Rounds not emitted because their request is outside the share."""
        return self._words[WORD_WITHHELD]

    @property
    def unread(self) -> tuple[int, int]:
        """Rounds and step rows written and not read yet, overwritten ones among them."""
        rounds, steps = self.written
        return rounds - self._rounds, steps - self._steps

    @property
    def overwritten(self) -> int:
        """Rounds that are lost already though not settled."""
        settled = self.settled.rounds
        return max(0, self._words[WORD_ROUNDS_RESERVED] - self.shape.rounds - settled)

    def labels(self) -> tuple[str, ...]:
        """Segment labels by index; read them after the rows that point into them."""
        self._fence()
        return self.layout.labels()

    def read(self, most_rounds: int, most_steps: int) -> tuple[Chunk, Chunk]:
        """Copy the next rounds and the steps that end among them, so that what follows begins a step.

        A step is read with the last of its rounds, or after it, and the rounds of a step that is not read
        yet stay behind with it; but those of one step that are more than ``most_rounds`` come in parts.
        Columns of the rounds as in :meth:`read_rounds`; steps with ``first``, number of the first round.
        """
        rounds = self._next_rounds(most_rounds)
        self._fence()  # whoever sees a round sees its step
        steps = self._next_steps(most_steps + 1)
        # A writer that was killed between its two last words left a step whose rounds nobody will see.
        abandoned = bool(steps.count) and not rounds.count and self.writer_is_gone
        if abandoned and self._words[WORD_ROUNDS_WRITTEN] != rounds.end:
            abandoned = False
        kept, reach = steps_within(
            steps.columns["first"], steps.columns["rows"], rounds.first, rounds.end, most_steps, abandoned
        )
        rounds, steps = rounds.head(reach - rounds.first), steps.head(kept)
        self._rounds, self._steps = rounds.end, steps.end
        return replace(rounds, columns=_contract_columns(rounds.columns)), steps

    def read_rounds(self, most: int) -> Chunk:
        """Copy the next rounds, at most ``most``; columns of the contract plus ``share``.

        Logits are rounded to the half precision of the wire; its largest number stands for larger ones.
        """
        rounds = self._next_rounds(most)
        self._rounds = rounds.end
        return replace(rounds, columns=_contract_columns(rounds.columns))

    def read_steps(self, most: int) -> Chunk:
        """Copy the next step rows, at most ``most``."""
        steps = self._next_steps(most)
        self._steps = steps.end
        return replace(steps, columns={name: steps.columns[name] for name in STEP_COLUMNS})

    def _next_rounds(self, most: int) -> Chunk:
        first, lost, count, copies = self._read(
            self.layout.rounds,
            self.shape.rounds,
            WORD_ROUNDS_RESERVED,
            WORD_ROUNDS_WRITTEN,
            self._rounds,
            most,
        )
        return Chunk(first, lost, count, copies)

    def _next_steps(self, most: int) -> Chunk:
        first, lost, count, copies = self._read(
            {"steps": self.layout.steps},
            self.shape.steps,
            WORD_STEPS_RESERVED,
            WORD_STEPS_WRITTEN,
            self._steps,
            most,
        )
        return Chunk(first, lost, count, {name: copies["steps"][name] for name in STEPS.names or ()})

    def _read(
        self,
        columns: dict[str, NDArray[Any]],
        capacity: int,
        word_reserved: int,
        word_written: int,
        cursor: int,
        most: int,
    ) -> tuple[int, int, int, dict[str, NDArray[Any]]]:
        words = self._words
        written = words[word_written]
        if words[WORD_DISCARDED]:
            return written, written - cursor, 0, {name: column[:0] for name, column in columns.items()}
        first = max(cursor, min(written, words[word_reserved] - capacity))
        count = min(most, written - first)
        self._fence()
        copies = {name: _copy(column, capacity, first, count) for name, column in columns.items()}
        self._fence()
        # Whatever was overwritten while we copied stands at the front: drop it.
        intact = max(first, words[word_reserved] - capacity)
        dropped = min(count, intact - first)
        if dropped:
            copies = {name: column[dropped:] for name, column in copies.items()}
        first += dropped
        return first, first - cursor, count - dropped, copies

    @property
    def writer_is_gone(self) -> bool:
        """Whether the engine that wrote this ring has closed it or died."""
        return not self.segment.is_locked(LOCK_WRITER)

    def close(self) -> None:
        """Let go of the ring; another reader may take it."""
        self.layout.rounds.clear()
        self.segment.close()


def _copy(column: NDArray[Any], capacity: int, first: int, count: int) -> NDArray[Any]:
    start = first % capacity
    stop = start + count
    if stop <= capacity:
        return column[start:stop].copy()
    return np.concatenate([column[start:], column[: stop - capacity]])


def _contract_columns(copies: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Columns as the contract names and types them: half precision, and defaults where none was given."""
    context = copies.pop("context")
    given = context["given"]
    columns = {**copies, **{name: context[name] for name in CONTEXT.names or () if name != "given"}}
    columns["logits"] = np.clip(copies["logits"], -HALF_MAX, HALF_MAX).astype(np.float16)
    for name, flag, default in (
        ("resolved", GIVEN_RESOLVED, copies["verified"]),
        ("resolved_accepted", GIVEN_RESOLVED_ACCEPTED, copies["accepted"]),
        ("draft_stop", GIVEN_DRAFT_STOP, np.uint8(NO_STOP)),
    ):
        columns[name] = np.where(given & flag, copies[name], default)
    return columns


class RingSet:
    """Readers of all boots of one ring name, oldest first: what earlier boots left, then the present one.

    Parameters
    ----------
    name
        ``DSPARK_RING``.

    ``busy`` are the rings that another reader holds; they are asked for again.
    """

    def __init__(self, name: str) -> None:
        self.path = segment_path(name)
        self.unreadable = 0
        self.busy: set[Path] = set()
        self._readers: dict[str, RingReader] = {}
        self._seen_unreadable: set[Path] = set()
        self._passes = 0

    def refresh(self) -> list[RingReader]:
        """Attach to rings that are new and return all readers, the oldest boot first."""
        if self._passes % _LOOK_AROUND == 0 or not any(
            reader.segment.is_at(self.path) for reader in self._readers.values()
        ):
            self._attach_all()
        self._passes += 1
        return sorted(self._readers.values(), key=lambda reader: reader.created)

    def _attach_all(self) -> None:
        # The present ring first: had it been moved aside before, it would be among the retired ones.
        self._attach(self.path)
        for path in retired_rings(self.path):
            self._attach(path)

    def _attach(self, path: Path) -> None:
        try:
            segment = Segment.attach(path)
        except FileNotFoundError:
            return
        except SharedMemoryError:
            self._note_unreadable(path)
            return
        try:
            boot = RingLayout.read(segment).text.boot
            if boot in self._readers:
                segment.close()
            else:
                self._readers[boot] = RingReader(segment)
            self.busy.discard(path)
        except RingBusyError:
            self.busy.add(path)
            segment.close()
        except SharedMemoryError:
            segment.close()
            self._note_unreadable(path)

    def _note_unreadable(self, path: Path) -> None:
        if path not in self._seen_unreadable:
            self._seen_unreadable.add(path)
            self.unreadable += 1

    def release_finished(self) -> list[str]:
        """Remove rings of earlier boots of which every row is settled and whose engine is gone."""
        finished = []
        for boot, reader in list(self._readers.items()):
            if reader.segment.is_at(self.path) or not reader.writer_is_gone:
                continue  # asked in this order: a writer that is gone writes no more rows
            settled = reader.settled
            if (settled.rounds, settled.steps) != reader.written:
                continue
            retired_path(self.path, boot).unlink(missing_ok=True)
            reader.close()
            del self._readers[boot]
            finished.append(boot)
        return finished

    def close(self) -> None:
        """Let go of all rings."""
        for reader in self._readers.values():
            with contextlib.suppress(BufferError):
                reader.close()
        self._readers.clear()
