"""A bounded sample of rows that forgets, merges, and knows its own inclusion probabilities.

Every row gets a priority from a hash of its identity and its arrival time; the sample is the k rows of
smallest priority. The union of two samples, cut to its k smallest, is the sample of the union. Sources:
Cormode, Shkapenyuk, Srivastava, Xu, "Forward decay", ICDE 2009; Cohen, Kaplan, "Summarizing data using
bottom-k sketches", PODC 2007.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrator.core.split import mix, unit_interval

Float = NDArray[np.float64]


def row_uniform(deployment: str, replica: str, boot: str, numbers: ArrayLike) -> Float:
    """Deterministic uniform numbers in (0, 1), one per row number of a replica's boot, shape ``[rows]``.

    The same row gets the same number on every collector and after every redelivery.

    >>> u = row_uniform("prod", "pod-1", "boot-1", [0, 1, 2])
    >>> bool(np.array_equal(u[1:], row_uniform("prod", "pod-1", "boot-1", [1, 2])))
    True
    """
    identity = "\x00".join((deployment, replica, boot)).encode()
    seed = int.from_bytes(hashlib.blake2b(identity, digest_size=8).digest(), "little")
    rows = np.asarray(numbers).astype(np.uint64)
    return unit_interval(mix(mix(rows) ^ np.uint64(seed)))


def priority_key(u: ArrayLike, arrival_seconds: ArrayLike, half_life_seconds: float) -> Float:
    """``log(-log u) - (ln 2 / half_life) * arrival``: smaller stays longer, shape ``[rows]``.

    ``-log u / weight`` with weight ``2 ** (arrival / half_life)``, in logarithms so that decades of
    half-lives do not overflow. Exponential ranks make the k smallest a weighted sample without
    replacement.

    >>> keys = priority_key([0.5, 0.5], [0.0, 60.0], half_life_seconds=60.0)
    >>> round(float(np.exp(keys[0] - keys[1])), 6)
    2.0
    """
    uniform = np.asarray(u, dtype=np.float64)
    arrival = np.asarray(arrival_seconds, dtype=np.float64)
    keys: Float = np.log(-np.log(uniform)) - _rate(half_life_seconds) * arrival
    return keys


def inclusion_probability(
    key_threshold: float, arrival_seconds: ArrayLike, half_life_seconds: float
) -> Float:
    """Probability that a row of this arrival has a key below the threshold, shape ``[rows]``.

    The threshold is the key of the first row that is not in the sample (the k+1-st smallest), which for
    a row in the sample does not depend on its own key; infinity while the sample holds everything.
    Sums over the sample divided by these probabilities are unbiased for sums over all rows.

    >>> inclusion_probability(math.inf, [0.0, 10.0], 60.0)
    array([1., 1.])
    """
    arrival = np.asarray(arrival_seconds, dtype=np.float64)
    exponent = key_threshold + _rate(half_life_seconds) * arrival
    # exp(exponent) beyond e^6 is certainty to double precision.
    probability: Float = -np.expm1(-np.exp(np.minimum(exponent, 6.0)))
    return np.where(exponent >= 6.0, 1.0, probability)


def keep_smallest(keys: ArrayLike, k: int) -> tuple[NDArray[np.int64], float]:
    """Indices of the k smallest keys, ascending by key, and the threshold that goes with them.

    The threshold is the smallest key left out, infinity if none is. Merging samples: concatenate the
    keys, keep the k smallest, and take the smaller of this threshold and those of the parts.

    >>> keep_smallest([3.0, 1.0, 2.0], 2)
    (array([1, 2]), 3.0)
    >>> keep_smallest([3.0], 2)[1]
    inf
    """
    if k < 1:
        raise ValueError(f"k: got {k}, expected at least 1")
    values = np.asarray(keys, dtype=np.float64)
    if len(values) <= k:
        return np.argsort(values, kind="stable"), math.inf
    nearest: NDArray[Any] = np.argpartition(values, k)
    chosen = nearest[:k]
    return chosen[np.argsort(values[chosen], kind="stable")], float(values[nearest[k]])


def _rate(half_life_seconds: float) -> float:
    if not half_life_seconds > 0:
        raise ValueError(f"half_life_seconds: got {half_life_seconds}, expected more than 0")
    return math.log(2.0) / half_life_seconds
