"""Who writes and who reads a ring, seen from outside: nothing is taken, written or held.

Whether an engine lives is told by its lock, which the kernel releases however it ends; process ids mean
nothing across the containers of a pod.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path

from serving_adapter.ring import retired_rings
from serving_adapter.ring_layout import (
    HEADER_BYTES,
    LOCK_READER,
    LOCK_WRITER,
    WORD_CREATED,
    WORD_WRITER,
    RingText,
    read_text,
)
from serving_adapter.shared_memory import SharedMemoryError, locked, segment_path


@dataclass(frozen=True, slots=True)
class RingPresence:
    """One boot's ring.

    ``writer`` is the engine's process id in its own namespace, ``created`` the seconds since 1970 at which
    the boot began; ``written`` and ``read`` say whether an engine and a sidecar hold the ring now.
    """

    path: Path
    text: RingText
    writer: int
    created: float
    written: bool
    read: bool


def look_at(path: Path) -> RingPresence | None:
    """Look at one ring; None when there is none.

    Raises
    ------
    SharedMemoryError
        Something else lies there, or a ring of another layout.
    OSError
        It may not be read.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        if os.fstat(fd).st_size < HEADER_BYTES:
            raise SharedMemoryError(f"{path}: got something that is no event ring")
        with mmap.mmap(fd, HEADER_BYTES, prot=mmap.PROT_READ) as memory:
            header = memory[:]
        words = struct.unpack(f"={HEADER_BYTES // 8}Q", header)
        return RingPresence(
            path=path,
            text=read_text(path, words, header),
            writer=words[WORD_WRITER],
            created=words[WORD_CREATED] / 1e9,
            written=locked(fd, LOCK_WRITER),
            read=locked(fd, LOCK_READER),
        )
    finally:
        os.close(fd)


def present_ring(name: str) -> RingPresence | None:
    """Look at the ring of the present boot; raises as :func:`look_at`."""
    return look_at(segment_path(name))


def rings_of(name: str) -> list[RingPresence]:
    """Look at the rings of all boots of a name, the oldest first; raises as :func:`look_at`."""
    path = segment_path(name)
    found = [look_at(each) for each in (path, *retired_rings(path))]
    return sorted((ring for ring in found if ring is not None), key=lambda ring: ring.created)


def engine_is_gone(name: str) -> bool:
    """Whether the ring's engine has ended; False while it runs, and where there is no ring to tell by."""
    try:
        ring = present_ring(name)
    except OSError:
        return False
    return ring is not None and not ring.written
