"""What one engine step costs, as schedulers look it up: seconds by batch tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from serving_adapter.contract import ContractError, CostCurve

Float = NDArray[np.float64]
Mask = NDArray[np.bool_]
Interpolation = Literal["floor", "linear"]


@dataclass(frozen=True, slots=True, eq=False)
class StepCost:
    """Seconds of one step by batch tokens ``B``, from measured sizes only.

    Below the first size the first time holds. Beyond the last one the last marginal cost goes on; that
    is a prediction, and :meth:`measured` says so: a scheduler may not trim because of it.

    Parameters
    ----------
    batch_tokens
        Measured sizes, shape ``[sizes]``, strictly increasing, at least 1.
    at_sizes
        Seconds at these sizes, shape ``[sizes]``, positive, never falling.
    interpolation
        ``floor`` takes the time of the largest size that is not above ``B`` (sizes that pad),
        ``linear`` goes straight from size to size.
    clamped
        Beyond the last size its time holds, as in the tables of engines that look up so.

    Raises
    ------
    ContractError
        Naming the column that is wrong.

    >>> cost = StepCost([1, 3], [0.1, 0.3])
    >>> cost.seconds([1, 2, 3, 4]).round(3)
    array([0.1, 0.2, 0.3, 0.4])
    >>> cost.measured([3, 4])
    array([ True, False])
    """

    batch_tokens: Any
    at_sizes: Any
    interpolation: Interpolation = "linear"
    clamped: bool = False

    def __post_init__(self) -> None:
        sizes = np.array(self.batch_tokens, dtype=np.int64).reshape(-1)
        seconds = np.array(self.at_sizes, dtype=np.float64).reshape(-1)
        # The contract's own rules, stated once.
        CostCurve(batch_tokens=sizes.tolist(), seconds=seconds.tolist(), interpolation=self.interpolation)
        if self.interpolation not in ("floor", "linear"):
            raise ContractError("cost.interpolation", self.interpolation, "floor or linear")
        object.__setattr__(self, "batch_tokens", sizes)
        object.__setattr__(self, "at_sizes", seconds)

    @classmethod
    def from_curve(cls, curve: CostCurve | None) -> StepCost | None:
        """Read a published curve; None when it holds nothing that was measured.

        Sizes of any other status (``extrapolated``, ``flat``, ``unsupported``, ``stale``) are left
        out. A curve without statuses was measured throughout.
        """
        if curve is None:
            return None
        kept = [
            i
            for i, status in enumerate(curve.status or ["measured"] * len(curve.seconds))
            if status == "measured"
        ]
        if not kept:
            return None
        return cls(
            [curve.batch_tokens[i] for i in kept], [curve.seconds[i] for i in kept], curve.interpolation
        )

    @property
    def measured_to(self) -> int:
        """The largest measured size, in batch tokens."""
        return int(self.batch_tokens[-1])

    @property
    def last_marginal(self) -> float:
        """Seconds per token beyond the last size: the slope to the last size that was cheaper."""
        cheaper = np.flatnonzero(self.at_sizes < self.at_sizes[-1])
        if self.clamped or cheaper.size == 0:
            return 0.0
        i = cheaper[-1]
        rise = self.at_sizes[-1] - self.at_sizes[i]
        return float(rise / (self.batch_tokens[-1] - self.batch_tokens[i]))

    def measured(self, batch_tokens: ArrayLike) -> Mask:
        """Whether a size lies within what was measured (below the first size counts: it is no dearer)."""
        inside: Mask = np.asarray(batch_tokens) <= self.measured_to
        return inside

    def seconds(self, batch_tokens: ArrayLike) -> Float:
        """Seconds of a step of that many batch tokens, in the shape of ``batch_tokens``."""
        tokens = np.asarray(batch_tokens, dtype=np.float64)
        if self.interpolation == "linear":
            inside = np.interp(tokens, self.batch_tokens, self.at_sizes)
        else:
            index = np.searchsorted(self.batch_tokens, tokens, side="right") - 1
            inside = self.at_sizes[np.maximum(index, 0)]
        beyond = np.maximum(tokens - self.measured_to, 0.0)
        total: Float = inside + beyond * self.last_marginal
        return total
