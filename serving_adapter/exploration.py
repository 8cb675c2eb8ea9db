"""Which rounds are verified in full, and which requests are reported: decided by a hash.

The decision depends on deployment, request, step and salt alone. So every tensor-parallel rank decides
alike without asking, a restart changes nothing, and no draft token has a say, which lossless decoding
requires. All arithmetic is on unsigned 64-bit integers modulo 2**64: the same on every platform.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

Requests = NDArray[np.uint64]
Decisions = NDArray[np.bool_]

_MASK = (1 << 64) - 1
# Increment and multipliers of SplitMix64 (Steele, Lea and Flood 2014).
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
# Keeps the share independent of exploration: the same request is hashed into another stream.
_SHARE_STREAM = 0x5348415245


def request_hash(request: bytes | str | int, salt: str = "") -> int:
    """Salted 64-bit hash of a request id; the id itself never leaves the pod.

    >>> request_hash("request-1", "salt") == request_hash(b"request-1", "salt")
    True
    """
    if isinstance(request, int):
        body = b"i" + request.to_bytes(16, "little", signed=True)
    else:
        body = b"t" + (request.encode("utf-8", "surrogatepass") if isinstance(request, str) else request)
    return int.from_bytes(hashlib.blake2b(body, digest_size=8, key=_key(salt)).digest(), "little")


@functools.lru_cache(maxsize=16)
def _key(salt: str) -> bytes:
    return hashlib.blake2b(salt.encode(), digest_size=32).digest()


def exploration_seed(deployment: str, salt: str = "") -> int:
    """Seed of a deployment's exploration."""
    body = f"{len(deployment)}:{deployment}{salt}".encode()
    return int.from_bytes(hashlib.blake2b(body, digest_size=8, person=b"explore").digest(), "little")


def explores(seed: int, request: int, step: int, probability: float) -> bool:
    """Whether one round is verified in full.

    Parameters
    ----------
    seed
        From :func:`exploration_seed`.
    request
        Hash of the request, 64 bits.
    step
        Round number within the request.
    probability
        Exploration probability in force.
    """
    threshold = _threshold(probability)
    return _mix(_mix((request ^ seed) & _MASK) + step * _GOLDEN) < threshold


def explores_each(seed: int, request: Any, step: Any, probability: float) -> Decisions:
    """Decide for many rounds at once: ``request`` and ``step`` of shape ``[rows]`` (or one number each)."""
    hashed = _mix_each(_mix_each(_unsigned(request) ^ np.uint64(seed)) + _unsigned(step) * np.uint64(_GOLDEN))
    return _below(hashed, _threshold(probability))


def emits(request: int, share: float) -> bool:
    """Whether a replica reports the rounds of this request: all of them or none."""
    return _mix((request ^ _SHARE_STREAM) & _MASK) < _threshold(share)


def emits_each(request: Any, share: float) -> Decisions:
    """Apply :func:`emits` to request hashes of shape ``[rows]``."""
    return _below(_mix_each(_unsigned(request) ^ np.uint64(_SHARE_STREAM)), _threshold(share))


def _threshold(probability: float) -> int:
    # Exact: a float times a power of two is not rounded.
    return int(min(max(probability, 0.0), 1.0) * 2.0**64)


def _mix(value: int) -> int:
    value = (value + _GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * _FIRST) & _MASK
    value = ((value ^ (value >> 27)) * _SECOND) & _MASK
    return value ^ (value >> 31)


def _mix_each(values: Requests) -> Requests:
    values = values + np.uint64(_GOLDEN)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(_FIRST)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(_SECOND)
    return values ^ (values >> np.uint64(31))


def _unsigned(value: Any) -> Requests:
    # At least one dimension: arrays wrap silently, NumPy's scalars would warn.
    if isinstance(value, np.ndarray):
        return np.atleast_1d(value.astype(np.uint64, copy=False))
    return np.atleast_1d(np.asarray(value, dtype=np.uint64))


def _below(hashed: Requests, threshold: int) -> Decisions:
    if threshold > _MASK:
        return np.ones(hashed.shape, dtype=np.bool_)
    return hashed < np.uint64(threshold)
