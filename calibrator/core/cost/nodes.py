"""The sizes a curve is drawn through: one per padding tier, one per size where nothing pads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from calibrator.core.cost.buckets import REQUEST_BITS, TOKEN_BITS, size_bucket, within_bucket
from calibrator.core.cost.cells import KEYS, CellSummary, CostCells, Quantity

Integers = NDArray[np.int64]
Float = NDArray[np.float64]
Axis = Literal["batch_tokens", "requests"]

COARSEST_BITS = 2
"""Groups of neighbouring sizes are at most a quarter of an octave wide (19 %)."""

SUPPORTED_SHARE = 0.97
"""Of the steps: sizes are taken together until so many are at supported ones."""


@dataclass(frozen=True, slots=True, eq=False)
class Nodes:
    """Sizes by rising ``last``, shape ``[nodes]``.

    All sizes from ``first`` to ``last`` cost the same: a padding tier, or a single size where nothing
    pads (``tier`` False).
    """

    first: Integers
    last: Integers
    tier: NDArray[np.bool_]
    seconds: Float
    standard_error: Float
    n_eff: Float
    weight: Float
    outliers: Float
    newest: Integers

    def __len__(self) -> int:
        return len(self.last)

    def take(self, index: NDArray[np.generic]) -> Nodes:
        """Select by mask or index."""
        return Nodes(*(getattr(self, name)[index] for name in self.__slots__))


def build_nodes(
    cells: CostCells,
    quantity: Quantity,
    axis: Axis,
    context: int | None,
    now: int | None,
    half_life: float | None,
    graph_sizes: Sequence[int],
    min_n_eff: float = 0.0,
) -> Nodes:
    """Summarise cells by size, see :func:`calibrator.core.cost.curve.fit_curve`.

    >>> from serving_adapter.contract import Steps
    >>> steps = Steps.build(step_seconds=[0.03, 0.05], batch_tokens=[6, 24], requests=4, graph_tokens=[8, 32])
    >>> nodes = build_nodes(CostCells.fold(steps, 0), "step", "batch_tokens", None, None, None, [8, 16, 32])
    >>> nodes.first.tolist(), nodes.last.tolist(), nodes.tier.tolist()  # 1 to 8 pad to 8, 17 to 32 to 32
    ([1, 17], [8, 32], [True, True])
    """
    cells = cells.only(quantity, context)
    if axis == "requests":
        sizes = cells.summary(("requests",), now, half_life)
        return _single(sizes, within_bucket(sizes.requests, sizes.keys[:, 0], REQUEST_BITS))
    eager = CostCells(*_rows(cells, cells.column("graph_tokens") == 0))
    padded = CostCells(*_rows(cells, cells.column("graph_tokens") > 0))
    alone = _eager(eager, now, half_life, min_n_eff)
    tiers = _tiers(padded, now, half_life, graph_sizes)
    return _combined(alone, tiers)


def _eager(cells: CostCells, now: int | None, half_life: float | None, min_n_eff: float) -> Nodes:
    """Sizes that pad to nothing, neighbours taken together as far as their support asks for.

    A scheduler that trims picks a new size every step: hundreds of sizes with a few steps each. The finest
    grouping is taken under which most steps are at supported sizes; a rare size far from the others stays
    rare, and says so.
    """
    finest: Nodes | None = None
    for bits in range(TOKEN_BITS, COARSEST_BITS - 1, -1):
        keys = cells.keys.copy()
        column = KEYS.index("batch_tokens")
        keys[:, column] = size_bucket(keys[:, column], bits)
        summary = CostCells.from_arrays(keys, cells.sums).summary(("batch_tokens",), now, half_life)
        nodes = _single(summary, within_bucket(summary.batch_tokens, summary.keys[:, 0], bits))
        finest = nodes if finest is None else finest
        total = nodes.weight.sum()
        if total <= 0 or nodes.weight[nodes.n_eff >= min_n_eff].sum() >= SUPPORTED_SHARE * total:
            return nodes
    assert finest is not None
    return finest


def _rows(cells: CostCells, kept: NDArray[np.bool_]) -> tuple[Integers, Integers]:
    return cells.keys[kept], cells.sums[kept]


def _single(summary: CellSummary, sizes: Integers) -> Nodes:
    return _nodes(summary, sizes, sizes, False)


def _nodes(summary: CellSummary, first: Integers, last: Integers, tier: bool) -> Nodes:
    usable = np.isfinite(summary.seconds) & (summary.weight > 0)
    return Nodes(
        first,
        last,
        np.full(len(last), tier),
        summary.seconds,
        summary.standard_error * summary.seconds,
        summary.n_eff,
        summary.weight,
        summary.outliers,
        summary.newest,
    ).take(usable)


def _tiers(cells: CostCells, now: int | None, half_life: float | None, graph_sizes: Sequence[int]) -> Nodes:
    """Padding tiers and the sizes that pad to each.

    Every size between the smallest one seen with a tier and the tier pads to it. Below that, down to the
    tier before, nothing was seen: these sizes belong to the tier too where it is known which tiers there
    are, or where the gap is at most half of what lies between the two tiers (a captured size without a
    single step would have to hide in it).
    """
    summary = cells.summary(("graph_tokens",), now, half_life)
    last = summary.keys[:, 0]
    if not len(last):
        return _nodes(summary, last, last, True)
    owner = np.searchsorted(last, cells.column("graph_tokens"))
    seen = last.copy()
    np.minimum.at(seen, owner, cells.column("batch_tokens"))
    captured = np.union1d(last, np.asarray(graph_sizes, dtype=np.int64)) if len(graph_sizes) else last
    before = np.concatenate([[0], captured])[np.searchsorted(captured, last)]
    seen = np.maximum(seen, before + 1)
    near = (seen - before - 1) * 2 <= last - before
    return _nodes(summary, np.where(near | bool(len(graph_sizes)), before + 1, seen), last, True)


def _combined(alone: Nodes, tiers: Nodes) -> Nodes:
    """One list of sizes; where some steps of a size padded and others did not, the more common kind."""
    if not len(tiers) or not len(alone):
        return alone if len(alone) else tiers
    at = np.searchsorted(tiers.last, alone.last)
    inside = (at < len(tiers)) & (alone.last >= tiers.first[np.minimum(at, len(tiers) - 1)])
    beaten = np.zeros(len(tiers), dtype=np.bool_)
    for tier in np.unique(at[inside]):
        beaten[tier] = alone.weight[inside & (at == tier)].sum() > tiers.weight[tier]
    kept = ~inside | beaten[np.minimum(at, len(tiers) - 1)]
    one, two = alone.take(kept), tiers.take(~beaten)
    joined = Nodes(*(np.concatenate([getattr(one, n), getattr(two, n)]) for n in Nodes.__slots__))
    return joined.take(np.argsort(joined.last, kind="stable"))
