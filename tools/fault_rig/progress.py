"""Where an engine is, in a file of four numbers that it keeps current and everybody may read."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import NamedTuple

_NUMBERS = struct.Struct("<4Q")


class Progress(NamedTuple):
    """Rounds and steps of the present boot, the parameter version in force, calls of observe refused."""

    rounds: int = 0
    steps: int = 0
    version: int = 0
    rejected: int = 0


def open_progress(path: Path) -> mmap.mmap:
    """Make the file anew and map it."""
    with path.open("w+b") as file:
        file.truncate(_NUMBERS.size)
        return mmap.mmap(file.fileno(), _NUMBERS.size)


def write_progress(memory: mmap.mmap, progress: Progress) -> None:
    """Overwrite all four."""
    _NUMBERS.pack_into(memory, 0, *progress)


def read_progress(path: Path) -> Progress:
    """Read all four; zeros before the engine has begun."""
    try:
        found = path.read_bytes()
    except FileNotFoundError:
        return Progress()
    return Progress(*_NUMBERS.unpack(found)) if len(found) == _NUMBERS.size else Progress()
