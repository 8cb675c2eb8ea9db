"""Parameter documents: what the calibrator publishes and every replica applies (Redis)."""

from __future__ import annotations

import hashlib
import hmac
import math
from typing import Any, Literal

import msgspec

from serving_adapter.contract.errors import ContractError
from serving_adapter.contract.rounds import MAX_GAMMA

SCHEMA = "dspark.parameters.v1"
MAX_DOCUMENT_BYTES = 256 * 1024

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.01, 100.0
MAX_OFFSET = 30.0

Form = Literal["temperature", "affine"]
FORMS: tuple[Form, ...] = ("temperature", "affine")


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
        if self.batch_tokens[0] < 1:
            raise ContractError("cost.batch_tokens", self.batch_tokens[0], "at least 1")
        for value in self.seconds:
            if not (math.isfinite(value) and value > 0):
                raise ContractError("cost.seconds", value, "a positive finite number of seconds")
        if any(b < a for a, b in zip(self.seconds, self.seconds[1:], strict=False)):
            raise ContractError("cost.seconds", self.seconds, "non-decreasing times")
        for name in ("status", "sps"):
            given = getattr(self, name)
            if given and len(given) != len(self.batch_tokens):
                raise ContractError(f"cost.{name}", f"{len(given)} values", "one per size")


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
    digest: str = ""
    signature: str = ""

    def __post_init__(self) -> None:
        if self.schema != SCHEMA:
            raise ContractError("schema", self.schema, SCHEMA)
        if not 1 <= len(self.deployment) <= 128 or any(ord(c) < 33 or c in "{}" for c in self.deployment):
            raise ContractError("deployment", self.deployment, "1 to 128 printable characters, no braces")
        if len(self.fingerprint) > 128:
            raise ContractError("fingerprint", self.fingerprint, "at most 128 characters")
        if not 1 <= self.gamma <= MAX_GAMMA:
            raise ContractError("gamma", self.gamma, f"1 to {MAX_GAMMA} draft positions")
        if not 1 <= self.version < 2**32:
            raise ContractError("version", self.version, "in [1, 2**32)")
        if not 0 <= self.previous < self.version:
            raise ContractError("previous", self.previous, f"below version = {self.version}")
        for name in ("temperatures", "offsets"):
            if len(getattr(self, name)) != self.gamma:
                raise ContractError(
                    name, f"{len(getattr(self, name))} values", f"one per position, gamma = {self.gamma}"
                )
        for k, t in enumerate(self.temperatures, start=1):
            if not (math.isfinite(t) and MIN_TEMPERATURE <= t <= MAX_TEMPERATURE):
                raise ContractError(
                    f"temperatures: position {k}", t, f"in [{MIN_TEMPERATURE}, {MAX_TEMPERATURE}]"
                )
        for k, b in enumerate(self.offsets, start=1):
            if not (math.isfinite(b) and abs(b) <= MAX_OFFSET):
                raise ContractError(f"offsets: position {k}", b, f"in [-{MAX_OFFSET}, {MAX_OFFSET}]")
            if self.form == "temperature" and b != 0.0:
                raise ContractError(f"offsets: position {k}", b, "0 in the temperature form")
        if not (math.isfinite(self.explore) and 0 <= self.explore <= 1):
            raise ContractError("explore", self.explore, "a probability in [0, 1]")
        if not (math.isfinite(self.share) and 0 < self.share <= 1):
            raise ContractError("share", self.share, "in (0, 1]")


def canonical(document: ParameterDocument) -> bytes:
    """Render the bytes that digest and signature cover: JSON with sorted keys, both fields left out."""
    fields: dict[str, Any] = msgspec.to_builtins(document)
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
    return msgspec.json.format(msgspec.json.encode(document), indent=1)


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
        cause = error.__cause__
        if isinstance(cause, ContractError):
            raise cause from None
        raise ContractError("document", payload[:40], f"a parameter document ({error})") from error
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ContractError("document", payload[:40], f"JSON ({error})") from error
    body = canonical(document)
    if not hmac.compare_digest(hashlib.sha256(body).hexdigest(), document.digest):
        raise ContractError("digest", document.digest, "the SHA-256 of the canonical document")
    if key is not None:
        expected = hmac.new(key, body, hashlib.sha256).hexdigest()
        if not document.signature:
            raise ContractError("signature", "", "a signature, since a key is configured")
        if not hmac.compare_digest(expected, document.signature):
            raise ContractError("signature", document.signature, "a signature by the configured key")
    return document
