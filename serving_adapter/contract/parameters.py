"""Parameter documents: what the calibrator publishes and every replica applies (Redis)."""

from __future__ import annotations

import hashlib
import hmac
import math
import re
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec

from serving_adapter.contract.errors import ContractError
from serving_adapter.contract.parameter_set import Form, check_set
from serving_adapter.contract.rounds import MAX_GAMMA
from serving_adapter.contract.segments import SegmentParameters, check_segments

SCHEMA = "dspark.parameters.v1"
MAX_DOCUMENT_BYTES = 256 * 1024

COST_STATUSES = ("measured", "extrapolated", "flat", "unsupported", "stale")


class CostCurve(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Seconds of one engine step by batch tokens, strictly increasing in size, never falling in time.

    ``status`` has one entry per size: ``measured``, ``extrapolated``, ``flat``, ``unsupported`` or
    ``stale``; only measured sizes may be trusted to trim. ``sps`` is ``1 / seconds``.
    """

    batch_tokens: list[int]
    seconds: list[float]
    status: list[str] = []
    sps: list[float] = []
    interpolation: Literal["floor", "linear"] = "linear"

    def __post_init__(self) -> None:
        if not self.batch_tokens or len(self.batch_tokens) != len(self.seconds):
            raise ContractError(
                "cost.seconds", f"{len(self.seconds)} values", f"one per size ({len(self.batch_tokens)})"
            )
        if any(b <= a for a, b in zip(self.batch_tokens, self.batch_tokens[1:], strict=False)):
            raise ContractError("cost.batch_tokens", self.batch_tokens, "strictly increasing sizes")
        for size in (self.batch_tokens[0], self.batch_tokens[-1]):
            if not 1 <= size < 2**32:
                raise ContractError("cost.batch_tokens", size, "in [1, 2**32)")
        for value in self.seconds:
            if not (math.isfinite(value) and value > 0):
                raise ContractError("cost.seconds", value, "a positive finite number of seconds")
        if any(b < a for a, b in zip(self.seconds, self.seconds[1:], strict=False)):
            raise ContractError("cost.seconds", self.seconds, "non-decreasing times")
        for name in ("status", "sps"):
            given = getattr(self, name)
            if given and len(given) != len(self.batch_tokens):
                raise ContractError(f"cost.{name}", f"{len(given)} values", "one per size")
        for status in self.status:
            if status not in COST_STATUSES:
                raise ContractError("cost.status", status, f"one of {', '.join(COST_STATUSES)}")
        for value in self.sps:
            if not (math.isfinite(value) and value > 0):
                raise ContractError("cost.sps", value, "a positive finite number of steps per second")


class Evidence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why this set was published: per position, on rows that the fit has not seen."""

    window: str = ""
    rounds: int = 0
    n_eff: list[float | None] = []
    ece_before: list[float | None] = []
    ece_after: list[float | None] = []
    noise_floor: list[float | None] = []
    status: list[str] = []
    reasons: list[str] = []


class ParameterDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A versioned set of parameters. Validates itself; see docs/contracts.md.

    ``c_k = sigmoid(z_k / temperatures[k] + offsets[k])``; ``offsets`` are zeros in the temperature form.
    ``segments`` are sets that go before this one where they fit (:mod:`serving_adapter.contract.segments`).
    ``created_at`` is RFC 3339 in UTC. ``digest`` is SHA-256 over the canonical document, ``signature``
    HMAC-SHA256 over the same bytes.
    """

    deployment: str
    fingerprint: str
    version: int
    gamma: int
    form: Form
    temperatures: list[float]
    offsets: list[float]
    created_at: str
    schema: str = SCHEMA
    previous: int = 0
    cost: CostCurve | None = None
    explore: float = 0.0
    share: float = 1.0
    evidence: Evidence | None = None
    segments: list[SegmentParameters] = []
    digest: str = ""
    signature: str = ""

    def __post_init__(self) -> None:
        if self.schema != SCHEMA:
            raise ContractError("schema", self.schema, SCHEMA)
        if not 1 <= len(self.deployment) <= 128 or any(ord(c) < 33 or c in "{}" for c in self.deployment):
            raise ContractError("deployment", self.deployment, "1 to 128 printable characters, no braces")
        if len(self.fingerprint) > 128 or any(ord(c) < 32 for c in self.fingerprint):
            raise ContractError("fingerprint", self.fingerprint, "at most 128 printable characters")
        _check_time(self.created_at)
        if not 1 <= self.gamma <= MAX_GAMMA:
            raise ContractError("gamma", self.gamma, f"1 to {MAX_GAMMA} draft positions")
        if not 1 <= self.version < 2**32:
            raise ContractError("version", self.version, "in [1, 2**32)")
        if not 0 <= self.previous < self.version:
            raise ContractError("previous", self.previous, f"below version = {self.version}")
        check_set(self.form, self.temperatures, self.offsets, self.gamma)
        check_segments(self.segments, self.gamma)
        if not (math.isfinite(self.explore) and 0 <= self.explore <= 1):
            raise ContractError("explore", self.explore, "a probability in [0, 1]")
        if not (math.isfinite(self.share) and 0 < self.share <= 1):
            raise ContractError("share", self.share, "in (0, 1]")


def canonical(document: ParameterDocument) -> bytes:
    """Render the bytes that digest and signature cover: JSON with sorted keys, both fields left out."""
    fields = _fields(document)
    fields.pop("digest", None)
    fields.pop("signature", None)
    return msgspec.json.encode(fields, order="sorted")


def seal(document: ParameterDocument, key: bytes | None = None) -> ParameterDocument:
    """Return the document with its digest and, when a key is given, its signature."""
    # Through JSON once, so that 1 and 1.0 in a list of numbers have one canonical form.
    document = msgspec.json.decode(msgspec.json.encode(document), type=ParameterDocument)
    body = canonical(document)
    digest = hashlib.sha256(body).hexdigest()
    signature = hmac.new(key, body, hashlib.sha256).hexdigest() if key else ""
    return msgspec.structs.replace(document, digest=digest, signature=signature)


def encode_document(document: ParameterDocument) -> bytes:
    """Encode as JSON, readable by an operator."""
    return msgspec.json.format(msgspec.json.encode(_fields(document)), indent=1)


def decode_document(payload: bytes, key: bytes | None = None) -> ParameterDocument:
    """Decode, validate and verify a document.

    Parameters
    ----------
    payload
        JSON as written by :func:`encode_document`.
    key
        HMAC key. When given, an unsigned or wrongly signed document is refused.

    Raises
    ------
    ContractError
        Naming field and value; a document that fails any check is refused as a whole.
    """
    if len(payload) > MAX_DOCUMENT_BYTES:
        raise ContractError("document", f"{len(payload)} bytes", f"at most {MAX_DOCUMENT_BYTES} bytes")
    try:
        document = msgspec.json.decode(payload, type=ParameterDocument)
    except ContractError:
        raise
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, ContractError):
            raise error.__cause__ from None
        raise _as_contract_error(error, payload) from error
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ContractError("document", payload[:40], f"JSON ({error})") from error
    body = canonical(document)
    # As bytes: compare_digest raises TypeError for text outside ASCII.
    if not hmac.compare_digest(hashlib.sha256(body).hexdigest().encode(), document.digest.encode()):
        raise ContractError("digest", document.digest, "the SHA-256 of the canonical document")
    if key is not None:
        expected = hmac.new(key, body, hashlib.sha256).hexdigest()
        if not document.signature:
            raise ContractError("signature", "", "a signature, since a key is configured")
        if not hmac.compare_digest(expected.encode(), document.signature.encode()):
            raise ContractError("signature", document.signature, "a signature by the configured key")
    return document


def _fields(document: ParameterDocument) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(document)
    if not document.segments:
        # A document without sets per segment is what it was before there were any, to the byte.
        del fields["segments"]
    return fields


def _check_time(value: str) -> None:
    try:
        offset = datetime.fromisoformat(value).utcoffset()
    except ValueError:
        offset = None
    if offset != timedelta(0):
        raise ContractError("created_at", value, "a time in UTC such as 2026-11-29T10:00:00Z")


def _as_contract_error(error: msgspec.ValidationError, payload: bytes) -> ContractError:
    """Name the field where msgspec found the wrong type, and the value that it found there.

    msgspec's messages end in a path: "Expected `int`, got `str` - at `$.cost.batch_tokens[2]`".
    """
    complaint, _, path = str(error).partition(" - at `$")
    steps = re.findall(r"[^.\[\]`]+", path)
    missing = re.fullmatch(r"Object missing required field `(.*)`", complaint)
    if missing is not None:
        return ContractError(".".join([*steps, missing[1]]), None, "present")
    field = re.sub(r"^\.|`$", "", path) or "document"
    try:
        value = msgspec.json.decode(payload)
        for step in steps:
            value = value[int(step)] if isinstance(value, list) else value[step]
    except (msgspec.DecodeError, LookupError, TypeError, ValueError, RecursionError):
        value = payload[:40]
    if complaint.startswith("Invalid enum value"):
        expected = "one of the words that docs/contracts.md lists"
    elif "out of range" in complaint:
        expected = "a number of ordinary size"
    else:
        expected = complaint.replace("Expected ", "", 1).partition(", got ")[0].replace("`", "")
    return ContractError(field, value, expected)
