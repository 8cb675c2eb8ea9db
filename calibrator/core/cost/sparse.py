"""Integer sums under integer keys: the one shape in which cost telemetry is kept and merged."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


def add_up(keys: Integers, sums: Integers) -> tuple[Integers, Integers]:
    """Add the rows of equal keys; the result is sorted by key.

    Parameters
    ----------
    keys
        Shape ``[rows, key columns]``.
    sums
        Shape ``[rows, sum columns]``.

    >>> keys, sums = add_up(np.array([[2, 1], [1, 1], [2, 1]]), np.array([[1], [10], [100]]))
    >>> keys.tolist(), sums.tolist()
    ([[1, 1], [2, 1]], [[10], [101]])
    """
    if not len(keys):
        return keys, sums
    order = np.lexsort(keys.T[::-1])
    keys, sums = keys[order], sums[order]
    first = np.flatnonzero(np.append(True, (keys[1:] != keys[:-1]).any(axis=1)))
    return keys[first], np.add.reduceat(sums, first, axis=0)


def groups(keys: Integers) -> tuple[Integers, Integers]:
    """Distinct rows in ascending order, shape ``[groups, columns]``, and the group of every row."""
    if not len(keys):
        return keys, np.zeros(0, dtype=np.int64)
    order = np.lexsort(keys.T[::-1])
    ranked = keys[order]
    starts = np.append(True, (ranked[1:] != ranked[:-1]).any(axis=1))
    owner = np.empty(len(keys), dtype=np.int64)
    owner[order] = np.cumsum(starts) - 1
    return ranked[starts], owner
