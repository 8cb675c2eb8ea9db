"""Reliability diagrams."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np
from numpy.typing import NDArray

from calibrator.core.ece import Reliability

mpl.use("Agg")

import matplotlib.pyplot as plt

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Float = NDArray[np.float64]

# Okabe and Ito's palette: told apart with any colour vision, and in grey.
BEFORE, AFTER, BAND, INK = "#D55E00", "#0072B2", "#BBBBBB", "#333333"


@dataclass(frozen=True, slots=True, eq=False)
class PositionReliability:
    """One draft position before and after: what to draw, with the figures of its caption."""

    position: int
    before: Reliability
    after: Reliability


def reliability_figure(title: str, positions: Sequence[PositionReliability]) -> Figure:
    """Small multiples, one per draft position: observed against predicted survival, before and after.

    The grey band is where 95 % of the bins of a perfectly calibrated predictor would fall, given how
    many rows each bin holds; bars at the foot show where the predictions lie.
    """
    columns = min(4, len(positions))
    rows = -(-len(positions) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(3.2 * columns, 3.3 * rows + 0.5), squeeze=False, sharex=True, sharey=True
    )
    for axis in axes.flat[len(positions) :]:
        axis.set_visible(False)
    for axis, item in zip(axes.flat, positions, strict=False):
        _draw(axis, item)
    for axis in axes[:, 0]:
        axis.set_ylabel("observed survival")
    # A column whose last row is empty still needs its scale.
    for column in range(columns):
        lowest = max(r for r in range(rows) if r * columns + column < len(positions))
        axes[lowest, column].set_xlabel("predicted survival")
        axes[lowest, column].tick_params(labelbottom=True)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.suptitle(title, x=0.01, y=0.995, ha="left", fontsize=13, fontweight="bold", color=INK)
    figure.legend(handles, labels, loc="upper right", ncols=len(labels), frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, 0, 1, 0.97))
    return figure


def png(figure: Figure, dpi: int = 130) -> bytes:
    """Render and close a figure."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    plt.close(figure)
    return buffer.getvalue()


def _draw(axis: Axes, item: PositionReliability) -> None:
    axis.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
    _band(axis, item.after)
    for reliability, colour, marker, label in (
        (item.before, BEFORE, "s", "before (T = 1)"),
        (item.after, AFTER, "o", "after"),
    ):
        # A bin with next to nothing in it says nothing and draws the eye.
        filled = reliability.weight > max(4.0, 0.001 * reliability.weight.sum())
        if not filled.any():
            continue
        share = reliability.weight[filled] / reliability.weight.sum()
        axis.plot(
            reliability.predicted[filled],
            reliability.observed[filled],
            color=colour,
            linewidth=1.1,
            alpha=0.7,
            zorder=2,
        )
        axis.scatter(
            reliability.predicted[filled],
            reliability.observed[filled],
            s=10 + 190 * share,
            color=colour,
            marker=marker,
            edgecolors="white",
            linewidths=0.5,
            label=label,
            zorder=3,
        )
    _histogram(axis, item)
    axis.set_title(
        f"position {item.position}   ECE {item.before.ece:.3f} → {item.after.ece:.3f}",
        fontsize=9.5,
        color=INK,
        loc="left",
    )
    axis.set_xlim(0, 1)
    axis.set_ylim(0, 1)
    axis.set_aspect("equal")
    axis.tick_params(labelsize=8)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _band(axis: Axes, reliability: Reliability) -> None:
    filled = reliability.n_eff > max(4.0, 0.001 * float(reliability.n_eff.sum()))
    p, n = reliability.predicted[filled], reliability.n_eff[filled]
    order = np.argsort(p)
    half = 1.96 * np.sqrt(p * (1 - p) / np.maximum(n, 1.0))
    axis.fill_between(
        p[order],
        np.clip(p - half, 0, 1)[order],
        np.clip(p + half, 0, 1)[order],
        color=BAND,
        alpha=0.4,
        linewidth=0,
        label="95 % band of a calibrated head",
        zorder=0,
    )


def _histogram(axis: Axes, item: PositionReliability) -> None:
    height = 0.12
    for reliability, colour, shift in ((item.before, BEFORE, 0.0), (item.after, AFTER, 0.5)):
        mass = reliability.mass
        if mass.sum() <= 0:
            continue
        bins = len(mass)
        share = mass / mass.max()
        left = np.arange(bins) / bins + shift / bins
        axis.bar(
            left,
            height * share,
            width=0.5 / bins,
            align="edge",
            color=colour,
            alpha=0.35,
            linewidth=0,
            zorder=0,
        )
