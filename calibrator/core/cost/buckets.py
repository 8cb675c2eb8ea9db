"""Fixed buckets, the same everywhere and for ever, so that counts from anywhere can be added."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Integers = NDArray[np.int64]
Float = NDArray[np.float64]

TOKEN_BITS = 5
"""Batch tokens: exact up to 63, then 32 buckets an octave (3 % wide or less)."""

REQUEST_BITS = 4
"""Requests: exact up to 31, then 16 buckets an octave."""

BINS_PER_OCTAVE = 64
"""Of step seconds: a bin is 1.1 % wide, and quantiles are interpolated inside it."""

SMALLEST_OCTAVE, LARGEST_OCTAVE = -20, 10
"""Step seconds from 2**-20 (1 microsecond) to 2**10 (17 minutes); what lies outside is clamped."""

LAST_BIN = (LARGEST_OCTAVE - SMALLEST_OCTAVE) * BINS_PER_OCTAVE - 1

SHORTEST_CONTEXT = 256


def size_bucket(sizes: ArrayLike, bits: int = TOKEN_BITS) -> Integers:
    """Smallest size of the bucket that each size falls in.

    >>> size_bucket([0, 1, 63, 64, 65, 129]).tolist()
    [0, 1, 63, 64, 64, 128]
    """
    values = np.asarray(sizes, dtype=np.int64)
    width = np.maximum(np.frexp(values.astype(np.float64))[1].astype(np.int64) - 1 - bits, 0)
    return (values >> width) << width


def within_bucket(sizes: ArrayLike, buckets: ArrayLike, bits: int) -> Integers:
    """Whole sizes nearest to ``sizes`` that lie in their ``buckets``.

    A mean over weights so small that fixed point rounds them can leave its bucket, and then sizes would not
    rise from bucket to bucket.

    >>> within_bucket([65.4, 140.0], [64, 66], 5).tolist()
    [65, 67]
    """
    first = np.asarray(buckets, dtype=np.int64)
    width = np.maximum(np.frexp(first.astype(np.float64))[1].astype(np.int64) - 1 - bits, 0)
    nearest = np.rint(np.asarray(sizes, dtype=np.float64)).astype(np.int64)
    return np.clip(nearest, first, first + (np.int64(1) << width) - 1)


def context_bucket(context_tokens: ArrayLike) -> Integers:
    """Mean context length as the power of two at or below it, at least 256; 0 where it is not known.

    >>> context_bucket([0, 17, 3000]).tolist()
    [0, 256, 2048]
    """
    tokens = np.asarray(context_tokens, dtype=np.float64)
    octave = np.frexp(np.maximum(tokens, SHORTEST_CONTEXT))[1].astype(np.int64) - 1
    return np.where(tokens > 0, np.int64(1) << octave, 0)


def load_regime(requests: ArrayLike) -> Integers:
    """Requests in the batch as the power of four at or below them.

    >>> load_regime([1, 3, 4, 100]).tolist()
    [1, 1, 4, 64]
    """
    octave = np.frexp(np.maximum(np.asarray(requests, dtype=np.float64), 1.0))[1].astype(np.int64) - 1
    return np.asarray(np.int64(1) << (octave - octave % 2), dtype=np.int64)


def time_bin(seconds: ArrayLike) -> Integers:
    """Bin of each positive time."""
    octaves = np.log2(np.asarray(seconds, dtype=np.float64)) - SMALLEST_OCTAVE
    bins: Integers = np.clip(np.floor(octaves * BINS_PER_OCTAVE), 0, LAST_BIN).astype(np.int64)
    return bins


def bin_seconds(position: ArrayLike) -> Float:
    """Time at a position on the axis of bins: bin ``b`` reaches from ``b`` to ``b + 1``."""
    octaves = np.asarray(position, dtype=np.float64) / BINS_PER_OCTAVE + SMALLEST_OCTAVE
    return np.asarray(np.exp2(octaves), dtype=np.float64)
