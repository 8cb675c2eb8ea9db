"""Records in files, as a source: our npz, DeepSpec JSON lines, SGLang shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from calibrator.formats.round_checks import check_rounds
from calibrator.formats.temperatures import FormatError
from collectors.deepspec_records import read_deepspec
from collectors.errors import RecordError
from collectors.npz_records import read_npz
from collectors.sglang_shards import read_shard
from serving_adapter.contract import Rounds

MAX_FILE_BYTES = 2 * 1024**3
"""Bytes of one file, as read and as unpacked."""

_DEEPSPEC_SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".ndjson", ".ndjson.gz")


class FileRecords(NamedTuple):
    """Rounds of one file. ``own_requests`` says that the file did not name its requests."""

    rounds: Rounds
    notes: list[str]
    own_requests: bool


class Records(NamedTuple):
    """Rounds of all files in order, and what a reader of their figures should know."""

    rounds: Rounds
    notes: list[str]


def read_records(
    paths: Sequence[str | Path], *, gamma: int | None = None, max_bytes: int = MAX_FILE_BYTES
) -> Records:
    """Read and validate records files; the kind is told by the name.

    Parameters
    ----------
    paths
        ``.npz`` (docs/contracts.md), DeepSpec JSON lines (``.jsonl``, ``.jsonl.gz``), SGLang shards
        (``.pt``; needs PyTorch).
    gamma
        Draft positions of ragged DeepSpec records; None: of the longest.
    max_bytes
        Largest file, as read and as unpacked.

    Returns
    -------
    Rounds of all files; a file that does not name its requests makes every row its own request, different
    from those of every other file.

    Raises
    ------
    RecordError
        One line naming file, line or row, field and value. Nothing of a refused file is used.
    """
    if not paths:
        raise RecordError("records", "got no file, expected at least one")
    parts: list[Rounds] = []
    notes: list[str] = []
    unnamed = 2**63  # far from the numbers that recorders count requests by
    for path in map(Path, paths):
        rounds, found, own_requests = _read(path, gamma, max_bytes)
        if parts and rounds.gamma != parts[0].gamma:
            raise RecordError(
                path, f"gamma: got {rounds.gamma}, expected {parts[0].gamma} as in {Path(paths[0])}"
            )
        if own_requests:
            request = np.arange(unnamed, unnamed + len(rounds), dtype=np.uint64)
            rounds = replace(rounds, request=request)
            unnamed += len(rounds)
        parts.append(rounds)
        notes += [note for note in found if note not in notes]
    return Records(Rounds.concatenate(parts), notes)


def _read(path: Path, gamma: int | None, max_bytes: int) -> FileRecords:
    try:
        if not path.is_file():
            raise RecordError(
                path, "it is a folder" if path.is_dir() else "not a file" if path.exists() else "no such file"
            )
        size = path.stat().st_size
    except OSError as error:
        raise RecordError(path, str(error.strerror or error)) from error
    if size == 0:
        raise RecordError(path, "the file is empty")
    if size > max_bytes:
        raise RecordError(path, f"got {size} bytes, expected at most {max_bytes}")
    name = path.name.lower()
    try:
        if name.endswith(".npz"):
            return _checked(path, FileRecords(*read_npz(path, max_bytes)))
        if name.endswith(_DEEPSPEC_SUFFIXES):
            return _checked(path, FileRecords(*read_deepspec(path, max_bytes, gamma)))
        if name.endswith((".pt", ".pth")):
            return FileRecords(*read_shard(path))
    except OSError as error:
        raise RecordError(path, str(error.strerror or error)) from error
    except MemoryError as error:
        raise RecordError(path, "too large for this machine's memory") from error
    raise RecordError(path, "expected a name ending in .npz, .jsonl, .jsonl.gz or .pt")


def _checked(path: Path, records: FileRecords) -> FileRecords:
    try:
        found = check_rounds(records.rounds)
    except FormatError as error:
        raise RecordError(path, str(error)) from error
    return records._replace(notes=[*records.notes, *(f"{path}: {note}" for note in found)])
