"""The event ring, writer's side: the engine's rows go into shared memory and nowhere else.

Protocol of a column ring, one writer and one reader, no locks:

1. The writer raises ``reserved`` to the row number after the ones it is about to write.
2. It copies the rows into their slots, over the oldest.
3. It raises ``written`` to the same number: the rows may be read.

A step row says which rounds are its own, and it may be read before they are: whoever sees a round sees the
step that it belongs to, unless that one was overwritten.

The reader copies rows below ``written`` and then reads ``reserved`` again: rows below ``reserved -
capacity`` may have been overwritten during the copy; it drops them and counts them as lost. A fence stands
between any two of these steps (see :class:`serving_adapter.shared_memory.Fence`); counters are aligned
8-byte words, which x86-64 and ARMv8 load and store whole. The writer never looks at the reader: a reader
that is slow, dead or was never there changes nothing for it.

Every engine start is a boot with a ring of its own. The ring of the boot before is not emptied but moved
aside, to ``NAME.boot-UUID``, where the reader finds it, finishes it and removes it. At most
``MAX_RETIRED`` with unread rows are kept: the rows of older ones are given up and counted as lost.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_adapter.contract.steps import STEP_COLUMNS
from serving_adapter.ring_layout import (
    LOCK_READER,
    LOCK_WRITER,
    STEPS,
    WORD_CREATED,
    WORD_DISCARDED,
    WORD_LABELS,
    WORD_REJECTED,
    WORD_ROUNDS_RESERVED,
    WORD_ROUNDS_WRITTEN,
    WORD_SETTLED,
    WORD_SETTLED_RECORDS,
    WORD_STEPS_RESERVED,
    WORD_STEPS_WRITTEN,
    WORD_WITHHELD,
    RingLayout,
    RingShape,
    RingText,
    refuse_foreign_file,
)
from serving_adapter.segment_labels import DEFAULT_LABEL, SegmentLabels
from serving_adapter.shared_memory import STORES_MAY_PASS, Fence, Segment, SharedMemoryError, segment_path

DEFAULT_ROUNDS = 131_072  # five seconds of 256 requests at 100 steps a second, 8 MB at gamma 7
DEFAULT_STEPS = 16_384
MAX_RETIRED = 4
_STALE_DRAFT_SECONDS = 60.0


class EventRing:
    """Single writer of the ring of one boot. Make one with :meth:`create`; not for several threads."""

    def __init__(self, layout: RingLayout) -> None:
        self.layout = layout
        self.boot = layout.text.boot
        self.capacity = layout.shape.rounds
        self._words = layout.segment.words
        self._fence = Fence()
        self._written = self._reserved = self._steps_written = 0
        self._steps = memoryview(layout.steps.view(np.uint8).data)
        self._step_capacity = layout.shape.steps
        letters = "".join(STEPS[name].char for name in STEP_COLUMNS)
        self._pack_step = struct.Struct("<Q" + letters).pack_into  # "first" goes before them
        self.segments = SegmentLabels()
        layout.put_label(0, DEFAULT_LABEL)
        self._words[WORD_LABELS] = 1

    @classmethod
    def create(
        cls,
        name: str,
        shape: RingShape,
        *,
        deployment: str,
        replica: str,
        fingerprint: str = "",
        segment_sets: bool = False,
    ) -> EventRing:
        """Begin a boot: make its ring and give it ``name``, moving the ring of the boot before aside.

        Raises
        ------
        SharedMemoryError
            Something else than a ring lies there; it was left alone.
        OSError
            The shared memory cannot be had.
        """
        path = segment_path(name)
        refuse_foreign_file(path)
        segment = Segment.create(path, shape.columns()[1])
        try:
            segment.lock(LOCK_WRITER)
            text = RingText(uuid.uuid4().hex, deployment, replica, fingerprint, segment_sets)
            ring = cls(RingLayout.write(segment, shape, text, os.getpid(), time.time_ns()))
            with _beginning_a_boot(path):
                _retire(path)
                segment.publish(path)
                _give_up_oldest(path)
        except BaseException:
            segment.unlink()
            segment.close()
            raise
        return ring

    @property
    def written(self) -> int:
        """Rounds written since the boot began."""
        return self._written

    @property
    def steps_written(self) -> int:
        """Step rows written since the boot began."""
        return self._steps_written

    @property
    def labels(self) -> int:
        """Segment labels in the dictionary."""
        return self._words[WORD_LABELS]

    def label(self, name: str) -> int:
        """Index of a segment label; a new one is entered, the 64th and later ones are ``other``."""
        index = self.segments.known.get(name)
        if index is not None:
            return index
        count = len(self.segments.names)
        index = self.segments.enter(name)
        if len(self.segments.names) > count:
            self.layout.put_label(index, self.segments.names[index])
            self._fence()
            self._words[WORD_LABELS] = index + 1
        return index

    def append(
        self,
        count: int,
        writes: Sequence[tuple[NDArray[Any], Any]],
        step: Sequence[float] | None = None,
    ) -> None:
        """Write the rounds of one engine step, and its step row.

        Parameters
        ----------
        count
            Number of rounds; may be 0.
        writes
            Pairs of a column (of ``layout.rounds``, or a field of ``context``) and what goes into it: an
            array of ``count`` rows, or one value for all of them.
        step
            Numbers in the order of ``STEP_COLUMNS``, whole ones where the type is; without ``rows``, which
            is ``count``.

        Raises
        ------
        ValueError, TypeError, struct.error
            A value that does not fit. Then nothing was written, but slots of old rows are gone.
        """
        words, written, steps = self._words, self._written, self._steps_written
        end = written + count
        if end > self._reserved:  # never lowered: rows under a copy that failed are gone as well
            self._reserved = end
            words[WORD_ROUNDS_RESERVED] = end
        if step is not None:
            words[WORD_STEPS_RESERVED] = steps + 1
        self._fence()
        if step is not None:
            slot = steps % self._step_capacity
            self._pack_step(self._steps, slot * STEPS.itemsize, written, count, *step)
        start = written % self.capacity
        if start + count <= self.capacity:
            where = slice(start, start + count)
            for column, value in writes:
                column[where] = value
        else:
            self._append_around(written, count, writes)
        self._fence()
        if step is not None:
            words[WORD_STEPS_WRITTEN] = self._steps_written = steps + 1
            if STORES_MAY_PASS:
                self._fence()
        words[WORD_ROUNDS_WRITTEN] = self._written = end

    def _append_around(self, written: int, count: int, writes: Sequence[tuple[NDArray[Any], Any]]) -> None:
        """Copy rows that reach over the end of the ring, or that are more than it holds."""
        first = max(0, count - self.capacity)
        while first < count:
            start = (written + first) % self.capacity
            rows = min(count - first, self.capacity - start)
            where, taken = slice(start, start + rows), slice(first, first + rows)
            for column, value in writes:
                column[where] = value[taken] if getattr(value, "ndim", 0) else value
            first += rows

    def count_rejected(self, total: int) -> None:
        """Tell the sidecar how many calls of ``observe`` were refused so far."""
        self._words[WORD_REJECTED] = total

    def count_withheld(self, rows: int) -> None:
        """Count rounds that were not emitted because their request is outside the share."""
        self._words[WORD_WITHHELD] += rows

    def close(self) -> None:
        """End the boot. The ring stays for the reader."""
        self._steps.release()
        self.layout.rounds.clear()
        self.layout.segment.close()


def retired_path(path: Path, boot: str) -> Path:
    """Where the ring of a boot goes when the next one begins."""
    return path.with_name(f"{path.name}.boot-{boot}")


def retired_rings(path: Path) -> list[Path]:
    """Rings of earlier boots that were not finished yet, in no particular order."""
    return list(path.parent.glob(f"{path.name}.boot-*"))


def settled_rows(layout: RingLayout) -> tuple[int, int, int, int]:
    """Read what the reader settled: rounds, lost rounds, steps, lost steps (all since the boot began)."""
    words = layout.segment.words
    first = WORD_SETTLED_RECORDS[words[WORD_SETTLED] & 1]
    rounds, lost, steps, steps_lost = (words[first + i] for i in range(4))
    return rounds, lost, steps, steps_lost


@contextlib.contextmanager
def _beginning_a_boot(path: Path) -> Iterator[None]:
    """One engine at a time, should two be started on one ring by mistake."""
    fd = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _retire(path: Path) -> None:
    try:
        segment = Segment.attach(path)
    except FileNotFoundError:
        return
    except SharedMemoryError:
        path.rename(retired_path(path, uuid.uuid4().hex))
        return
    try:
        boot = RingLayout.read(segment).text.boot
    except SharedMemoryError:
        boot = uuid.uuid4().hex
    finally:
        segment.close()
    with contextlib.suppress(FileNotFoundError):
        path.rename(retired_path(path, boot))


def _give_up_oldest(path: Path) -> None:
    """Bound the memory that dead boots keep when nobody reads them."""
    for draft in path.parent.glob(f"{path.name}.new-*"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - draft.stat().st_mtime > _STALE_DRAFT_SECONDS:
                draft.unlink()
    waiting: list[tuple[int, RingLayout]] = []
    for retired in retired_rings(path):
        try:
            segment = Segment.attach(retired)
        except (FileNotFoundError, SharedMemoryError):
            continue
        try:
            layout = RingLayout.read(segment)
        except SharedMemoryError:
            segment.close()
            continue
        if segment.is_locked(LOCK_WRITER) or not segment.lock(LOCK_READER):
            segment.close()  # still written, or being read right now
            continue
        rounds, _, steps, _ = settled_rows(layout)
        words = segment.words
        if rounds == words[WORD_ROUNDS_WRITTEN] and steps == words[WORD_STEPS_WRITTEN]:
            segment.unlink()
            segment.close()
        elif words[WORD_DISCARDED]:
            segment.close()
        else:
            waiting.append((words[WORD_CREATED], layout))
    waiting.sort(key=lambda entry: entry[0])
    for index, (_, layout) in enumerate(waiting):
        if index < len(waiting) - MAX_RETIRED:
            layout.segment.words[WORD_DISCARDED] = 1
            layout.segment.discard(layout.rows_start())
        layout.segment.close()
