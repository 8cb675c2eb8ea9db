"""Charts over time: error against its noise floor, parameters by version, coverage and exploration."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from numpy.typing import NDArray

from calibrator.report.plots import AFTER, BAND, BEFORE, INK

mpl.use("Agg")

import matplotlib.dates as mdates
import matplotlib.pyplot as plt

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Float = NDArray[np.float64]
Numbers = Mapping[str, Any]

ALARM, LATEST, SOFT = "#CC79A7", "#009E73", "#6b7580"
LOG_RATIO = 16.0
"""Temperatures that differ by more are drawn on a logarithmic axis."""
LABEL_SHARE = 0.025
"""Versions closer than this share of the period to the one before are marked without their number."""


def svg(figure: Figure) -> bytes:
    """Render and close a figure; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "dspark"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    plt.close(figure)
    return buffer.getvalue()


def error_chart(numbers: Numbers) -> Figure:
    """Mean ECE over positions, and the debiased squared error, with versions and episodes marked."""
    series = numbers["series"]
    at = _middles(numbers)
    figure, axes = plt.subplots(2, 1, figsize=(11, 5.6), sharex=True, height_ratios=(3, 2))
    top, bottom = axes
    floor = mean_over_positions(series["in_force"]["noise_floor"])
    top.fill_between(at, 0, floor, color=BAND, alpha=0.5, linewidth=0, label="noise floor")
    for basis, colour, label in (("raw", BEFORE, "raw head"), ("in_force", AFTER, "in force")):
        _line(top, at, mean_over_positions(series[basis]["ece"]), colour, label)
        _line(bottom, at, mean_over_positions(series[basis]["squared_error"]), colour, label)
    bottom.axhline(0.0, color=INK, linewidth=0.6)
    top.set_ylim(bottom=0.0)
    top.set_ylabel("mean ECE")
    bottom.set_ylabel("debiased squared error")
    _mark(axes, numbers)
    _time_axis(bottom, numbers)
    _legend(top, numbers)
    figure.align_ylabels()
    figure.tight_layout()
    return figure


def position_chart(numbers: Numbers) -> Figure:
    """ECE in force of every position with its interval and noise floor."""
    gamma = numbers["gamma"]
    columns = min(4, gamma)
    rows = -(-gamma // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(11, 2.1 * rows + 0.5), squeeze=False, sharex=True, sharey=True
    )
    series = numbers["series"]["in_force"]
    at = _middles(numbers)
    for axis in axes.flat[gamma:]:
        axis.set_visible(False)
    for k, axis in enumerate(axes.flat[:gamma]):
        ece, low, high, floor = (
            matrix(series[name])[:, k] for name in ("ece", "ece_low", "ece_high", "noise_floor")
        )
        axis.fill_between(at, 0, floor, color=BAND, alpha=0.5, linewidth=0, label="noise floor")
        axis.fill_between(at, low, high, color=AFTER, alpha=0.18, linewidth=0, label="95 % interval")
        _line(axis, at, ece, AFTER, "in force")
        here = [e for e in numbers["episodes"] if e["position"] in (None, k + 1)]
        _spans(axis, [e for e in here if e["kind"] == "calibration"], numbers)
        axis.set_title(f"position {k + 1}", loc="left", fontsize=9.5, color=INK)
        axis.set_ylim(0.0, _ceiling(series["ece"]))
    for axis in axes[:, 0]:
        axis.set_ylabel("ECE")
    for column in range(columns):
        lowest = max(r for r in range(rows) if r * columns + column < gamma)
        _time_axis(axes[lowest, column], numbers, ticks=5)
        axes[lowest, column].tick_params(labelbottom=True)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    handles, labels = _with_drift(handles, labels, numbers)
    figure.legend(handles, labels, loc="upper left", ncols=len(labels), frameon=False, fontsize=8)
    figure.tight_layout(rect=(0, 0, 1, 0.94))
    return figure


def parameter_chart(numbers: Numbers) -> Figure:
    """Temperatures and offsets of every position, version after version."""
    versions = numbers["versions"]
    figure, axes = plt.subplots(1, 2, figsize=(11, 3.4))
    at = [max(each["at"], numbers["from"]) for each in versions]
    edges = moments([*at, numbers["to"]])
    colours = plt.get_cmap("viridis")(np.linspace(0.0, 0.85, numbers["gamma"]))
    for axis, name in zip(axes, ("temperatures", "offsets"), strict=True):
        values = np.array([each[name] for each in versions], dtype=np.float64)
        for k in range(numbers["gamma"]):
            line = np.append(values[:, k], values[-1, k])
            axis.step(edges, line, where="post", color=colours[k], linewidth=1.5, label=f"{k + 1}", alpha=0.9)
        axis.set_title(name[:-1] + " by position", loc="left", fontsize=10, color=INK, pad=14)
        _mark([axis], numbers, episodes=False)
        _time_axis(axis, numbers, ticks=6)
    temperatures = values_of(versions, "temperatures")
    # On a logarithmic axis that spans little there is hardly a mark to read anything off.
    if temperatures.min() > 0 and temperatures.max() > LOG_RATIO * temperatures.min():
        axes[0].set_yscale("log", base=2)
        axes[0].yaxis.set_major_formatter(mpl.ticker.FormatStrFormatter("%g"))
    axes[1].legend(
        title="position",
        fontsize=8,
        title_fontsize=8,
        frameon=False,
        loc="upper left",
        bbox_to_anchor=(1.0, 1.02),
    )
    figure.tight_layout()
    return figure


def coverage_chart(numbers: Numbers) -> Figure:
    """Share of drafted positions that were verified, and the exploration probability over time."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 3.1), width_ratios=(2, 3))
    left, right = axes
    shares = [each["share"] or 0.0 for each in numbers["coverage"]]
    positions = np.arange(1, len(shares) + 1)
    left.bar(positions, shares, color=AFTER, alpha=0.75)
    for position, share in zip(positions, shares, strict=True):
        left.text(position, share + 0.02, f"{share:.0%}", ha="center", fontsize=8, color=INK)
    left.set_ylim(0, 1.12)
    left.set_xticks(positions)
    left.set_xlabel("position", fontsize=8)
    left.set_title("verified share by position, whole period", loc="left", fontsize=10, color=INK)
    decided = numbers["exploration"]
    if decided:
        edges = moments([*(each["at"] for each in decided), numbers["to"]])
        explore = np.array([each["explore"] for each in decided])
        right.step(edges, np.append(explore, explore[-1]) * 100, where="post", color=LATEST, linewidth=1.6)
        right.set_ylim(0, max(1.0, 125 * float(explore.max())))
    else:
        right.set_yticks([])
        right.text(0.5, 0.5, "no refresh decided on it", transform=right.transAxes, ha="center", color=SOFT)
    right.set_title("exploration, % of rounds, since the first decision", loc="left", fontsize=10, color=INK)
    _time_axis(right, numbers)
    for axis in axes:
        _bare(axis)
    figure.tight_layout()
    return figure


def moments(seconds: Sequence[float]) -> NDArray[Any]:
    """Matplotlib dates of seconds since 1970."""
    dates = [datetime.fromtimestamp(s, UTC) for s in seconds]
    return np.asarray(mdates.date2num(dates))  # type: ignore[no-untyped-call]


def _middles(numbers: Numbers) -> NDArray[Any]:
    """Where the points of a series are drawn: in the middle of what each of them sums up."""
    first, last, step = numbers["from"], numbers["to"], numbers["series"]["step"]
    return moments([(max(s, first) + min(s + step, last)) / 2 for s in numbers["series"]["at"]])


def matrix(rows: Sequence[Sequence[float | None]]) -> Float:
    """Numbers with NaN where there are none."""
    return np.array([[np.nan if v is None else v for v in row] for row in rows], dtype=np.float64)


def mean_over_positions(rows: Sequence[Sequence[float | None]]) -> Float:
    """Mean of the positions that have a figure; NaN where none has."""
    values = matrix(rows)
    known = np.isfinite(values)
    count = known.sum(axis=1)
    total = np.where(known, values, 0.0).sum(axis=1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def values_of(versions: Sequence[Numbers], name: str) -> Float:
    """All values of one column of the versions."""
    return np.array([each[name] for each in versions], dtype=np.float64)


def _line(axis: Axes, at: NDArray[Any], values: Float, colour: str, label: str) -> None:
    # A point between two gaps is no line: it needs a mark.
    known = np.isfinite(values)
    lonely = known & ~np.append(known[1:], False) & ~np.append(False, known[:-1])
    axis.plot(at, values, color=colour, linewidth=1.4, label=label)
    axis.plot(at[lonely], values[lonely], color=colour, marker="o", markersize=2.5, linestyle="none")
    _bare(axis)


def _mark(axes: Sequence[Axes], numbers: Numbers, *, episodes: bool = True) -> None:
    inside = [each for each in numbers["versions"] if each["at"] >= numbers["from"]]
    for axis in axes:
        for each in inside:
            axis.axvline(moments([each["at"]])[0], color=SOFT, linewidth=0.8, linestyle=(0, (2, 2)))
        if episodes:
            _spans(axis, [e for e in numbers["episodes"] if e["kind"] == "calibration"], numbers)
    transform = axes[0].get_xaxis_transform()
    width, last = numbers["to"] - numbers["from"], -np.inf
    for each in inside:
        if each["at"] - last < LABEL_SHARE * width:
            continue  # two numbers on top of each other cannot be read
        last = each["at"]
        axes[0].text(
            moments([last])[0], 1.01, f"v{each['version']}", transform=transform, fontsize=8, color=SOFT,
            ha="center", va="bottom",
        )  # fmt: skip


def _spans(axis: Axes, episodes: Sequence[Numbers], numbers: Numbers) -> None:
    """Shade the union of the episodes, with a line at every alarm."""
    ends = sorted(
        (max(e["started_at"], numbers["from"]), min(e["ended_at"] or numbers["to"], numbers["to"]))
        for e in episodes
    )
    shaded: list[list[float]] = []
    for begin, end in ends:
        if shaded and begin <= shaded[-1][1]:
            shaded[-1][1] = max(shaded[-1][1], end)
        else:
            shaded.append([begin, end])
    for span in shaded:
        axis.axvspan(*moments(span), color=ALARM, alpha=0.16, linewidth=0)
    for episode in episodes:
        if episode["alarmed_at"] >= numbers["from"]:
            axis.axvline(moments([episode["alarmed_at"]])[0], color=ALARM, linewidth=0.9)


def _time_axis(axis: Axes, numbers: Numbers, ticks: int = 8) -> None:
    axis.set_xlim(*moments([numbers["from"], numbers["to"]]))
    locator = mdates.AutoDateLocator(minticks=2, maxticks=ticks, tz=UTC)  # type: ignore[no-untyped-call]
    axis.xaxis.set_major_locator(locator)
    formatter = mdates.ConciseDateFormatter(locator, tz=UTC)  # type: ignore[no-untyped-call]
    axis.xaxis.set_major_formatter(formatter)
    axis.xaxis.get_offset_text().set_fontsize(7.5)
    axis.tick_params(labelsize=8)
    _bare(axis)


def _legend(axis: Axes, numbers: Numbers) -> None:
    handles, labels = _with_drift(*axis.get_legend_handles_labels(), numbers)
    axis.legend(
        handles,
        labels,
        fontsize=8,
        frameon=False,
        ncols=len(labels),
        loc="lower left",
        bbox_to_anchor=(-0.01, 1.06),
    )


def _with_drift(handles: list[Any], labels: list[str], numbers: Numbers) -> tuple[list[Any], list[str]]:
    """Entries of a legend, with one for the shading where there is any."""
    if not any(each["kind"] == "calibration" for each in numbers["episodes"]):
        return handles, labels
    shade = mpl.patches.Patch(color=ALARM, alpha=0.3)
    line = mpl.lines.Line2D([], [], color=ALARM, linewidth=0.9)
    return [*handles, shade, line], [*labels, "calibration drift", "alarm"]


def _bare(axis: Axes) -> None:
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    axis.tick_params(labelsize=8)


def _ceiling(rows: Sequence[Sequence[float | None]]) -> float:
    values = matrix(rows)
    known = values[np.isfinite(values)]
    return max(0.02, 1.15 * float(np.quantile(known, 0.99))) if known.size else 0.1
