"""The parameter mirror: the document in force, in shared memory, so that an engine never opens a socket.

Two areas, each with a sequence lock and one writer: the sidecar writes the parameter document, rank 0 of
the engine writes what it applied or refused. A writer makes the sequence odd, writes, and makes it even
again. A reader copies between two looks at the sequence and takes the copy if both were equal and even;
otherwise it tries again, a bounded number of times, and then keeps what it had. A writer that died half
way leaves the sequence odd, until the next one writes. Fences and 8-byte words as in
:mod:`serving_adapter.ring`.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from serving_adapter.contract.parameters import MAX_DOCUMENT_BYTES
from serving_adapter.ring_layout import refuse_foreign_file
from serving_adapter.shared_memory import Fence, Segment, SharedMemoryError, segment_path

MAGIC = int.from_bytes(b"DSPKPARM", "little")
LAYOUT = 1
MAX_REASON = 512
_MAX_REPORT_BYTES = 4096
_HEADER_BYTES = 256
_REPORT_OFFSET = _HEADER_BYTES
_DOCUMENT_OFFSET = _HEADER_BYTES + _MAX_REPORT_BYTES
_SIZE = _DOCUMENT_OFFSET + MAX_DOCUMENT_BYTES
_ATTEMPTS = 16
_LOCK_DOCUMENT_WRITER = 0

_WORD_MAGIC, _WORD_LAYOUT = 0, 1
# Each area in a cache line of its own: sequence, length, version.
_WORD_DOCUMENT, _WORD_REPORT = 8, 16


class EngineReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine says of the parameters it was offered; see :class:`ReplicaReport` in the ports."""

    applied: int = 0
    refused: int = 0
    reason: str = ""
    forms: tuple[str, ...] = ("temperature",)
    fingerprint: str = ""
    segment_sets: bool = False


@dataclass(frozen=True, slots=True)
class MirroredDocument:
    """An encoded parameter document as the sidecar left it."""

    sequence: int
    version: int
    payload: bytes


def mirror_path(ring: str) -> Path:
    """Where the mirror that belongs to a ring lies."""
    path = segment_path(ring)
    return path.with_name(f"{path.name}.parameters")


class ParameterMirror:
    """One process's view of the mirror. Make one with :meth:`open`."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self._words = segment.words
        self._fence = Fence()

    @classmethod
    def open(cls, ring: str) -> ParameterMirror:
        """Attach to the mirror of a ring; whoever comes first, engine or sidecar, makes it.

        Raises
        ------
        SharedMemoryError
            There is something else, or another layout, under that name or under that of the ring.
        OSError
            The shared memory cannot be had.
        """
        refuse_foreign_file(segment_path(ring))
        path = mirror_path(ring)
        while True:
            with contextlib.suppress(FileNotFoundError):
                segment = Segment.attach(path, _SIZE)
                if segment.words[_WORD_MAGIC] != MAGIC or segment.words[_WORD_LAYOUT] != LAYOUT:
                    segment.close()
                    raise SharedMemoryError(f"{path}: got no parameter mirror of layout {LAYOUT}")
                return cls(segment)
            segment = Segment.create(path, _SIZE)
            segment.words[_WORD_LAYOUT], segment.words[_WORD_MAGIC] = LAYOUT, MAGIC
            try:
                segment.publish(path)
            except FileExistsError:  # the other side was faster: attach to its mirror
                segment.unlink()
                segment.close()
                continue
            return cls(segment)

    @property
    def sequence(self) -> int:
        """Changes whenever the document does: one load tells an engine that nothing did."""
        return self._words[_WORD_DOCUMENT]

    def claim(self) -> bool:
        """Become the one writer of the document; False while another sidecar is."""
        return self.segment.lock(_LOCK_DOCUMENT_WRITER)

    def write(self, version: int, payload: bytes) -> None:
        """Mirror an encoded document.

        Raises
        ------
        ValueError
            It is larger than a document may be.
        """
        if len(payload) > MAX_DOCUMENT_BYTES:
            raise ValueError(f"document: got {len(payload)} bytes, expected at most {MAX_DOCUMENT_BYTES}")
        self._write(_WORD_DOCUMENT, _DOCUMENT_OFFSET, version, payload)

    def read(self) -> MirroredDocument | None:
        """Copy the document; None when there is none, or when every attempt met a writer."""
        found = self._read(_WORD_DOCUMENT, _DOCUMENT_OFFSET, MAX_DOCUMENT_BYTES)
        return None if found is None else MirroredDocument(*found)

    def write_report(self, report: EngineReport) -> None:
        """Say what the engine applied or refused; for rank 0 only."""
        if len(report.reason) > MAX_REASON:
            report = msgspec.structs.replace(report, reason=report.reason[: MAX_REASON - 3] + "...")
        body = msgspec.json.encode(report)
        if len(body) > _MAX_REPORT_BYTES:
            raise ValueError(f"report: got {len(body)} bytes, expected at most {_MAX_REPORT_BYTES}")
        self._write(_WORD_REPORT, _REPORT_OFFSET, report.applied, body)

    def read_report(self) -> EngineReport | None:
        """Copy the engine's last report; None when there is none yet or it is being written."""
        found = self._read(_WORD_REPORT, _REPORT_OFFSET, _MAX_REPORT_BYTES)
        if found is None:
            return None
        try:
            return msgspec.json.decode(found[2], type=EngineReport)
        except msgspec.MsgspecError:
            return None

    def _write(self, word: int, offset: int, version: int, payload: bytes) -> None:
        words = self._words
        odd = words[word] | 1  # already odd when the writer before died half way
        words[word] = odd
        self._fence()
        words[word + 1], words[word + 2] = len(payload), version
        self.segment.memory[offset : offset + len(payload)] = payload
        self._fence()
        words[word] = odd + 1

    def _read(self, word: int, offset: int, most: int) -> tuple[int, int, bytes] | None:
        words = self._words
        for _ in range(_ATTEMPTS):
            before = words[word]
            if before == 0:
                return None
            if before & 1:
                continue
            self._fence()
            length, version = words[word + 1], words[word + 2]
            payload = self.segment.memory[offset : offset + min(length, most)]
            self._fence()
            if words[word] == before:
                return before, version, payload
        return None

    def close(self) -> None:
        """Detach; the mirror stays for the others."""
        self.segment.close()
