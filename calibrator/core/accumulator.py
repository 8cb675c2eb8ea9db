"""The inner loop of a fold: thousands of rows at a time, one draft position after another."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from calibrator.core.labels import EndOfSequence, drafted, included, prefix_labels
from calibrator.core.sums import (
    BIN_SUMS,
    LARGEST_SUM,
    LOG_LOSS_FLOOR,
    SCALARS,
    SQUARED_UNIT,
    UNIT,
    WINDOW_BINS,
    SumsOverflowError,
)
from serving_adapter.contract import Rounds

Float = NDArray[np.float64]
Int = NDArray[np.int64]

# A row at a position is one of: not drafted; drafted only; labelled and rejected; labelled and accepted.
_STATES = 4


class Accumulator:
    """Integer sums of rows by cell, position and bin.

    Nearly every labelled row has weight 1: its sums are counts, and sums of integers below 2**29, which
    ``bincount`` adds in float64 without rounding. Rows that exploration alone verified have large weights;
    they are few, and are added in int64 (:class:`_Explored`).

    Parameters
    ----------
    gamma
        Draft positions.
    count
        Cells.

    >>> accumulator, cells = Accumulator(gamma=1, count=2), np.array([0, 0, 1])
    >>> rounds = Rounds.build([[0.0]] * 3, [1, 0, 1])
    >>> accumulator.add(rounds, np.full((3, 1), 0.5), cells, "draft_stop", clip=None)
    >>> accumulator.sums()[0][:, 0, SCALARS.index("accepted")]
    array([1, 1])
    """

    def __init__(self, gamma: int, count: int) -> None:
        self._gamma = gamma
        self._count = count
        self._states = np.zeros((gamma, count * WINDOW_BINS * _STATES), dtype=np.int64)
        self._predicted = np.zeros((gamma, count * WINDOW_BINS), dtype=np.int64)
        self._brier = np.zeros((gamma, count), dtype=np.int64)
        self._log_loss = np.zeros((gamma, count), dtype=np.int64)
        self._explored = _Explored(gamma, count)

    def add(
        self,
        rounds: Rounds,
        predicted: Float,
        cells: Int | None,
        end_of_sequence: EndOfSequence,
        clip: float | None,
    ) -> None:
        """Add a few thousand rows (see :func:`calibrator.core.windows.fold_cells`)."""
        inside = drafted(rounds, end_of_sequence)
        labelled = included(rounds, end_of_sequence)
        labels = prefix_labels(rounds).astype(np.bool_)
        first_bin = None if cells is None else cells * WINDOW_BINS
        for k in range(self._gamma):
            p = np.ascontiguousarray(predicted[:, k])
            seen = np.ascontiguousarray(labelled[:, k])
            accepted = seen & labels[:, k]
            plain = seen & (rounds.scheduled > k)
            index = np.minimum((p * WINDOW_BINS).astype(np.int64), WINDOW_BINS - 1)
            if first_bin is not None:
                index += first_bin
            if not np.array_equal(plain, seen):
                rows = np.flatnonzero(seen & ~plain)
                self._explored.add(k, index[rows], p[rows], accepted[rows], _weight(rounds, rows, clip))
            self._add_plain(k, p, inside[:, k], plain, accepted & plain, index, cells)

    def sums(self) -> tuple[Int, Int]:
        """``[count, gamma, scalars]`` and ``[count, gamma, bin sums, bins]`` of everything added."""
        one, one_squared = int(UNIT), int(SQUARED_UNIT)
        shape = (self._gamma, self._count, WINDOW_BINS)
        states = self._states.reshape(*shape, _STATES).swapaxes(0, 1)
        accepted = states[..., 3]
        plain = states[..., 2] + accepted
        inside = states[..., 1] + plain
        predicted = self._predicted.reshape(shape).swapaxes(0, 1)
        bins = np.stack([inside, plain * one, plain * one_squared, predicted, accepted * one], axis=2)
        per_position = {
            "drafted": inside.sum(axis=2),
            "verified": plain.sum(axis=2),
            "accepted": accepted.sum(axis=2),
            "predicted": predicted.sum(axis=2),
            "weight": plain.sum(axis=2) * one,
            "weight_squared": plain.sum(axis=2) * one_squared,
            "weight_predicted": predicted.sum(axis=2),
            "weight_accepted": accepted.sum(axis=2) * one,
            "brier": self._brier.T,
            "log_loss": self._log_loss.T,
        }
        scalars = np.stack([per_position[name] for name in SCALARS], axis=2)
        self._explored.add_to(scalars, bins)
        return scalars, bins

    def _add_plain(
        self,
        k: int,
        p: Float,
        inside: NDArray[np.bool_],
        plain: NDArray[np.bool_],
        accepted: NDArray[np.bool_],
        index: Int,
        cells: Int | None,
    ) -> None:
        bounded = np.clip(p, LOG_LOSS_FLOOR, 1.0 - LOG_LOSS_FLOOR)
        loss = np.log(bounded)
        rejected = np.flatnonzero(plain & ~accepted)
        loss[rejected] = np.log1p(-bounded[rejected])
        fixed = np.rint(p * UNIT)
        fixed *= plain
        self._predicted[k] += _bincount(index, fixed, self._predicted.shape[1])
        for into, term in ((self._brier[k], (p - accepted) ** 2), (self._log_loss[k], -loss)):
            term *= UNIT
            np.rint(term, out=term)
            term *= plain
            into += int(term.sum()) if cells is None else _bincount(cells, term, self._count)
        index *= _STATES
        index += inside.view(np.int8) + plain.view(np.int8) + accepted.view(np.int8)
        self._states[k] += np.bincount(index, minlength=self._states.shape[1])


class _Explored:
    """Rows behind ``scheduled``: weight 1 / e, or 0 where they were verified for no known reason."""

    def __init__(self, gamma: int, count: int) -> None:
        self._scalars = np.zeros((count, gamma, len(SCALARS)), dtype=np.int64)
        self._bins = np.zeros((count, gamma, len(BIN_SUMS), WINDOW_BINS), dtype=np.int64)
        self._held: list[tuple[Int, Int, Float, NDArray[np.bool_], Float]] = []
        self._rows = 0
        self._total = 0.0  # of the largest terms, all cells and positions together

    def add(self, k: int, index: Int, p: Float, accepted: NDArray[np.bool_], weight: Float) -> None:
        self._held.append((np.full(len(index), k), index, p, accepted, weight))
        self._rows += len(index)
        if self._rows > 1 << 16:
            self._flush()

    def add_to(self, scalars: Int, bins: Int) -> None:
        self._flush()
        scalars += self._scalars
        bins += self._bins

    def _flush(self) -> None:
        if not self._held:
            return
        position, index, p, accepted, w = (np.concatenate(part) for part in zip(*self._held, strict=True))
        cell, b = np.divmod(index, WINDOW_BINS)
        bounded = np.clip(p, LOG_LOSS_FLOOR, 1.0 - LOG_LOSS_FLOOR)
        loss = -np.where(accepted, np.log(bounded), np.log1p(-bounded))
        counts = (np.ones(len(p), dtype=np.int64), accepted.astype(np.int64), _fixed(p))
        terms = [w * UNIT, w**2 * SQUARED_UNIT]
        terms += [t * UNIT for t in (w * p, w * accepted, w * (p - accepted) ** 2, w * loss)]
        # No sum is larger than this one; half the room is left for the unweighted rows.
        self._total += float(np.max(terms, axis=0).sum())
        if self._total > LARGEST_SUM / 2:
            raise SumsOverflowError(
                f"explore: got {len(w)} rows of weights up to {w.max():g} = 1 / explore at once, "
                "expected fewer, or a larger exploration probability: their sums exceed an int64"
            )
        weighted = [np.rint(term).astype(np.int64) for term in terms]
        for i, term in enumerate((*counts, *weighted), start=1):  # all but "drafted", counted with the rest
            np.add.at(self._scalars[:, :, i], (cell, position), term)
        for i, term in enumerate(weighted[:4], start=1):
            np.add.at(self._bins[:, :, i], (cell, position, b), term)
        self._held.clear()
        self._rows = 0


def _weight(rounds: Rounds, rows: Int, clip: float | None) -> Float:
    explore = rounds.explore[rows].astype(np.float64)
    weight = np.divide(1.0, explore, out=np.zeros_like(explore), where=explore > 0)
    return weight if clip is None else np.minimum(weight, clip)


def _bincount(index: Int, values: Float, length: int) -> Int:
    return np.bincount(index, weights=values, minlength=length).astype(np.int64)


def _fixed(term: Float) -> Int:
    return np.rint(term * UNIT).astype(np.int64)
