"""Reliability curves of a deployment: the raw head, what was in force, and the newest version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np

from calibrator.report.plots import AFTER, BAND, BEFORE, INK
from calibrator.report.timeline import LATEST

mpl.use("Agg")

import matplotlib.pyplot as plt

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Numbers = Mapping[str, Any]

STYLES = {
    "raw": (BEFORE, "raw head", "-"),
    "in_force": (AFTER, "in force", "-"),
    "latest": (LATEST, "newest version", (0, (4, 2))),
}
HISTOGRAM_HEIGHT = 0.14
MIN_SHARE = 0.002


def reliability_chart(numbers: Numbers) -> Figure:
    """Small multiples, one per position: isotonic curves of the sampled rows, or the bins of the windows.

    The grey band is where the curve of a calibrated head would lie with 95 % confidence; bars at the foot
    show where the predictions are.
    """
    gamma = numbers["gamma"]
    columns = min(4, gamma)
    rows = -(-gamma // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(11, 2.95 * rows + 0.4), squeeze=False, sharex=True, sharey=True
    )
    for axis in axes.flat[gamma:]:
        axis.set_visible(False)
    for k, axis in enumerate(axes.flat[:gamma]):
        axis.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
        if numbers["sample"] is None:
            _from_windows(axis, numbers, k)
        else:
            _from_sample(axis, numbers["sample"]["positions"], k)
        axis.set_xlim(0, 1)
        axis.set_ylim(0, 1)
        axis.set_aspect("equal")
        axis.tick_params(labelsize=8)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    for axis in axes[:, 0]:
        axis.set_ylabel("observed survival", fontsize=9)
    for column in range(columns):
        lowest = max(r for r in range(rows) if r * columns + column < gamma)
        axes[lowest, column].set_xlabel("predicted survival", fontsize=9)
        axes[lowest, column].tick_params(labelbottom=True)
    found: dict[str, Any] = {}
    for axis in axes.flat[:gamma]:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    figure.legend(
        list(found.values()), list(found), loc="upper left", ncols=len(found), frameon=False, fontsize=9
    )
    figure.tight_layout(rect=(0, 0, 1, 0.95))
    return figure


def _from_sample(axis: Axes, positions: Mapping[str, Sequence[Numbers]], k: int) -> None:
    banded = positions["in_force"][k]["curve"]
    if banded is not None:
        axis.fill_between(
            banded["predicted"], banded["low"], banded["high"], color=BAND, alpha=0.5, linewidth=0,
            label="95 % band of a calibrated head", zorder=0,
        )  # fmt: skip
    for name, (colour, label, style) in STYLES.items():
        curve = positions[name][k]["curve"]
        if curve is not None:
            axis.plot(
                curve["predicted"], curve["observed"], color=colour, linewidth=1.6, linestyle=style,
                label=label, zorder=3 if name == "in_force" else 2,
            )  # fmt: skip
    _bars(axis, [(positions[name][k]["histogram"], STYLES[name][0]) for name in ("raw", "in_force")])
    before, after = positions["raw"][k]["smooth_ece"], positions["in_force"][k]["smooth_ece"]
    _title(axis, k, "smooth ECE", before, after)


def _from_windows(axis: Axes, numbers: Numbers, k: int) -> None:
    bars = []
    for name in ("raw", "in_force"):
        colour, label, _ = STYLES[name]
        bins = numbers["totals"][name][k]["bins"]
        p, y, n = (np.array(bins[c], dtype=np.float64) for c in ("predicted", "observed", "n_eff"))
        filled = n > max(4.0, MIN_SHARE * float(n.sum()))
        if name == "in_force" and filled.any():
            low, high = (np.array(bins[c], dtype=np.float64)[filled] for c in ("band_low", "band_high"))
            axis.fill_between(
                p[filled], low, high, color=BAND, alpha=0.5, linewidth=0,
                label="95 % band of a calibrated head", zorder=0,
            )  # fmt: skip
        axis.plot(p[filled], y[filled], color=colour, linewidth=1.4, marker="o", markersize=3, label=label)
        bars.append((bins["mass"], colour))
    _bars(axis, bars)
    _title(axis, k, "ECE", numbers["totals"]["raw"][k]["ece"], numbers["totals"]["in_force"][k]["ece"])


def _bars(axis: Axes, histograms: Sequence[tuple[Sequence[float], str]]) -> None:
    for i, (mass, colour) in enumerate(histograms):
        share = np.array(mass, dtype=np.float64)
        if not share.max(initial=0.0) > 0:
            continue
        bins = len(share)
        axis.bar(
            np.arange(bins) / bins + 0.5 * i / bins,
            HISTOGRAM_HEIGHT * share / share.max(),
            width=0.5 / bins, align="edge", color=colour, alpha=0.35, linewidth=0, zorder=0,
        )  # fmt: skip


def _title(axis: Axes, k: int, what: str, before: float | None, after: float | None) -> None:
    figures = "no labels" if before is None or after is None else f"{what} {before:.3f} → {after:.3f}"
    axis.set_title(f"position {k + 1}   {figures}", fontsize=9, color=INK, loc="left")
