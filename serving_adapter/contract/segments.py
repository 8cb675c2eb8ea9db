"""Sets per segment and sampling bucket: what a document may carry, and which set a row is served by.

The most specific entry wins::

    (segment, bucket)  >  (segment, any bucket)  >  (any segment, bucket)  >  the pooled set
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from serving_adapter.contract.errors import ContractError
from serving_adapter.contract.parameter_set import Form, check_set
from serving_adapter.contract.sampling import SAMPLING_BUCKETS

ANY = "*"
"""Stands for every segment, or every sampling bucket."""
MAX_SEGMENT_SETS = 64
POOLED = 0
"""Index of the pooled set; entry ``i`` of a document has index ``i + 1``."""


class SegmentParameters(msgspec.Struct, frozen=True, kw_only=True):
    """The set of one segment, one sampling bucket, or one bucket within a segment.

    ``segment`` is a label or ``*``, ``sampling`` a bucket or ``*``, not both ``*``: that is the pooled set.
    """

    segment: str
    sampling: Literal["*", "greedy", "low", "mid", "high"]
    form: Form
    temperatures: list[float]
    offsets: list[float]


def check_segments(entries: Sequence[SegmentParameters], gamma: int) -> None:
    """Check the entries of one document, each as strictly as the pooled set.

    Raises
    ------
    ContractError
        Naming entry, field and value.
    """
    if len(entries) > MAX_SEGMENT_SETS:
        raise ContractError("segments", f"{len(entries)} sets", f"at most {MAX_SEGMENT_SETS}")
    seen: set[tuple[str, str]] = set()
    for i, entry in enumerate(entries):
        where, key = f"segments[{i}].", (entry.segment, entry.sampling)
        if not 1 <= len(entry.segment) <= 128 or not entry.segment.isprintable():
            raise ContractError(f"{where}segment", entry.segment, "1 to 128 printable characters")
        if key == (ANY, ANY):
            raise ContractError(f"{where}segment", ANY, "a segment or a sampling bucket; the rest is pooled")
        if key in seen:
            raise ContractError(f"{where}segment", "/".join(key), "one set for each segment and bucket")
        seen.add(key)
        check_set(entry.form, entry.temperatures, entry.offsets, gamma, where)


def set_indices(entries: Sequence[SegmentParameters], labels: Sequence[str]) -> NDArray[np.int64]:
    """Which set serves the rows of each label in each sampling bucket, shape ``[labels, 4]``.

    >>> here = dict(form="temperature", temperatures=[2.0], offsets=[0.0])
    >>> entries = [SegmentParameters(segment="code", sampling="*", **here),
    ...            SegmentParameters(segment="*", sampling="high", **here)]
    >>> set_indices(entries, ["chat", "code"]).tolist()
    [[0, 0, 0, 2], [1, 1, 1, 1]]
    """
    index = {(entry.segment, entry.sampling): i for i, entry in enumerate(entries, start=1)}
    found = np.zeros((len(labels), len(SAMPLING_BUCKETS)), dtype=np.int64)
    if not index:
        return found
    for row, label in enumerate(labels):
        for column, bucket in enumerate(SAMPLING_BUCKETS):
            for key in ((label, bucket), (label, ANY), (ANY, bucket)):
                if key in index:
                    found[row, column] = index[key]
                    break
    return found
