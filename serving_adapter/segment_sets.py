"""Sets per segment and sampling bucket as an engine applies them: a lookup per batch, no loop over rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from serving_adapter.contract import ParameterDocument, Rounds, bucket_index
from serving_adapter.contract.segments import set_indices
from serving_adapter.segment_labels import DEFAULT_LABEL, OTHER


class SegmentSets:
    """All sets of a document, stacked, and which of them serves a row.

    Parameters
    ----------
    document
        With sets per segment.
    labels
        Segment labels in the order of the indices that rows carry. The list may grow while this is in
        use, as an engine meets new segments; it is bounded (:mod:`serving_adapter.segment_labels`).
    """

    def __init__(self, document: ParameterDocument, labels: Sequence[str]) -> None:
        self._entries, self._labels = tuple(document.segments), labels
        self.temperatures = np.array(
            [document.temperatures, *(entry.temperatures for entry in document.segments)], dtype=np.float64
        )
        self.offsets = np.array(
            [document.offsets, *(entry.offsets for entry in document.segments)], dtype=np.float64
        )
        for array in (self.temperatures, self.offsets):
            array.setflags(write=False)
        self._table = set_indices(self._entries, labels)

    def __len__(self) -> int:
        """Count the sets, the pooled one not among them."""
        return len(self._entries)

    def index(self, segment: ArrayLike, sampling: ArrayLike) -> NDArray[np.int64]:
        """Index of the set of every row: 0 the pooled one, i + 1 the document's entry i.

        Parameters
        ----------
        segment
            Index of the label, ``[rows]`` or one for all.
        sampling
            Sampling temperature, ``[rows]`` or one for all. Rounded to half precision first, because that
            is what a row carries and what its figures are kept by.
        """
        if len(self._labels) != len(self._table):
            self._table = set_indices(self._entries, self._labels)
        return _look_up(self._table, segment, sampling)

    def rows(
        self, segment: ArrayLike, sampling: ArrayLike
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Temperatures and offsets of every row, ``[rows, gamma]`` each, or ``[gamma]`` for single values."""
        index = self.index(segment, sampling)
        return self.temperatures[index], self.offsets[index]

    def rows_of(self, rounds: Rounds) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Temperatures and offsets for rows that bring their own dictionary, ``[rows, gamma]`` each."""
        labels = (*(rounds.segments or (DEFAULT_LABEL,)), OTHER)
        table = set_indices(self._entries, labels)
        index = _look_up(table, np.minimum(rounds.segment, len(labels) - 1), rounds.sampling)
        return self.temperatures[index], self.offsets[index]


def _look_up(table: NDArray[np.int64], segment: ArrayLike, sampling: ArrayLike) -> NDArray[np.int64]:
    with np.errstate(over="ignore"):
        bucket = bucket_index(np.asarray(sampling, dtype=np.float16))
    found: NDArray[np.int64] = table[np.asarray(segment, dtype=np.intp), bucket]
    return found
