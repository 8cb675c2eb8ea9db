"""What a calibration belongs to: change any of these and old evidence no longer counts."""

from __future__ import annotations

import hashlib

import msgspec


class EngineIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that decides what a confidence logit means and what a step costs."""

    target: str
    drafter: str
    gamma: int
    engine: str
    target_revision: str = ""
    drafter_revision: str = ""
    engine_version: str = ""
    accelerator: str = ""
    precision: str = ""
    parallelism: str = ""

    def fingerprint(self) -> str:
        """First 32 hexadecimal digits of the SHA-256 of the identity as sorted JSON."""
        body = msgspec.json.encode(msgspec.to_builtins(self), order="sorted")
        return hashlib.sha256(body).hexdigest()[:32]
