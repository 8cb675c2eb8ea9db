"""Evidence of drift as integers that add up: what a collector stores per deployment, segment and position.

A bet on one row multiplies an e-process by ``1 + stake * (A - a - tolerance)``. Its logarithm is additive,
so evidence of any set of rows is a sum, whatever their order, and sums of disjoint sets of rows add: over
batches, partitions, collectors and machines, in int64, in SQL. Restarts and alarms need one reader of the
growing totals (:mod:`calibrator.core.drift.watch`); nothing else needs any coordination.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrator.core.drift.rules import PROCESSES, STAKES, DriftRules
from calibrator.core.labels import EndOfSequence, drafted_length
from calibrator.core.windows import UNIT
from serving_adapter.contract import Rounds

Float = NDArray[np.float64]
Integers = NDArray[np.int64]

LEVELS = 1024
"""Predictions are rounded to this many levels, each side of a bet in the direction that makes it weaker."""

COLUMNS = (
    "verified",  # labelled rows
    "gap",  # sum of prediction (middle of its level) less label over them (fixed point)
    "drafted",  # rows of the traffic
    "acceptance",  # sum of the label where verified, of its expectation where not (fixed point)
    *(f"above_{i}" for i in range(len(STAKES))),  # log evidence that labels lie above (fixed point)
    *(f"below_{i}" for i in range(len(STAKES))),
)
_EVIDENCE = slice(COLUMNS.index("above_0"), len(COLUMNS))


@dataclass(frozen=True, slots=True, eq=False)
class DriftSums:
    """Additive sums per draft position, int64, shape ``[gamma, len(COLUMNS)]``, units of 2**-24.

    >>> rounds = Rounds.build([[0.0]] * 3, [1, 1, 0])
    >>> total = DriftSums.fold(rounds, np.full((3, 1), 0.5))
    >>> parts = [DriftSums.fold(rounds.take(slice(i, i + 1)), np.full((1, 1), 0.5)) for i in (2, 0, 1)]
    >>> parts[0] + parts[1] + parts[2] == total, total.gap.round(2)
    (True, array([-0.17]))
    """

    values: Integers

    @classmethod
    def zeros(cls, gamma: int) -> Self:
        """Sums of nothing."""
        return cls(np.zeros((gamma, len(COLUMNS)), dtype=np.int64))

    @classmethod
    def fold(
        cls,
        rounds: Rounds,
        predicted: Float,
        rules: DriftRules | None = None,
        end_of_sequence: EndOfSequence = "draft_stop",
    ) -> DriftSums:
        """Sum rows; parameters as for :func:`fold_drift`."""
        return fold_drift(rounds, predicted, None, 1, rules, end_of_sequence)[0]

    def __add__(self, other: DriftSums) -> DriftSums:
        if self.values.shape != other.values.shape:
            raise ValueError(f"gamma: got {other.gamma}, expected {self.gamma}")
        return DriftSums(self.values + other.values)

    def __sub__(self, other: DriftSums) -> DriftSums:
        """What was added since an earlier reading of the same totals."""
        return self + DriftSums(-other.values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DriftSums):
            return NotImplemented
        return bool(np.array_equal(self.values, other.values))

    __hash__ = None  # type: ignore[assignment]

    @property
    def gamma(self) -> int:
        """Number of draft positions."""
        return int(self.values.shape[0])

    @property
    def verified(self) -> Integers:
        """Labelled rows, shape ``[gamma]``."""
        return self.values[:, 0]

    @property
    def drafted(self) -> Integers:
        """Rows of the traffic, shape ``[gamma]``."""
        return self.values[:, 2]

    @property
    def gap(self) -> Float:
        """Mean prediction less mean label over verified rows, shape ``[gamma]``; 0 without any."""
        return _mean(self.values[:, 1], self.verified)

    @property
    def acceptance(self) -> Float:
        """Mean label, its expectation where it was not verified, shape ``[gamma]``; 0 without rows."""
        return _mean(self.values[:, 3], self.drafted)

    @property
    def evidence(self) -> Float:
        """Log evidence of calibration drift, shape ``[gamma, PROCESSES]``."""
        return self.values[:, _EVIDENCE] / UNIT

    def acceptance_evidence(self, reference: ArrayLike, tolerance: ArrayLike) -> Float:
        """Log evidence that acceptance lies above or below its reference, ``[gamma, PROCESSES]``.

        Parameters
        ----------
        reference
            Acceptance of every position when it was as it should be, shape ``[gamma]``; NaN: none known.
        tolerance
            Distance from it that is no drift, one for all or shape ``[gamma]``.

        Notes
        -----
        ``exp(stake * (sum - n * (reference + tolerance)) - n * stake**2 / 8)`` is a product of e-values of
        variables in [0, 1] (Hoeffding 1963), a function of two sums: the reference need not be known
        where rows are folded. The expectations that stand in where nothing was verified
        (:func:`calibrator.core.imputation.imputed_labels`) rest on predictions that are themselves watched
        against every label there is; an acceptance over verified rows alone would follow the load.
        """
        n = self.drafted.astype(np.float64)[:, None]
        total = (self.values[:, 3] / UNIT)[:, None]
        level = np.asarray(reference, dtype=np.float64)[:, None]
        margin = np.asarray(tolerance, dtype=np.float64).reshape(-1, 1)
        stakes = 2.0 * np.array(STAKES)  # the variance bound is 1/4: stakes as for twice the distance
        charge = n * stakes**2 / 8.0
        above = stakes * (total - n * (level + margin)) - charge
        below = stakes * (n * (level - margin) - total) - charge
        evidence = np.concatenate([above, below], axis=1)
        return np.where(np.isfinite(evidence), evidence, 0.0)


def fold_drift(
    rounds: Rounds,
    predicted: Float,
    cells: Integers | None,
    count: int,
    rules: DriftRules | None = None,
    end_of_sequence: EndOfSequence = "draft_stop",
) -> list[DriftSums]:
    """Sum rows into ``count`` sets of sums at once.

    Only verified rows bear evidence of calibration drift: whether a row is verified was settled before its
    outcome, so the bets stay fair under truncation.

    Parameters
    ----------
    rounds
        The rows.
    predicted
        Prefix survival ``a_k`` by the parameters in force for each row, shape ``[rows, gamma]``.
    cells
        Which set each row belongs to, shape ``[rows]``; None: all to the first.
    count
        Number of sets.
    rules
        ``tolerance`` is used.
    end_of_sequence
        See :func:`calibrator.core.labels.drafted`.
    """
    if predicted.shape != rounds.logits.shape:
        raise ValueError(f"predicted: got shape {predicted.shape}, expected {rounds.logits.shape}")
    counts = np.zeros((count, rounds.gamma, 3 * LEVELS), dtype=np.int64)
    values = np.zeros((count, rounds.gamma, len(COLUMNS)), dtype=np.int64)
    for start in range(0, len(rounds), _CHUNK_ROWS):
        part = slice(start, start + _CHUNK_ROWS)
        owner = None if cells is None or count == 1 else cells[part]
        _add_chunk(rounds.take(part), predicted[part], owner, end_of_sequence, counts, values)
    bets = counts[:, :, LEVELS:]
    rejected, accepted = bets[:, :, :LEVELS], bets[:, :, LEVELS:]
    middle = (2 * np.arange(LEVELS) + 1) * int(UNIT) // (2 * LEVELS)
    values[:, :, 0] = bets.sum(axis=2)
    values[:, :, 1] = (rejected + accepted) @ middle - accepted.sum(axis=2) * int(UNIT)
    values[:, :, 3] += accepted.sum(axis=2) * int(UNIT)
    values[:, :, _EVIDENCE] = bets @ _fixed_table((rules or DriftRules()).tolerance)
    return [DriftSums(each) for each in values]


# Rows whose temporary arrays fit a core's cache together.
_CHUNK_ROWS = 16384


def _add_chunk(
    rounds: Rounds,
    predicted: Float,
    owner: Integers | None,
    end_of_sequence: EndOfSequence,
    counts: Integers,
    values: Integers,
) -> None:
    """Count rows by prediction level and by state: no label, rejected, accepted. In place.

    One position after another, in the narrowest integers that hold it: a collector does this for every row.
    """
    count = len(counts)
    size = count * 3 * LEVELS
    narrow: type[np.signedinteger[Any]] = np.int32 if size < 2**31 else np.int64
    first = None if owner is None else (owner * (3 * LEVELS)).astype(narrow)
    ends = drafted_length(rounds, end_of_sequence)
    whole = bool((ends >= rounds.gamma).all())
    rows = len(rounds) if owner is None else np.bincount(owner, minlength=count)
    for k in range(rounds.gamma):
        code: NDArray[Any] = (predicted[:, k] * LEVELS).astype(narrow)
        if code.max() >= LEVELS:
            np.minimum(code, LEVELS - 1, out=code)
        seen = rounds.verified > k
        if not whole:
            seen &= ends > k
        state = seen.view(np.uint8) + (seen & (rounds.resolved_accepted > k)).view(np.uint8)
        code += np.multiply(state, LEVELS, dtype=narrow)
        if first is not None:
            code += first
        counts[:, k] += np.bincount(code, minlength=size).reshape(count, -1)
        if whole:
            values[:, k, 2] += rows
        elif owner is None:
            values[0, k, 2] += np.count_nonzero(ends > k)
        else:
            values[:, k, 2] += np.bincount(owner[ends > k], minlength=count)
    _add_expected(rounds, predicted, owner, ends, values)


def _add_expected(
    rounds: Rounds, predicted: Float, owner: Integers | None, ends: Integers, values: Integers
) -> None:
    """Add the expected label behind a verified part that was accepted as a whole. In place.

    ``a_k / a_v`` of :func:`calibrator.core.imputation.imputed_labels`; behind a rejection it is 0.
    """
    verified = rounds.verified
    trimmed = np.flatnonzero((verified < np.minimum(ends, rounds.gamma)) & (rounds.accepted == verified))
    if not len(trimmed):
        return
    length, ends = verified[trimmed], ends[trimmed]
    last = np.where(length > 0, predicted[trimmed, np.maximum(length, 1) - 1], 1.0)
    last[last <= 0.0] = np.inf  # nothing is expected behind what cannot be accepted
    mine = None if owner is None else owner[trimmed]
    for k in range(rounds.gamma):
        fixed = predicted[trimmed, k] / last
        fixed *= UNIT
        np.rint(fixed, out=fixed)
        fixed *= (length <= k) & (ends > k)
        if mine is None:
            values[0, k, 3] += int(fixed.sum())
        else:
            values[:, k, 3] += np.bincount(mine, weights=fixed, minlength=len(values)).astype(np.int64)


def bet_index(predicted: ArrayLike, labels: ArrayLike) -> Integers:
    """Row of :func:`bet_table` for every prediction and label.

    >>> bet_index([0.0, 1.0], [0, 1]).tolist() == [0, 2 * LEVELS - 1]
    True
    """
    level = np.minimum((np.asarray(predicted, dtype=np.float64) * LEVELS).astype(np.int64), LEVELS - 1)
    index: Integers = level + LEVELS * (np.asarray(labels) > 0)
    return index


def bet_table(tolerance: float) -> Float:
    """Log of every bet's return by prediction level and label, shape ``[2 * LEVELS, PROCESSES]``.

    Bets that labels lie above take the upper end of the level, bets that they lie below the lower end, so
    that rounding makes evidence weaker, never stronger.

    >>> bet_table(0.0).shape == (2 * LEVELS, PROCESSES)
    True
    """
    return _fixed_table(tolerance) / UNIT


@cache
def _fixed_table(tolerance: float) -> Integers:
    level = np.tile(np.arange(LEVELS), 2)
    label = np.repeat([0.0, 1.0], LEVELS)
    stakes = np.array(STAKES)
    above = (label - (level + 1) / LEVELS - tolerance)[:, None] * stakes
    below = (level / LEVELS - label - tolerance)[:, None] * stakes
    returns = np.log1p(np.concatenate([above, below], axis=1))
    table: Integers = np.floor(returns * UNIT).astype(np.int64)
    table.flags.writeable = False
    return table


def _mean(total: Integers, rows: Integers) -> Float:
    mean: Float = np.divide(total / UNIT, rows, out=np.zeros(len(rows)), where=rows > 0)
    return mean


assert len(COLUMNS) == 4 + PROCESSES
