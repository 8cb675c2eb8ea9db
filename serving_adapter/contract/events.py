"""Verify events: one message is one flush of a replica (Kafka topic ``dspark.verify``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from serving_adapter.contract.errors import ContractError
from serving_adapter.contract.rounds import MAX_GAMMA, POSITION_COLUMNS, ROUND_COLUMNS, Rounds, as_numbers
from serving_adapter.contract.steps import STEP_COLUMNS, Steps

SCHEMA = "dspark.verify.v1"
CONTENT_TYPE_MSGPACK = "application/vnd.dspark.verify.v1+msgpack"
CONTENT_TYPE_JSON = "application/vnd.dspark.verify.v1+json"
CONTENT_TYPE_HEADER = "content-type"
TOPIC = "dspark.verify"
DEAD_LETTER_TOPIC = "dspark.verify.dead-letter"

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""A flush is about 64 KiB; whatever is larger than this is not one of ours and is not decoded."""

COUNT_BITS = 53
"""Row numbers and counts stay below ``2**53``: exact in the JSON of every language, and their sums in SQL."""

# Sent as one value when every row has the same one: most flushes of one replica do, and a round then
# takes about 30 bytes.
_OFTEN_CONSTANT = ("explore", "version", "segment", "sampling", "draft_stop")


@dataclass(frozen=True, slots=True, eq=False)
class VerifyBatch:
    """Envelope and rows of one flush.

    ``sequence`` is the number of the first round; rounds are numbered without gaps per ``boot``.
    ``lost`` rounds were overwritten in the ring since the message before. ``steps_sequence`` and
    ``steps_lost`` say the same of the step rows. ``emitted_at`` is in nanoseconds since 1970 (UTC).
    ``segment_sets``: whether rows were served by the sets per segment of their version, where it has any;
    otherwise by its pooled set.
    """

    deployment: str
    fingerprint: str
    replica: str
    boot: str
    sequence: int
    lost: int
    emitted_at: int
    rounds: Rounds | None
    steps: Steps
    gamma: int
    share: float = 1.0
    steps_sequence: int = 0
    steps_lost: int = 0
    segment_sets: bool = False

    def __post_init__(self) -> None:
        for name in ("deployment", "replica", "boot"):
            _text(name, getattr(self, name))
        if not isinstance(self.fingerprint, str) or len(self.fingerprint) > 128:
            raise ContractError("fingerprint", self.fingerprint, "at most 128 characters")
        for name in ("sequence", "lost", "emitted_at", "steps_sequence", "steps_lost"):
            _count(name, getattr(self, name), 63)
        if (
            not isinstance(self.gamma, int)
            or isinstance(self.gamma, bool)
            or not 1 <= self.gamma <= MAX_GAMMA
        ):
            raise ContractError("gamma", self.gamma, f"1 to {MAX_GAMMA} draft positions")
        if not isinstance(self.share, int | float) or isinstance(self.share, bool) or not 0 < self.share <= 1:
            raise ContractError("share", self.share, "in (0, 1]")
        if not isinstance(self.segment_sets, bool):
            raise ContractError("segment_sets", self.segment_sets, "true or false")
        if self.rounds is not None and self.rounds.gamma != self.gamma:
            raise ContractError("logits", f"{self.rounds.gamma} positions", f"gamma = {self.gamma}")

    @property
    def count(self) -> int:
        """Number of rounds in the message."""
        return 0 if self.rounds is None else len(self.rounds)


def encode_msgpack(batch: VerifyBatch) -> bytes:
    """Envelope as msgpack, columns as packed little-endian arrays."""
    rounds: dict[str, Any] = {}
    if batch.rounds is not None:
        for name, column in _sent_columns(batch.rounds).items():
            rounds[name] = column if not isinstance(column, np.ndarray) else column.tobytes()
    steps = {
        name: np.ascontiguousarray(getattr(batch.steps, name), dtype=wire).tobytes()
        for name, wire in STEP_COLUMNS.items()
    }
    return msgspec.msgpack.encode(_envelope(batch, rounds, steps if len(batch.steps) else {}))


def encode_json(batch: VerifyBatch) -> bytes:
    """Encode with the same names, columns as lists; NaN in ``accept_probability`` becomes null."""
    rounds: dict[str, Any] = {}
    if batch.rounds is not None:
        for name, column in _sent_columns(batch.rounds).items():
            if not isinstance(column, np.ndarray):
                rounds[name] = column
            elif name == "accept_probability":
                rounds[name] = [
                    [None if p != p else p for p in row] for row in column.astype(np.float64).tolist()
                ]
            else:
                rounds[name] = column.tolist()
    steps = {name: getattr(batch.steps, name).tolist() for name in STEP_COLUMNS}
    return msgspec.json.encode(_envelope(batch, rounds, steps if len(batch.steps) else {}))


def decode(payload: bytes, content_type: str) -> VerifyBatch:
    """Decode and validate one message.

    Raises
    ------
    ContractError
        Whatever is wrong, naming field and value. Nothing of a refused message is used.
    """
    if len(payload) > MAX_MESSAGE_BYTES:
        raise ContractError("message", f"{len(payload)} bytes", f"at most {MAX_MESSAGE_BYTES} bytes")
    kind = content_type.split(";")[0].strip().lower()
    try:
        if kind == CONTENT_TYPE_MSGPACK:
            raw = msgspec.msgpack.decode(payload)
        elif kind == CONTENT_TYPE_JSON:
            raw = msgspec.json.decode(payload)
        else:
            raise ContractError(
                CONTENT_TYPE_HEADER, content_type, f"{CONTENT_TYPE_MSGPACK} or {CONTENT_TYPE_JSON}"
            )
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ContractError("message", payload[:24], f"{kind.rpartition('+')[2]} ({error})") from error
    if not isinstance(raw, dict):
        raise ContractError("message", type(raw).__name__, "an object")
    return _from_raw(raw, packed=kind == CONTENT_TYPE_MSGPACK)


def peek_steps(payload: bytes, content_type: str) -> tuple[int, int, int]:
    """Steps sequence, count and loss of a message of which :func:`peek_rows` can tell whose it is.

    Zeros where they cannot be read.
    """
    packed = content_type.split(";")[0].strip().lower() == CONTENT_TYPE_MSGPACK
    try:
        raw = msgspec.msgpack.decode(payload) if packed else msgspec.json.decode(payload)
        column = raw["steps"]["step_seconds"]
        first, lost = raw.get("steps_sequence", 0), raw.get("steps_lost", 0)
        for name, value in (("steps_sequence", first), ("steps_lost", lost)):
            _count(name, value, COUNT_BITS)
        count = len(column) // 4 if packed and isinstance(column, bytes) else len(column)
        return first, count, min(lost, first)
    except (msgspec.DecodeError, AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return 0, 0, 0


def peek_rows(payload: bytes, content_type: str) -> tuple[str, str, str, int, int, int] | None:
    """Deployment, replica, boot, sequence, count and loss of a message that :func:`decode` refused.

    The count is 0 where it holds step rows only; None where it cannot be read. Lets a dead-lettered message
    be booked in its replica's ledger.
    """
    if len(payload) > MAX_MESSAGE_BYTES:
        return None
    try:
        packed = content_type.split(";")[0].strip().lower() == CONTENT_TYPE_MSGPACK
        raw = msgspec.msgpack.decode(payload) if packed else msgspec.json.decode(payload)
        envelope = (raw["deployment"], raw["replica"], raw["boot"])
        for name, value in zip(("deployment", "replica", "boot"), envelope, strict=True):
            _text(name, value)
        rounds, sequence = raw.get("rounds") or {}, raw["sequence"]
        column = rounds["accepted"] if rounds else b""
        if not isinstance(column, bytes | list):  # one number for all rows
            column = rounds["logits"] if not packed else rounds["logits"][:: 2 * raw["gamma"]]
        countable = isinstance(column, bytes | list)
        if not countable or not isinstance(sequence, int) or not 0 <= sequence < 2**COUNT_BITS:
            return None
        lost = raw.get("lost", 0)
        lost = lost if isinstance(lost, int) and 0 <= lost <= sequence else 0
        return (*envelope, sequence, len(column), lost)
    except (msgspec.DecodeError, AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return None


def _envelope(batch: VerifyBatch, rounds: dict[str, Any], steps: dict[str, Any]) -> dict[str, Any]:
    # Left out where it says nothing new: most rows are served by the pooled set.
    sets = {"segment_sets": True} if batch.segment_sets else {}
    return {
        "schema": SCHEMA,
        "deployment": batch.deployment,
        "fingerprint": batch.fingerprint,
        "replica": batch.replica,
        "boot": batch.boot,
        "sequence": batch.sequence,
        "lost": batch.lost,
        "emitted_at": batch.emitted_at,
        "gamma": batch.gamma,
        "segments": list(batch.rounds.segments) if batch.rounds is not None else [],
        "share": batch.share,
        "steps_sequence": batch.steps_sequence,
        "steps_lost": batch.steps_lost,
        **sets,
        "rounds": rounds,
        "steps": steps,
    }


def _sent_columns(rounds: Rounds) -> dict[str, Any]:
    """Columns worth sending: one value where all rows agree, nothing where the default says the same."""
    with np.errstate(over="ignore"):
        logits = np.ascontiguousarray(rounds.logits, dtype="<f2")
    if not np.isfinite(logits).all():
        row, position = (int(i) for i in np.argwhere(~np.isfinite(logits))[0])
        value = float(rounds.logits[row, position])
        raise ContractError(f"logits: row {row}, position {position + 1}", value, "at most 65504 in size")
    sent: dict[str, Any] = {"logits": logits}
    for name, wire in ROUND_COLUMNS.items():
        if name == "resolved" and np.array_equal(rounds.resolved, rounds.verified):
            continue
        if name == "resolved_accepted" and np.array_equal(rounds.resolved_accepted, rounds.accepted):
            continue
        column = np.ascontiguousarray(getattr(rounds, name), dtype=wire)
        if name in _OFTEN_CONSTANT and column.size and bool((column == column[0]).all()):
            sent[name] = column[0].item()
        else:
            sent[name] = column
    if rounds.accept_probability is not None:
        sent["accept_probability"] = np.ascontiguousarray(rounds.accept_probability, dtype="<f2")
    return sent


def _from_raw(raw: dict[str, Any], *, packed: bool) -> VerifyBatch:
    if raw.get("schema") != SCHEMA:
        raise ContractError("schema", raw.get("schema"), SCHEMA)
    for name in ("deployment", "replica", "boot", "sequence", "emitted_at", "gamma"):
        if name not in raw:
            raise ContractError(name, None, "present in the envelope")
    # Stricter than what we send: NUL stops PostgreSQL, and sums of larger numbers its integers.
    for name in ("deployment", "replica", "boot", "fingerprint"):
        text = raw.get(name, "")
        if isinstance(text, str) and not text.isprintable():
            raise ContractError(name, text, "printable characters")
    for name in ("sequence", "lost", "steps_sequence", "steps_lost"):
        _count(name, raw.get(name, 0), COUNT_BITS)
    gamma = raw["gamma"]
    if not isinstance(gamma, int) or isinstance(gamma, bool) or not 1 <= gamma <= MAX_GAMMA:
        raise ContractError("gamma", gamma, f"1 to {MAX_GAMMA} draft positions")
    return VerifyBatch(
        deployment=raw["deployment"],
        fingerprint=raw.get("fingerprint", ""),
        replica=raw["replica"],
        boot=raw["boot"],
        sequence=raw["sequence"],
        lost=raw.get("lost", 0),
        emitted_at=raw["emitted_at"],
        gamma=gamma,
        share=raw.get("share", 1.0),
        steps_sequence=raw.get("steps_sequence", 0),
        steps_lost=raw.get("steps_lost", 0),
        segment_sets=raw.get("segment_sets", False),
        rounds=_rounds(raw.get("rounds"), raw.get("segments"), gamma, packed=packed),
        steps=_steps(raw.get("steps"), packed=packed),
    )


def _rounds(raw: Any, segments: Any, gamma: int, *, packed: bool) -> Rounds | None:
    if raw is None or raw == {}:
        return None
    if not isinstance(raw, dict):
        raise ContractError("rounds", type(raw).__name__, "an object of columns")
    if segments is None:
        segments = []
    if not isinstance(segments, list):
        raise ContractError("segments", segments, "a list of labels")
    columns: dict[str, Any] = {}
    for name in ("logits", "accepted"):
        if name not in raw:
            raise ContractError(f"rounds.{name}", None, "present")
    for name, value in raw.items():
        if name in POSITION_COLUMNS:
            columns[name] = _matrix(name, value, gamma, packed=packed)
        elif name in ROUND_COLUMNS:
            columns[name] = _column(name, value, ROUND_COLUMNS[name], packed=packed)
        # A column of a later release is not an error: readers ignore what they do not know.
    if len(columns["logits"]) == 0:
        return None
    return Rounds.build(**columns, segments=segments)


def _steps(raw: Any, *, packed: bool) -> Steps:
    if raw is None or raw == {}:
        return Steps.empty()
    if not isinstance(raw, dict):
        raise ContractError("steps", type(raw).__name__, "an object of columns")
    return Steps.build(
        **{
            name: _column(f"steps.{name}", value, STEP_COLUMNS[name], packed=packed)
            for name, value in raw.items()
            if name in STEP_COLUMNS
        }
    )


def _column(name: str, value: Any, wire: str, *, packed: bool) -> NDArray[Any]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        if isinstance(value, int) and not -(2**63) <= value < 2**64:
            raise ContractError(name, value, f"a number of type {wire.lstrip('<')}")
        return np.asarray(value)
    if packed:
        return _unpack(name, value, wire)
    if not isinstance(value, list):
        raise ContractError(name, value, "a list, or one number for all rows")
    if not all(isinstance(item, int | float) and not isinstance(item, bool) for item in value):
        bad = next(i for i in value if not isinstance(i, int | float) or isinstance(i, bool))
        raise ContractError(name, bad, "numbers")
    try:
        return np.asarray(value, dtype=np.float64) if np.dtype(wire).kind == "f" else as_numbers(value)
    except (OverflowError, ValueError) as error:
        raise ContractError(name, value, f"numbers of type {wire}") from error


def _matrix(name: str, value: Any, gamma: int, *, packed: bool) -> NDArray[Any]:
    if packed:
        flat = _unpack(name, value, POSITION_COLUMNS[name])
        if flat.size % gamma:
            raise ContractError(name, f"{flat.size} values", f"a multiple of gamma = {gamma}")
        return flat.reshape(-1, gamma)
    if not isinstance(value, list):
        raise ContractError(name, value, "a list of rows")
    allowed = (int, float, type(None)) if name == "accept_probability" else (int, float)
    for row, entries in enumerate(value):
        if not isinstance(entries, list) or len(entries) != gamma:
            raise ContractError(f"{name}: row {row}", entries, f"a list of gamma = {gamma} numbers")
        for position, entry in enumerate(entries, start=1):
            if not isinstance(entry, allowed) or isinstance(entry, bool):
                raise ContractError(f"{name}: row {row}, position {position}", entry, "a number")
    try:
        return np.asarray(value, dtype=np.float64).reshape(-1, gamma)
    except OverflowError as error:
        raise ContractError(name, "a very large int", f"rows of gamma = {gamma} numbers") from error


def _unpack(name: str, value: Any, wire: str) -> NDArray[Any]:
    if not isinstance(value, bytes):
        raise ContractError(name, value, f"packed little-endian {wire.lstrip('<')}")
    size = np.dtype(wire).itemsize
    if len(value) % size:
        raise ContractError(name, f"{len(value)} bytes", f"a multiple of {size} bytes")
    return np.frombuffer(value, dtype=wire)


def _text(name: str, value: Any) -> None:
    if not isinstance(value, str) or not 1 <= len(value) <= 128 or any(ord(c) < 32 for c in value):
        raise ContractError(name, value, "1 to 128 printable characters")


def _count(name: str, value: Any, bits: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**bits:
        raise ContractError(name, value, f"a whole number in [0, 2**{bits})")
