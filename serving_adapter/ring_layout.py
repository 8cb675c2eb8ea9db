"""Where everything lies in an event ring: words of the header, label dictionary, columns.

::

    header (4096 bytes of 8-byte words) | labels | columns of the rounds | step rows

A round of number r stands in slot r mod capacity of every column. Steps are stored row by row, since an
engine writes one at a time. All integers are little endian.
"""

from __future__ import annotations

import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from serving_adapter.contract import MAX_GAMMA
from serving_adapter.contract.steps import STEP_COLUMNS
from serving_adapter.segment_labels import MAX_LABELS
from serving_adapter.shared_memory import Segment, SharedMemoryError

MAGIC = int.from_bytes(b"DSPKRING", "little")
LAYOUT = 2
HEADER_BYTES = 4096
_TEXT_OFFSET = 2048
_ALIGNMENT = 64

# Words written once, before the segment has its name.
WORD_MAGIC, WORD_LAYOUT, WORD_GAMMA, WORD_ROUNDS, WORD_STEPS, WORD_FLAGS = 0, 1, 2, 3, 4, 5
WORD_WRITER, WORD_CREATED, WORD_TEXT_LENGTH = 6, 7, 8
FLAG_SOFT_LABELS = 1
# Words of the writer, each ring's pair in a cache line of its own.
WORD_LABELS, WORD_REJECTED, WORD_WITHHELD = 16, 17, 18
WORD_ROUNDS_RESERVED, WORD_ROUNDS_WRITTEN = 24, 25
WORD_STEPS_RESERVED, WORD_STEPS_WRITTEN = 32, 33
# Word of the next writer: the rows of this boot were given up, what nobody acknowledged is lost.
WORD_DISCARDED = 40
# Words of the reader: two records of four words, and which of them counts.
WORD_SETTLED, WORD_SETTLED_RECORDS = 48, (56, 64)

# Locks of a segment (see Segment.lock).
LOCK_WRITER, LOCK_READER = 0, 1

LABEL_BYTES = 520

HALF_MAX = 65504.0

# Draft lengths as u8; the last three only count where the row's context says that they were given.
LENGTH_COLUMNS = ("accepted", "verified", "scheduled", "resolved", "resolved_accepted", "draft_stop")
# What is mostly the same for all rows of a step, side by side so that one copy fills it: 16 bytes.
CONTEXT = np.dtype(
    [
        ("version", "<u4"),
        ("share", "<f4"),
        ("explore", "<f2"),
        ("sampling", "<f2"),
        ("segment", "<u2"),
        ("given", "<u2"),
    ]
)
GIVEN_RESOLVED, GIVEN_RESOLVED_ACCEPTED, GIVEN_DRAFT_STOP = 1, 2, 4
# A step's rounds are those from ``first`` on, ``rows`` of them: the two rings are joined by row numbers.
STEPS = np.dtype([("first", "<u8"), *STEP_COLUMNS.items()])


def refuse_foreign_file(path: Path) -> None:
    """Leave alone what lies at a ring's path and is no ring of any release.

    Raises
    ------
    SharedMemoryError
        Naming the path.
    OSError
        It cannot be read.
    """
    try:
        kind = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    head = b""
    if stat.S_ISREG(kind):
        with path.open("rb") as file:
            head = file.read(8)
    if int.from_bytes(head, "little") != MAGIC:
        what = "a folder" if stat.S_ISDIR(kind) else "a file that is no event ring"
        raise SharedMemoryError(f"ring {path}: got {what}, expected a free name or a ring")


class RingText(msgspec.Struct, frozen=True):
    """Who writes the ring; ``segment_sets``: whether the engine applies sets per segment."""

    boot: str
    deployment: str
    replica: str
    fingerprint: str
    segment_sets: bool = False


def read_text(path: Path, words: Sequence[int], memory: Any) -> RingText:
    """Read who writes a ring from its header: ``words`` and ``memory`` of at least ``HEADER_BYTES``.

    Raises
    ------
    SharedMemoryError
        It is no ring, or one of another layout.
    """
    if words[WORD_MAGIC] != MAGIC:
        raise SharedMemoryError(f"{path}: got something that is no event ring")
    if words[WORD_LAYOUT] != LAYOUT:
        raise SharedMemoryError(f"{path}: got layout {words[WORD_LAYOUT]}, expected {LAYOUT}")
    length = min(words[WORD_TEXT_LENGTH], HEADER_BYTES - _TEXT_OFFSET)
    try:
        return msgspec.json.decode(memory[_TEXT_OFFSET : _TEXT_OFFSET + length], type=RingText)
    except msgspec.MsgspecError as error:
        raise SharedMemoryError(f"{path}: header of a ring expected ({error})") from error


@dataclass(frozen=True, slots=True)
class RingShape:
    """What the size and place of everything in a ring follow from."""

    gamma: int
    rounds: int
    steps: int
    soft_labels: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.gamma <= MAX_GAMMA:
            raise ValueError(f"gamma: got {self.gamma}, expected 1 to {MAX_GAMMA} draft positions")
        for name in ("rounds", "steps"):
            if not 1 <= getattr(self, name) <= 2**32:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected a capacity of at least 1 row")

    def columns(self) -> tuple[dict[str, tuple[int, tuple[int, ...], np.dtype[Any]]], int]:
        """Offset, shape and type of every column (and of the step rows), and the size of the segment."""
        # Single precision here, half on the wire: rounding 256 x 7 of them costs an engine 5 us, copying 0.5.
        wanted: list[tuple[str, tuple[int, ...], Any]] = [("logits", (self.rounds, self.gamma), "<f4")]
        if self.soft_labels:
            wanted.append(("accept_probability", (self.rounds, self.gamma), "<f2"))
        wanted += [("request", (self.rounds,), "<u8"), ("step", (self.rounds,), "<u4")]
        wanted += [("context", (self.rounds,), CONTEXT)]
        wanted += [(name, (self.rounds,), "u1") for name in LENGTH_COLUMNS]
        wanted.append(("steps", (self.steps,), STEPS))
        placed: dict[str, tuple[int, tuple[int, ...], np.dtype[Any]]] = {}
        offset = HEADER_BYTES + MAX_LABELS * LABEL_BYTES
        for name, shape, wire in wanted:
            offset = -(-offset // _ALIGNMENT) * _ALIGNMENT
            placed[name] = (offset, shape, np.dtype(wire))
            offset += int(np.prod(shape)) * np.dtype(wire).itemsize
        return placed, -(-offset // _ALIGNMENT) * _ALIGNMENT


@dataclass(frozen=True, slots=True)
class RingLayout:
    """Header and columns of a mapped ring."""

    segment: Segment
    shape: RingShape
    text: RingText
    rounds: dict[str, NDArray[Any]] = field(repr=False)
    steps: NDArray[Any] = field(repr=False)

    @classmethod
    def write(
        cls, segment: Segment, shape: RingShape, text: RingText, writer: int, created: int
    ) -> RingLayout:
        """Fill the header of a new segment."""
        words = segment.words
        words[WORD_LAYOUT], words[WORD_GAMMA] = LAYOUT, shape.gamma
        words[WORD_ROUNDS], words[WORD_STEPS] = shape.rounds, shape.steps
        words[WORD_FLAGS] = FLAG_SOFT_LABELS * shape.soft_labels
        words[WORD_WRITER], words[WORD_CREATED] = writer, created
        body = msgspec.json.encode(text)
        if len(body) > HEADER_BYTES - _TEXT_OFFSET:
            raise ValueError("deployment, replica and fingerprint: too long for the header of a ring")
        segment.memory[_TEXT_OFFSET : _TEXT_OFFSET + len(body)] = body
        words[WORD_TEXT_LENGTH] = len(body)
        words[WORD_MAGIC] = MAGIC
        return cls.read(segment)

    @classmethod
    def read(cls, segment: Segment) -> RingLayout:
        """Read the header of a ring.

        Raises
        ------
        SharedMemoryError
            It is no ring, one of another layout, or cut short.
        """
        words = segment.words
        if segment.size < HEADER_BYTES:
            raise SharedMemoryError(f"{segment.path}: got something that is no event ring")
        text = read_text(segment.path, words, segment.memory)
        try:
            shape = RingShape(
                gamma=words[WORD_GAMMA],
                rounds=words[WORD_ROUNDS],
                steps=words[WORD_STEPS],
                soft_labels=bool(words[WORD_FLAGS] & FLAG_SOFT_LABELS),
            )
        except ValueError as error:
            raise SharedMemoryError(f"{segment.path}: header of a ring expected ({error})") from error
        placed, size = shape.columns()
        if segment.size < size:
            raise SharedMemoryError(f"{segment.path}: got {segment.size} bytes, expected {size}")
        arrays = {name: segment.array(*place) for name, place in placed.items()}
        steps = arrays.pop("steps")
        return cls(segment=segment, shape=shape, text=text, rounds=arrays, steps=steps)

    def label(self, index: int) -> str:
        """Segment label at ``index``."""
        start = HEADER_BYTES + index * LABEL_BYTES
        length = self.segment.words[start // 8]
        return self.segment.memory[start + 8 : start + 8 + length].decode("utf-8", errors="replace")

    def put_label(self, index: int, label: str) -> None:
        """Write a label; the reader sees it once ``WORD_LABELS`` is above ``index``."""
        body = label.encode("utf-8")
        start = HEADER_BYTES + index * LABEL_BYTES
        self.segment.memory[start + 8 : start + 8 + len(body)] = body
        self.segment.words[start // 8] = len(body)

    def labels(self) -> tuple[str, ...]:
        """Read the dictionary: labels in the order of their index."""
        return tuple(self.label(i) for i in range(min(self.segment.words[WORD_LABELS], MAX_LABELS)))

    def rows_start(self) -> int:
        """Offset of the first column."""
        return HEADER_BYTES + MAX_LABELS * LABEL_BYTES
