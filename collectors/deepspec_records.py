"""DeepSpec's records (PR #63): JSON lines of raw logits and prefix labels, ragged, plain or gzip."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np

from collectors.errors import RecordError
from serving_adapter.contract import MAX_GAMMA, NO_STOP, ContractError, Rounds

MAX_LINE_BYTES = 4 * 1024 * 1024
_MAX_LABELS = 65_535


@dataclass(frozen=True, slots=True)
class _Record:
    logits: list[float]
    accepted: int
    request: int | None
    step: int
    temperature: float
    segment: str


def read_deepspec(path: Path, max_bytes: int, gamma: int | None = None) -> tuple[Rounds, list[str], bool]:
    """Read JSON lines ``{"logits": [...], "labels": [0/1 prefix labels...]}``.

    A record shorter than gamma was verified as far as it goes; behind it there is no draft: the logits
    there are zeros that nothing uses (``draft_stop`` says so). Of the keys that newer recorders add,
    ``request_id``, ``step_index``, ``temperature`` and ``domain`` are taken where they are well formed.

    Raises
    ------
    RecordError
        Naming the line and the field.
    """
    records = [_record(path, number, line) for number, line in _lines(path, max_bytes)]
    if not records:
        raise RecordError(path, "no records")
    longest = max(len(record.logits) for record in records)
    width = longest if gamma is None else gamma
    if longest > width:
        raise RecordError(path, f"logits: got {longest} positions, expected at most gamma = {width}")
    logits = np.zeros((len(records), width))
    for row, record in enumerate(records):
        logits[row, : len(record.logits)] = record.logits
    lengths = np.array([len(record.logits) for record in records])
    named = all(record.request is not None for record in records)
    labels = sorted({record.segment for record in records})
    if len(labels) > _MAX_LABELS:
        raise RecordError(path, f"domain: got {len(labels)} labels, expected at most {_MAX_LABELS}")
    index = {label: i for i, label in enumerate(labels)}
    try:
        rounds = Rounds.build(
            logits,
            [record.accepted for record in records],
            verified=lengths,
            draft_stop=np.where(lengths < width, lengths - 1, NO_STOP),
            request=np.array([record.request for record in records], dtype=np.uint64) if named else None,
            step=[record.step for record in records],
            sampling=np.array([record.temperature for record in records]),
            segment=[index[record.segment] for record in records],
            segments=labels,
        )
    except ContractError as error:
        raise RecordError(path, str(error)) from error
    ragged = int((lengths < width).sum())
    notes = [f"{ragged} of {len(records)} records are shorter than gamma = {width}"] if ragged else []
    return rounds, notes, not named


def _lines(path: Path, max_bytes: int) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as plain:
        packed = plain.read(2) == b"\x1f\x8b"
        plain.seek(0)
        stream: IO[bytes] = gzip.GzipFile(fileobj=plain) if packed else plain  # type: ignore[assignment]
        total = number = 0
        while True:
            try:
                line = stream.readline(MAX_LINE_BYTES + 1)
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise RecordError(path, f"line {number + 1}: the gzip file is damaged ({error})") from error
            if not line:
                return
            number += 1
            total += len(line)
            if len(line) > MAX_LINE_BYTES:
                raise RecordError(
                    path, f"line {number}: got a longer line, expected at most {MAX_LINE_BYTES} bytes"
                )
            if total > max_bytes:
                raise RecordError(
                    path, f"line {number}: got more bytes unpacked, expected at most {max_bytes}"
                )
            if line.strip():
                yield number, line


def _record(path: Path, number: int, line: bytes) -> _Record:
    def wrong(problem: str) -> RecordError:
        return RecordError(path, f"line {number}: {problem}")

    raw = _decode(line, wrong)
    if not isinstance(raw, dict):
        raise wrong(f"got {type(raw).__name__}, expected an object")
    logits, labels = raw.get("logits"), raw.get("labels")
    for name, value in (("logits", logits), ("labels", labels)):
        if not isinstance(value, list):
            raise wrong(f"{name}: got {_shown(value)}, expected a list of numbers")
        for position, item in enumerate(value, start=1):
            if isinstance(item, bool) and name == "labels":
                continue
            if isinstance(item, bool) or not isinstance(item, int | float):
                raise wrong(f"{name}: position {position}: got {_shown(item)}, expected a number")
    assert isinstance(logits, list)
    assert isinstance(labels, list)
    if not 1 <= len(logits) <= MAX_GAMMA:
        raise wrong(f"logits: got {len(logits)} positions, expected 1 to {MAX_GAMMA}")
    if len(labels) != len(logits):
        raise wrong(f"labels: got {len(labels)}, expected {len(logits)}, one per logit")
    for position, item in enumerate(logits, start=1):
        if not _finite(item):
            raise wrong(f"logits: position {position}: got {_shown(item)}, expected a finite number")
    for position, item in enumerate(labels, start=1):
        if item not in (0, 1):
            raise wrong(f"labels: position {position}: got {_shown(item)}, expected 0 or 1")
        if position > 1 and item > labels[position - 2]:
            raise wrong(f"labels: position {position}: got 1 after 0, expected prefix labels, never rising")
    return _Record(
        logits=[float(item) for item in logits],
        accepted=int(sum(labels)),
        request=_request(raw.get("request_id")),
        step=_whole(raw.get("step_index"), 2**32) or 0,
        temperature=_temperature(raw.get("temperature")),
        segment=_segment(raw.get("domain")),
    )


def _decode(line: bytes, wrong: Any) -> Any:
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        # Python's own writer puts NaN and Infinity into what it calls JSON: name the position instead.
        try:
            return json.loads(line)
        except (ValueError, RecursionError):
            raise wrong(f"not JSON ({error})") from error


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _whole(value: Any, limit: int) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < limit
    return value if whole else None


def _request(value: Any) -> int | None:
    if isinstance(value, str) and value:
        body = value.encode("utf-8", errors="surrogatepass")
        return int.from_bytes(hashlib.blake2b(body, digest_size=8).digest(), "little")
    return _whole(value, 2**64)


def _temperature(value: Any) -> float:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 100
    return float(value) if usable else 0.0


def _segment(value: Any) -> str:
    usable = isinstance(value, str) and 1 <= len(value) <= 128 and value.isprintable()
    return value if usable else "default"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
