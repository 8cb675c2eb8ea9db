"""The engine's own record of every row, kept apart from everything it is held against.

Two bytes a round, appended before the round is handed to ``observe``: how many positions carry a label
(verified, and not behind a stop token in the draft), and how many of these were accepted. Any set of row
numbers can be added up from it, so that rows that were lost in the ring are left out exactly.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

NO_STOP = 255


class RowWriter:
    """Appends rows; what was written is kept however the process ends."""

    def __init__(self, path: Path, gamma: int) -> None:
        self._file = path.open("ab", buffering=0)
        self._gamma = gamma

    def write(self, verified: NDArray[Any], accepted: NDArray[Any], draft_stop: NDArray[Any]) -> None:
        """Append the rounds of one step."""
        stop = np.where(draft_stop == NO_STOP, self._gamma, draft_stop.astype(np.int64) + 1)
        labelled = np.minimum(verified, stop)
        rows = np.stack([labelled, np.minimum(accepted, labelled)], axis=1)
        self._file.write(rows.astype(np.uint8).tobytes())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def read_rows(path: Path, count: int) -> NDArray[np.uint8]:
    """The first ``count`` rows, ``[count, 2]``; those of a step that came to nothing are left out."""
    rows = np.fromfile(path, dtype=np.uint8).reshape(-1, 2)
    assert len(rows) >= count, f"{path}: {len(rows)} rows recorded, {count} emitted"
    return rows[:count]


def sums(
    rows: NDArray[np.uint8], without: Iterable[tuple[int, int]], gamma: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Labels and accepted prefixes per position, ``[gamma]`` each, of all rows outside ``without``."""
    kept = np.ones(len(rows), dtype=np.bool_)
    for start, stop in without:
        kept[start:stop] = False
    k = np.arange(1, gamma + 1)
    labels, accepted = ((rows[kept, column, None] >= k).sum(axis=0, dtype=np.int64) for column in (0, 1))
    return labels, accepted
