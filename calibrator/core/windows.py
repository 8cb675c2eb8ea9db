"""Window sums: everything a figure over time needs, in integers that merge exactly.

Real-valued terms are stored in units of 2**-24 (squared weights: 2**-8), so that
``fold(x) + fold(y) == fold(x ++ y)`` and ``a + b == b + a`` hold to the last bit, on one machine, across
collectors and in SQL.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from calibrator.core.accumulator import Accumulator
from calibrator.core.labels import EndOfSequence
from calibrator.core.sums import (
    BIN_SUMS,
    LOG_LOSS_FLOOR,
    SCALARS,
    UNIT,
    WINDOW_BINS,
    SumsOverflowError,
    bin_unit,
    scalar_unit,
)
from serving_adapter.contract import Rounds

__all__ = [
    "BIN_SUMS",
    "LOG_LOSS_FLOOR",
    "SCALARS",
    "UNIT",
    "WINDOW_BINS",
    "SumsOverflowError",
    "WindowSums",
    "fold",
    "fold_cells",
]


@dataclass(frozen=True, slots=True, eq=False)
class WindowSums:
    """Additive sums per draft position.

    ``scalars`` has shape ``[gamma, len(SCALARS)]`` and ``bins`` ``[gamma, len(BIN_SUMS), WINDOW_BINS]``,
    both int64.
    """

    scalars: NDArray[np.int64]
    bins: NDArray[np.int64]

    @classmethod
    def zeros(cls, gamma: int) -> Self:
        """Sums of nothing."""
        return cls(
            np.zeros((gamma, len(SCALARS)), dtype=np.int64),
            np.zeros((gamma, len(BIN_SUMS), WINDOW_BINS), dtype=np.int64),
        )

    def __add__(self, other: WindowSums) -> WindowSums:
        """Add up.

        Raises
        ------
        ValueError
            Of another gamma.
        SumsOverflowError
            More than the integers hold.
        """
        if self.scalars.shape != other.scalars.shape:
            raise ValueError(f"gamma: got {len(other.scalars)}, expected {len(self.scalars)}")
        scalars, bins = self.scalars + other.scalars, self.bins + other.bins
        # Neither side is negative, so that a sum beyond the integers is. Every bin is part of a scalar.
        if (scalars < 0).any():
            raise SumsOverflowError("window sums: got more than an int64 holds, expected smaller weights")
        return WindowSums(scalars, bins)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WindowSums):
            return NotImplemented
        return bool(np.array_equal(self.scalars, other.scalars) and np.array_equal(self.bins, other.bins))

    __hash__ = None  # type: ignore[assignment]

    @property
    def gamma(self) -> int:
        """Number of draft positions."""
        return int(self.scalars.shape[0])

    def scalar(self, name: str) -> NDArray[np.float64]:
        """One scalar per position in natural units, shape ``[gamma]``."""
        return self.scalars[:, SCALARS.index(name)].astype(np.float64) / scalar_unit(name)

    def bin_sum(self, name: str) -> NDArray[np.float64]:
        """One bin sum in natural units, shape ``[gamma, WINDOW_BINS]``."""
        return self.bins[:, BIN_SUMS.index(name)].astype(np.float64) / bin_unit(name)


def fold(
    rounds: Rounds,
    predicted: NDArray[np.float64],
    end_of_sequence: EndOfSequence = "draft_stop",
    clip: float | None = 1000.0,
) -> WindowSums:
    """Sum rows into one window.

    Parameters
    ----------
    rounds
        Verified rounds, gamma positions.
    predicted
        Predicted prefix survival ``a_k`` under the parameters of interest, shape ``[rows, gamma]``.
    end_of_sequence
        See :func:`calibrator.core.labels.drafted`.
    clip
        Largest inclusion weight, at least 1.

    >>> rounds, predicted = Rounds.build([[0.0, 0.0]] * 3, [0, 1, 2]), np.full((3, 2), 0.5)
    >>> whole = fold(rounds, predicted)
    >>> whole.scalar("accepted"), whole.scalar("brier")
    (array([2., 1.]), array([0.75, 0.75]))
    >>> fold(rounds.take(slice(0, 1)), predicted[:1]) + fold(rounds.take(slice(1, 3)), predicted[1:]) == whole
    True
    """
    return fold_cells(rounds, predicted, None, 1, end_of_sequence, clip)[0]


def fold_cells(
    rounds: Rounds,
    predicted: NDArray[np.float64],
    cells: NDArray[np.int64] | None,
    count: int,
    end_of_sequence: EndOfSequence = "draft_stop",
    clip: float | None = 1000.0,
) -> list[WindowSums]:
    """Sum rows into ``count`` windows at once.

    Parameters
    ----------
    rounds, predicted, end_of_sequence, clip
        As for :func:`fold`. ``predicted`` may be the transpose of a ``[gamma, rows]`` array, which is
        faster.
    cells
        Which window each row belongs to, shape ``[rows]``, values below ``count``; None: all to the first.
    count
        Number of windows.

    Returns
    -------
    One set of sums per window: what :func:`fold` gives for its rows.

    Raises
    ------
    SumsOverflowError
        Weights too large for their number: with ``clip`` at its default never below six million explored
        labels.
    """
    gamma = rounds.gamma
    if predicted.shape != (len(rounds), gamma):
        raise ValueError(f"predicted: got shape {predicted.shape}, expected {(len(rounds), gamma)}")
    if clip is not None and clip < 1:
        raise ValueError(f"clip: got {clip}, expected at least 1")
    accumulator = Accumulator(gamma, count)
    for start in range(0, len(rounds), _CHUNK_ROWS):
        part = slice(start, start + _CHUNK_ROWS)
        chunk = rounds.take(part)
        accumulator.add(chunk, predicted[part], None if cells is None else cells[part], end_of_sequence, clip)
    scalars, bins = accumulator.sums()
    return [WindowSums(scalars[i], bins[i]) for i in range(count)]


# Rows whose temporary arrays fit a core's cache together.
_CHUNK_ROWS = 8192
