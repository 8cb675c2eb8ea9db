"""Seconds of a step by its size, with a verdict on whether that is knowledge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrator.core.cost.cells import CostCells, Quantity
from calibrator.core.cost.monotone import fit_monotone
from calibrator.core.cost.nodes import Axis, Nodes, build_nodes
from serving_adapter.contract import CostCurve

Float = NDArray[np.float64]
Integers = NDArray[np.int64]
DEAD_SPOT = 1.5
"""Neighbouring sizes further apart than this factor leave a range that the curve knows nothing about."""

SizeStatus = Literal["measured", "extrapolated", "flat", "unsupported", "stale"]


@dataclass(frozen=True, slots=True)
class CurveRules:
    """What a curve needs.

    Parameters
    ----------
    min_n_eff
        Effective samples of a size; fewer make it ``unsupported``.
    min_sizes
        Measured sizes (padding tiers count once).
    min_rise
        Least relative rise from the first to the last measured size; a curve below it is ``flat``.
    max_unsupported_traffic
        Largest share of recent steps at sizes that are not measured.
    max_disagreement
        Largest share of weight at sizes whose own median lies ``disagreement`` and more than four
        standard errors away from the fitted monotone curve.
    stale_half_lives
        Age of the newest sample of a size, in half-lives, from which it is ``stale``.
    """

    min_n_eff: float = 10.0
    min_sizes: int = 3
    min_rise: float = 0.03
    max_unsupported_traffic: float = 0.05
    max_disagreement: float = 0.2
    disagreement: float = 0.1
    stale_half_lives: float = 6.0


@dataclass(frozen=True, slots=True, eq=False)
class CurveFit:
    """A curve over ``sizes`` (batch tokens or requests), shape ``[points]``.

    A padding tier has two points, where it begins and where it ends, so that going straight from point
    to point neither invents marginal cost inside it nor blurs its edge. ``n_eff``, ``standard_error``
    (relative) and ``statuses`` have an entry per point. ``dead_spots`` are ranges of sizes, ends included, of
    which no step was seen although larger ones were; ``outliers`` is the share of steps rejected.
    """

    sizes: Integers
    seconds: Float
    standard_error: Float
    n_eff: Float
    statuses: tuple[SizeStatus, ...]
    dead_spots: tuple[tuple[int, int], ...]
    outliers: float
    reasons: tuple[str, ...]

    @property
    def publishable(self) -> bool:
        """Whether a scheduler may act on the curve; ``reasons`` say why not."""
        return not self.reasons

    def at(self, sizes: ArrayLike) -> Float:
        """Seconds at any size, ends clamped. NaN for a curve without a point."""
        wanted = np.asarray(sizes, dtype=np.float64)
        if not len(self.sizes):
            return np.full(wanted.shape, np.nan)
        return np.asarray(np.interp(wanted, self.sizes, self.seconds), dtype=np.float64)

    def to_contract(self) -> CostCurve | None:
        """The curve as a parameter document carries it, statuses and all; None without a point."""
        if not len(self.sizes):
            return None
        return CostCurve(
            batch_tokens=self.sizes.tolist(),
            seconds=self.seconds.tolist(),
            status=list(self.statuses),
            sps=(1.0 / self.seconds).tolist(),
            interpolation="linear",
        )


def fit_curve(
    cells: CostCells,
    *,
    now: int | None = None,
    half_life: float | None = None,
    context: int | None = None,
    quantity: Quantity = "step",
    axis: Axis = "batch_tokens",
    graph_sizes: Sequence[int] = (),
    largest: int | None = None,
    rules: CurveRules | None = None,
) -> CurveFit:
    """Fit a monotone staircase to what steps took.

    Sizes that pad to one captured graph are one tier with one time. Where nothing pads the curve goes
    straight from size to size. Medians that fall with size are pooled; of sizes with few samples the
    marginal cost is held near that of its neighbours.

    Parameters
    ----------
    cells
        What was measured.
    now, half_life
        Epoch to look back from, and epochs after which a sample counts half; without them every sample
        counts alike and nothing is stale.
    context
        Context bucket; all of them when left out.
    quantity, axis
        ``step`` by ``batch_tokens`` is what schedulers want; ``draft`` by ``requests`` and ``verify`` by
        ``batch_tokens`` are the two curves that vLLM takes.
    graph_sizes
        Captured sizes, when the engine tells; otherwise those that were seen.
    largest
        Largest size that the engine can run: when nothing that large was measured the curve gets one
        ``extrapolated`` point there.
    rules
        See :class:`CurveRules`.

    >>> from serving_adapter.contract import Steps
    >>> tokens = np.repeat([1, 8, 32, 128], 50)
    >>> steps = Steps.build(step_seconds=0.03 + 0.001 * tokens, batch_tokens=tokens, requests=tokens)
    >>> fit = fit_curve(CostCells.fold(steps, epoch=0))
    >>> fit.publishable, fit.at([1, 20, 128]).round(2).tolist()
    (True, [0.03, 0.05, 0.16])
    """
    rules = rules or CurveRules()
    nodes = build_nodes(cells, quantity, axis, context, now, half_life, graph_sizes, rules.min_n_eff)
    if not len(nodes):
        none = np.zeros(0)
        return CurveFit(none.astype(np.int64), none, none, none, (), (), 0.0, ("no step was measured",))
    supported = nodes.n_eff >= rules.min_n_eff
    stale = np.zeros(len(nodes), dtype=np.bool_)
    if now is not None and half_life is not None:
        stale = now - nodes.newest > rules.stale_half_lives * half_life
    anchors = supported & ~stale
    if not anchors.any():
        anchors = supported if supported.any() else np.ones(len(nodes), dtype=np.bool_)
    fitted = _fit(nodes, anchors)
    rise = float(fitted[anchors][-1] / fitted[anchors][0] - 1.0)
    flat = int(anchors.sum()) > 1 and rise < rules.min_rise
    statuses: list[SizeStatus] = [
        "unsupported" if not supported[i] else "stale" if stale[i] else "flat" if flat else "measured"
        for i in range(len(nodes))
    ]
    reasons = _reasons(nodes, fitted, supported, stale, flat, rise, rules)
    return _points(nodes, fitted, statuses, largest, reasons)


def _fit(nodes: Nodes, anchors: NDArray[np.bool_]) -> Float:
    """Fit through the anchors; every other node takes what the curve says there, shape ``[nodes]``."""
    good = nodes.take(anchors)
    sizes = good.last.astype(np.float64)
    # A bend at or beside a padding tier is real: only runs of single sizes are smoothed.
    single = ~good.tier
    held = single[:-2] & single[1:-1] & single[2:]
    fitted = fit_monotone(sizes, good.seconds, good.standard_error, held if len(held) else None)
    ends, values = np.concatenate([good.first, good.last]), np.concatenate([fitted, fitted])
    order = np.argsort(ends, kind="stable")
    every = np.interp(nodes.last.astype(np.float64), ends[order], values[order])
    every[anchors] = fitted
    return np.maximum.accumulate(every)


def _reasons(
    nodes: Nodes,
    fitted: Float,
    supported: NDArray[np.bool_],
    stale: NDArray[np.bool_],
    flat: bool,
    rise: float,
    rules: CurveRules,
) -> tuple[str, ...]:
    reasons = []
    measured = supported & ~stale
    if measured.sum() < rules.min_sizes:
        reasons.append(f"{int(measured.sum())} sizes measured, needs {rules.min_sizes}")
    if flat:
        reasons.append(
            f"flat: the last size takes {rise:+.1%} against the first, needs {rules.min_rise:+.0%}"
        )
    if stale.any() and stale[supported].all():
        reasons.append("stale: no size has a recent sample")
    total = nodes.weight.sum()
    unsupported = float(nodes.weight[~measured].sum() / total)
    if unsupported > rules.max_unsupported_traffic:
        often = np.argsort(-np.where(measured, 0.0, nodes.weight), kind="stable")
        worst = ", ".join(str(int(b)) for b in nodes.last[often[: min(5, int((~measured).sum()))]])
        reasons.append(f"{unsupported:.0%} of steps are at sizes without support ({worst})")
    gap = np.abs(nodes.seconds - fitted)
    apart = supported & (gap > rules.disagreement * fitted) & (gap > 4 * nodes.standard_error)
    share = float(nodes.weight[apart].sum() / total)
    if share > rules.max_disagreement:
        where = ", ".join(str(int(b)) for b in nodes.last[apart][:5])
        reasons.append(f"not monotone: medians of {share:.0%} of steps contradict larger sizes (at {where})")
    return tuple(reasons)


def _points(
    nodes: Nodes, fitted: Float, statuses: list[SizeStatus], largest: int | None, reasons: tuple[str, ...]
) -> CurveFit:
    begins = np.flatnonzero(nodes.first < nodes.last)
    index = np.sort(np.concatenate([np.arange(len(nodes)), begins]), kind="stable")
    second = np.append(False, index[1:] == index[:-1])
    doubled = np.isin(index, begins)
    sizes = np.where(doubled & ~second, nodes.first[index], nodes.last[index])
    seconds = fitted[index]
    errors = nodes.standard_error[index] / seconds
    n_eff = nodes.n_eff[index]
    status = [statuses[i] for i in index]
    before = np.concatenate([[0], nodes.last[:-1]])
    dead = [
        (int(low) + 1, int(high) - 1)
        for low, high in zip(before, nodes.first, strict=True)
        if high - low > 1 and high > DEAD_SPOT * low > 0
    ]
    if largest is not None and largest > sizes[-1]:
        cheaper = np.flatnonzero(seconds < seconds[-1])
        slope = 0.0
        if len(cheaper):
            slope = (seconds[-1] - seconds[cheaper[-1]]) / (sizes[-1] - sizes[cheaper[-1]])
        sizes = np.append(sizes, largest)
        seconds = np.append(seconds, seconds[-1] + slope * (largest - sizes[-2]))
        errors, n_eff = np.append(errors, np.nan), np.append(n_eff, 0.0)
        status.append("extrapolated")
    outliers = float((nodes.outliers * nodes.weight).sum() / nodes.weight.sum())
    return CurveFit(sizes, seconds, errors, n_eff, tuple(status), tuple(dead), outliers, reasons)
