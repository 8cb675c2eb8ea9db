"""Sampling buckets: calibration differs by sampling temperature, so figures are kept for each of four."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

SAMPLING_BUCKETS = ("greedy", "low", "mid", "high")
"""Temperature 0, (0, 0.5], (0.5, 1], above 1."""

_UPPER_EDGES = np.array([0.0, 0.5, 1.0])


def bucket_index(temperature: NDArray[np.floating[Any]]) -> NDArray[np.int64]:
    """Index into :data:`SAMPLING_BUCKETS` of every sampling temperature, as the column of a row has it.

    >>> bucket_index(np.array([0.0, 0.5, 0.7, 1.0, 1.5])).tolist()
    [0, 1, 2, 2, 3]
    """
    return np.searchsorted(_UPPER_EDGES, temperature, side="left").astype(np.int64)
