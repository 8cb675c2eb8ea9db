"""Window sums: everything a figure over time needs, in integers that merge exactly.

Real-valued terms are stored in units of 2**-24, so that ``fold(x) + fold(y) == fold(x ++ y)`` and
``a + b == b + a`` hold to the last bit, on one machine, across collectors and in SQL.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from calibrator.core.labels import EndOfSequence, drafted, included, prefix_labels
from serving_adapter.contract import Rounds

WINDOW_BINS = 20
UNIT = 2.0**24
"""Fixed-point units of one: a window holds 2**39 unweighted rounds before an int64 overflows."""

LOG_LOSS_FLOOR = 1e-9

SCALARS = (
    "drafted",  # positions that belong to the traffic
    "verified",  # of these, verified: unweighted labels
    "accepted",  # of these, accepted
    "predicted",  # sum of a_k over verified (fixed point)
    "weight",  # sums over verified rows with a known propensity (fixed point) ...
    "weight_squared",
    "weight_predicted",
    "weight_accepted",
    "brier",
    "log_loss",
)
BIN_SUMS = ("drafted", "weight", "weight_squared", "predicted", "accepted")
"""Per bin of a_k: count of drafted positions, then weighted sums (fixed point) over labelled ones."""


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
        if self.scalars.shape != other.scalars.shape:
            raise ValueError(f"gamma: got {len(other.scalars)}, expected {len(self.scalars)}")
        return WindowSums(self.scalars + other.scalars, self.bins + other.bins)

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
        values = self.scalars[:, SCALARS.index(name)].astype(np.float64)
        return values if name in ("drafted", "verified", "accepted") else values / UNIT

    def bin_sum(self, name: str) -> NDArray[np.float64]:
        """One bin sum in natural units, shape ``[gamma, WINDOW_BINS]``."""
        values = self.bins[:, BIN_SUMS.index(name)].astype(np.float64)
        return values if name == "drafted" else values / UNIT


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
    """
    gamma = rounds.gamma
    if predicted.shape != (len(rounds), gamma):
        raise ValueError(f"predicted: got shape {predicted.shape}, expected {(len(rounds), gamma)}")
    if clip is not None and clip < 1:
        raise ValueError(f"clip: got {clip}, expected at least 1")
    scalars = np.zeros((count, gamma, len(SCALARS)), dtype=np.int64)
    bins = np.zeros((count, gamma, len(BIN_SUMS), WINDOW_BINS), dtype=np.int64)
    for start in range(0, len(rounds), _CHUNK_ROWS):
        part = slice(start, start + _CHUNK_ROWS)
        chunk = _Chunk(rounds.take(part), None if cells is None else cells[part], end_of_sequence, clip)
        for k in range(1, gamma + 1):
            chunk.add_position(k, np.ascontiguousarray(predicted[part, k - 1]), scalars, bins)
    return [WindowSums(scalars[i], bins[i]) for i in range(count)]


# Rows whose temporary arrays fit a core's cache together.
_CHUNK_ROWS = 8192


class _Chunk:
    """A few thousand rows, folded one position at a time.

    Nearly every labelled row has weight 1: its sums are counts and sums of integers below 2**29, which
    ``bincount`` adds in float64 without rounding. Rows seen by exploration alone have large weights; they
    are few, and are added in int64.
    """

    def __init__(
        self,
        rounds: Rounds,
        cells: NDArray[np.int64] | None,
        end_of_sequence: EndOfSequence,
        clip: float | None,
    ) -> None:
        self.rounds = rounds
        self.cells = np.zeros(len(rounds), dtype=np.int64) if cells is None else cells
        self.single = cells is None
        self.first_bin = self.cells * WINDOW_BINS
        self.inside = drafted(rounds, end_of_sequence)
        self.labelled = included(rounds, end_of_sequence)
        self.accepted = prefix_labels(rounds).astype(np.bool_)
        explore = rounds.explore.astype(np.float64)
        with np.errstate(divide="ignore"):
            weight = np.where(explore > 0, 1.0 / explore, 0.0)
        self.weight = weight if clip is None else np.minimum(weight, clip)

    def add_position(
        self, k: int, p: NDArray[np.float64], scalars: NDArray[np.int64], bins: NDArray[np.int64]
    ) -> None:
        """Add the sums of draft position ``k`` with predictions ``p``, shape ``[rows]``, in place."""
        inside = np.ascontiguousarray(self.inside[:, k - 1])
        labelled = np.ascontiguousarray(self.labelled[:, k - 1])
        accepted = labelled & self.accepted[:, k - 1]
        plain = labelled & (self.rounds.scheduled >= k)
        explored = np.flatnonzero(labelled & ~plain)
        rejected = np.flatnonzero(plain & ~accepted)
        bounded = np.clip(p, LOG_LOSS_FLOOR, 1.0 - LOG_LOSS_FLOOR)
        loss = np.log(bounded)
        loss[rejected] = np.log1p(-bounded[rejected])
        index = self.first_bin + np.minimum((p * WINDOW_BINS).astype(np.int64), WINDOW_BINS - 1)
        predicted = np.rint(p * UNIT)

        # Each row counts as drafted only, as plain and rejected, or as plain and accepted.
        state = inside.astype(np.int64) + plain + (plain & accepted)
        count = len(scalars)
        states = np.bincount(4 * index + state, minlength=4 * count * WINDOW_BINS)
        by_state = states.reshape(count, WINDOW_BINS, 4).transpose(2, 0, 1)
        one = int(UNIT)
        into = bins[:, k - 1]
        into[:, 0] += by_state[1] + by_state[2] + by_state[3]
        weights = (by_state[2] + by_state[3]) * one
        into[:, 1] += weights
        into[:, 2] += weights
        predicted_sums = np.bincount(index, weights=predicted * plain, minlength=count * WINDOW_BINS)
        into[:, 3] += predicted_sums.reshape(count, WINDOW_BINS).astype(np.int64)
        into[:, 4] += by_state[3] * one

        brier = np.rint((p - accepted) ** 2 * UNIT)
        log_loss = np.rint(loss * -UNIT)
        total = scalars[:, k - 1].T
        total[0] += (by_state[1] + by_state[2] + by_state[3]).sum(axis=1)
        total[1] += (by_state[2] + by_state[3]).sum(axis=1)
        total[2] += by_state[3].sum(axis=1)
        total[3] += self._per_cell(predicted * plain, count)
        total[4] += weights.sum(axis=1)
        total[5] += weights.sum(axis=1)
        total[6] += self._per_cell(predicted * plain, count)
        total[7] += by_state[3].sum(axis=1) * one
        total[8] += self._per_cell(brier * plain, count)
        total[9] += self._per_cell(log_loss * plain, count)
        if len(explored):
            self._add_explored(explored, index[explored], p[explored], accepted[explored], total, into)

    def _per_cell(self, values: NDArray[np.float64], count: int) -> NDArray[np.int64]:
        if self.single:
            return np.array([values.sum()]).astype(np.int64)
        return np.bincount(self.cells, weights=values, minlength=count).astype(np.int64)

    def _add_explored(
        self,
        rows: NDArray[np.int64],
        index: NDArray[np.int64],
        p: NDArray[np.float64],
        accepted: NDArray[np.bool_],
        total: NDArray[np.int64],
        into: NDArray[np.int64],
    ) -> None:
        cell, b = np.divmod(index, WINDOW_BINS)
        w = self.weight[rows]
        bounded = np.clip(p, LOG_LOSS_FLOOR, 1.0 - LOG_LOSS_FLOOR)
        loss = -np.where(accepted, np.log(bounded), np.log1p(-bounded))
        np.add.at(total[1], cell, 1)
        np.add.at(total[2], cell, accepted)
        np.add.at(total[3], cell, _fixed(p))
        terms = (w, w**2, w * p, w * accepted, w * (p - accepted) ** 2, w * loss)
        for i, term in enumerate(terms):
            np.add.at(total[4 + i], cell, _fixed(term))
            if i < len(BIN_SUMS) - 1:
                np.add.at(into[:, 1 + i], (cell, b), _fixed(term))


def _fixed(term: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.rint(term * UNIT).astype(np.int64)
