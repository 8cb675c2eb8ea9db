"""What a published document predicts for rows: the set that served each, pooled or of its segment."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from calibrator.core.survival import survival
from serving_adapter.contract import ParameterDocument, Rounds, SegmentParameters, bucket_index
from serving_adapter.contract.segments import POOLED, set_indices

Float = NDArray[np.float64]
UNKNOWN_LABEL = "other"
"""What a segment index outside the dictionary counts as; see :meth:`Rounds.segment_names`."""


def set_of_rows(entries: Sequence[SegmentParameters], rounds: Rounds) -> NDArray[np.int64]:
    """Index of the set that serves each row: 0 the pooled one, i + 1 entry i. Shape ``[rows]``."""
    labels = rounds.segments or ("default",)
    table = set_indices(entries, (*labels, UNKNOWN_LABEL))
    found: NDArray[np.int64] = table[np.minimum(rounds.segment, len(labels)), bucket_index(rounds.sampling)]
    return found


def survival_by_sets(
    pooled: Float,
    entries: Sequence[SegmentParameters],
    rounds: Rounds,
    segment_sets: NDArray[np.bool_] | None,
) -> Float:
    """Predicted survival where ``pooled`` serves what no entry does; shape ``[rows, gamma]``.

    ``pooled`` is overwritten and returned.
    """
    which = set_of_rows(entries, rounds)
    if segment_sets is not None:
        which = np.where(segment_sets, which, POOLED)
    for index in np.unique(which).tolist():
        if index == POOLED:
            continue
        entry, mine = entries[index - 1], which == index
        pooled[mine] = survival(rounds.logits[mine], entry.temperatures, entry.offsets)
    return pooled


def document_survival(
    document: ParameterDocument, rounds: Rounds, segment_sets: NDArray[np.bool_] | None = None
) -> Float:
    """Predicted prefix survival ``a_k`` of rows served under a document.

    Parameters
    ----------
    document
        With or without sets per segment.
    rounds
        The rows.
    segment_sets
        Rows of engines that apply sets per segment, shape ``[rows]``; the pooled set served the others.
        None: all of them do.

    Returns
    -------
    Shape ``[rows, gamma]``, as :func:`calibrator.core.survival.survival` has it.

    >>> document = ParameterDocument(
    ...     deployment="d", fingerprint="", version=1, gamma=1, form="affine", temperatures=[1.0],
    ...     offsets=[0.0], created_at="2026-11-29T10:00:00Z",
    ...     segments=[SegmentParameters(segment="code", sampling="*", form="affine", temperatures=[1.0],
    ...                                 offsets=[2.0])])
    >>> rounds = Rounds.build([[0.0]] * 2, [1, 1], segment=[0, 1], segments=("chat", "code"))
    >>> document_survival(document, rounds).round(2).ravel().tolist()
    [0.5, 0.88]
    >>> document_survival(document, rounds, np.array([True, False])).ravel().tolist()
    [0.5, 0.5]
    """
    predicted = survival(rounds.logits, document.temperatures, document.offsets)
    if not document.segments or (segment_sets is not None and not segment_sets.any()):
        return predicted
    return survival_by_sets(predicted, document.segments, rounds, segment_sets)
