"""Deterministic held-out split by request: rows of one request stay together."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scatter 64-bit integers: the finaliser of SplitMix64, a bijection.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.

    >>> int(mix(np.array([1], dtype=np.uint64))[0]) == int(mix(np.array([1], dtype=np.uint64))[0])
    True
    """
    x = np.asarray(values, dtype=np.uint64) + _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


def unit_interval(values: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Map 64-bit hashes to (0, 1), both ends open, with 53 bits."""
    return ((values >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def held_out(request: NDArray[np.unsignedinteger], fraction: float = 0.5, salt: int = 0) -> NDArray[np.bool_]:
    """Rows that judge and never fit, shape ``[rows]``: all rows of about ``fraction`` of the requests.

    Parameters
    ----------
    request
        Request hashes, shape ``[rows]``.
    fraction
        Expected share of requests held out, in [0, 1]. A larger fraction holds out a superset.
    salt
        Another salt, another split.

    >>> request = np.repeat(np.arange(1000, dtype=np.uint64), 3)
    >>> judge = held_out(request, 0.3)
    >>> bool((judge.reshape(-1, 3).all(axis=1) == judge.reshape(-1, 3).any(axis=1)).all())
    True
    >>> bool(0.25 < judge.mean() < 0.35)
    True
    """
    if not 0.0 <= fraction <= 1.0:
        raise ValueError(f"fraction: got {fraction}, expected a share in [0, 1]")
    salted = mix(np.asarray(request, dtype=np.uint64)) ^ mix(np.array([salt % 2**64], dtype=np.uint64))
    chosen: NDArray[np.bool_] = unit_interval(mix(salted)) < fraction
    return chosen


def folds(request: NDArray[np.unsignedinteger], count: int, salt: int = 0) -> NDArray[np.int64]:
    """Fold 0..count-1 of every row, shape ``[rows]``: rows of one request share a fold.

    >>> np.unique(folds(np.arange(100, dtype=np.uint64), 5)).tolist()
    [0, 1, 2, 3, 4]
    """
    if count < 2:
        raise ValueError(f"folds: got {count}, expected at least 2")
    salted = mix(np.asarray(request, dtype=np.uint64)) ^ mix(np.array([salt % 2**64], dtype=np.uint64))
    return np.minimum((unit_interval(mix(salted)) * count).astype(np.int64), count - 1)
