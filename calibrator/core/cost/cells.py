"""Cost cells: what steps of each size took, in integer counts that merge exactly.

A cell is a histogram of seconds under (epoch, quantity, requests, batch tokens, graph tokens, context).
Adding two sets of cells is adding rows of equal keys, on one machine, across collectors and in SQL, so
the median over everything can be had from parts. A plain table ``keys``, ``sums`` is the whole state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrator.core.cost.buckets import (
    BINS_PER_OCTAVE,
    LAST_BIN,
    REQUEST_BITS,
    bin_seconds,
    context_bucket,
    size_bucket,
    time_bin,
)
from calibrator.core.cost.location import locate
from calibrator.core.cost.sparse import add_up, groups
from calibrator.core.windows import UNIT
from serving_adapter.contract import Steps

Integers = NDArray[np.int64]
Float = NDArray[np.float64]
Quantity = Literal["step", "draft", "verify"]

QUANTITIES: tuple[Quantity, ...] = ("step", "draft", "verify")
KEYS = ("epoch", "quantity", "requests", "batch_tokens", "graph_tokens", "context", "bin")
SUMS = ("weight", "weight_squared", "weight_batch_tokens", "weight_requests")
"""Fixed point, in units of 2**-24."""


OLDEST_HALF_LIVES = 400.0
"""Beyond this age all samples weigh alike."""
MAX_WEIGHT = 2.0**18
"""Largest weight of a step: so many of its squares can be added in fixed point."""


@dataclass(frozen=True, slots=True, eq=False)
class CellSummary:
    """Robust figures per group, shape ``[groups]``; ``keys`` has the columns asked for.

    ``seconds`` is the median without outliers, ``spread`` the relative standard deviation,
    ``standard_error`` that of the median, relative; ``batch_tokens`` and ``requests`` are means;
    ``weight`` is recency weight, ``newest`` the last epoch with a sample.
    """

    keys: Integers
    seconds: Float
    spread: Float
    standard_error: Float
    n_eff: Float
    weight: Float
    batch_tokens: Float
    requests: Float
    outliers: Float
    newest: Integers

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(frozen=True, slots=True, eq=False)
class CostCells:
    """Counts of seconds per cell.

    Parameters
    ----------
    keys
        Shape ``[entries, len(KEYS)]``, int64, distinct and sorted. ``epoch`` is whatever whole number
        the caller counts time in; ``bin`` is that of :func:`calibrator.core.cost.buckets.time_bin`.
    sums
        Shape ``[entries, len(SUMS)]``, int64.
    """

    keys: Integers
    sums: Integers

    @classmethod
    def empty(cls) -> Self:
        """Cells of no step."""
        return cls(np.zeros((0, len(KEYS)), dtype=np.int64), np.zeros((0, len(SUMS)), dtype=np.int64))

    @classmethod
    def from_arrays(cls, keys: ArrayLike, sums: ArrayLike) -> Self:
        """Rebuild from rows, in any order and with repeated keys (a database adds, or does not).

        Raises
        ------
        ValueError
            Naming the shape.
        """
        k = np.asarray(keys, dtype=np.int64).reshape(-1, len(KEYS))
        s = np.asarray(sums, dtype=np.int64).reshape(-1, len(SUMS))
        if len(k) != len(s):
            raise ValueError(f"sums: got {len(s)} rows, expected {len(k)} as in keys")
        return cls(*add_up(k, s))

    @classmethod
    def fold(cls, steps: Steps, epoch: ArrayLike, weights: ArrayLike | None = None) -> Self:
        """Count steps.

        Parameters
        ----------
        steps
            Steps without batch tokens or requests, or with no time, are left out.
        epoch
            Whole number, one for all or one per step: the unit of forgetting, such as minutes.
        weights
            Inverse sampling probability of each step, shape ``[steps]``; ones when left out.

        Raises
        ------
        ValueError
            Weights of another shape, or one that is not finite, negative or too large to be summed.

        >>> steps = Steps.build(step_seconds=[0.03, 0.04], batch_tokens=[8, 32], requests=[1, 4])
        >>> len(CostCells.fold(steps, epoch=0))
        2
        """
        columns = {
            "epoch": np.broadcast_to(np.asarray(epoch, dtype=np.int64), (len(steps),)),
            "requests": size_bucket(steps.requests, REQUEST_BITS),
            "batch_tokens": size_bucket(steps.batch_tokens),
            "graph_tokens": steps.graph_tokens.astype(np.int64),
            "context": context_bucket(steps.context_tokens),
        }
        weight = np.ones(len(steps)) if weights is None else np.asarray(weights, dtype=np.float64)
        if weight.shape != (len(steps),):
            raise ValueError(f"weights: got shape {weight.shape}, expected [{len(steps)}]")
        largest = np.maximum(steps.batch_tokens, steps.requests).astype(np.float64)
        wrong = ~((weight >= 0) & (weight <= MAX_WEIGHT)) | (weight * largest > MAX_WEIGHT**2)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise ValueError(
                f"weights: row {row}: got {weight[row]:g}, expected 0 to {MAX_WEIGHT:g}, "
                f"and at most {MAX_WEIGHT**2:g} times its batch tokens or requests"
            )
        sums = np.column_stack(
            [weight, weight**2, weight * steps.batch_tokens, weight * steps.requests]
        ).reshape(-1, len(SUMS))
        parts = []
        known = (steps.batch_tokens > 0) & (steps.requests > 0) & (weight > 0)
        for number, name in enumerate(QUANTITIES):
            seconds = getattr(steps, f"{name}_seconds").astype(np.float64)
            rows = np.flatnonzero(known & (seconds > 0))
            keys = np.empty((len(rows), len(KEYS)), dtype=np.int64)
            for i, key in enumerate(KEYS):
                keys[:, i] = columns[key][rows] if key in columns else number
            keys[:, KEYS.index("bin")] = time_bin(seconds[rows])
            parts.append((keys, np.rint(sums[rows] * UNIT).astype(np.int64)))
        return cls(*add_up(np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])))

    def __add__(self, other: CostCells) -> CostCells:
        return CostCells(
            *add_up(np.concatenate([self.keys, other.keys]), np.concatenate([self.sums, other.sums]))
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CostCells):
            return NotImplemented
        return bool(np.array_equal(self.keys, other.keys) and np.array_equal(self.sums, other.sums))

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self.keys)

    def column(self, name: str) -> Integers:
        """One column of the keys, shape ``[entries]``."""
        column: Integers = self.keys[:, KEYS.index(name)]
        return column

    def since(self, epoch: int) -> CostCells:
        """Only what was counted in ``epoch`` and later."""
        kept = self.column("epoch") >= epoch
        return CostCells(self.keys[kept], self.sums[kept])

    def rescaled(self, before: int, factor: float) -> CostCells:
        """Multiply every time of the epochs before ``before``, to the next bin (1.1 %).

        When a machine has become slower or faster by one factor, the sizes it has not run since keep
        their place on the curve.

        Raises
        ------
        ValueError
            A factor that is not positive.
        """
        if not (np.isfinite(factor) and factor > 0):
            raise ValueError(f"factor: got {factor}, expected a positive ratio")
        keys = self.keys.copy()
        old = self.column("epoch") < before
        shift = round(BINS_PER_OCTAVE * float(np.log2(factor)))
        at = KEYS.index("bin")
        keys[old, at] = np.clip(keys[old, at] + shift, 0, LAST_BIN)
        return CostCells(*add_up(keys, self.sums))

    def only(self, quantity: Quantity, context: int | None = None) -> CostCells:
        """Cells of one quantity and, when given, of one context bucket."""
        kept = self.column("quantity") == QUANTITIES.index(quantity)
        if context is not None:
            kept &= self.column("context") == context
        return CostCells(self.keys[kept], self.sums[kept])

    def contexts(self) -> list[int]:
        """Context buckets with samples, ascending."""
        return [int(c) for c in np.unique(self.column("context"))]

    def recency(self, now: int | None, half_life: float | None) -> Float:
        """``0.5 ** (age / half_life)`` of each entry in epochs, shape ``[entries]``; ones without either."""
        if now is None or half_life is None:
            return np.ones(len(self))
        if not half_life > 0:
            raise ValueError(f"half_life: got {half_life}, expected a positive number of epochs")
        lives = np.maximum(now - self.column("epoch"), 0) / half_life
        # Bounded, so that squares of it do not vanish: old samples are stale, not unmeasured.
        return np.asarray(0.5 ** np.minimum(lives, OLDEST_HALF_LIVES), dtype=np.float64)

    def summary(
        self, by: tuple[str, ...], now: int | None = None, half_life: float | None = None
    ) -> CellSummary:
        """Robust figures per distinct value of the key columns ``by``.

        Parameters
        ----------
        by
            Names from :data:`KEYS`.
        now, half_life
            Epoch to look back from and epochs after which a sample counts half; without them every
            sample counts alike.
        """
        chosen = self.keys[:, [KEYS.index(name) for name in by]]
        distinct, owner = groups(chosen)
        count = len(distinct)
        decay = self.recency(now, half_life)
        weight: Float = self.sums[:, 0] / UNIT * decay
        squared: Float = self.sums[:, 1] / UNIT * decay**2
        at = locate(owner, self.column("bin"), weight, squared, count)
        total = np.bincount(owner, weights=weight, minlength=count).astype(np.float64)
        mean = [
            np.divide(
                np.bincount(owner, weights=self.sums[:, i] / UNIT * decay, minlength=count),
                total,
                out=np.zeros(count),
                where=total > 0,
            )
            for i in (2, 3)
        ]
        newest = np.full(count, np.iinfo(np.int64).min)
        np.maximum.at(newest, owner, self.column("epoch"))
        return CellSummary(
            keys=distinct,
            seconds=bin_seconds(at.median),
            spread=at.spread,
            standard_error=1.2533 * at.spread / np.sqrt(np.maximum(at.n_eff, 1e-12)),
            n_eff=at.n_eff,
            weight=total,
            batch_tokens=mean[0],
            requests=mean[1],
            outliers=at.outliers,
            newest=newest,
        )
