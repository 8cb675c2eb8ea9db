"""The report of one deployment and one period as a single HTML page that needs nothing from anywhere else."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, select_autoescape

from calibrator.report.answers import answers
from calibrator.report.curves import reliability_chart
from calibrator.report.outcomes import advice, kept_groups, named_positions, unpublished
from calibrator.report.page import compared
from calibrator.report.timeline import (
    coverage_chart,
    error_chart,
    parameter_chart,
    position_chart,
    svg,
)
from calibrator.report.words import POLICIES, measured, moments_of, place
from calibrator.report.worth import net_speed

Numbers = Mapping[str, Any]

_MEASURED = ("prequential", "temperature_limited", "segments", "value")

SHOWN_SEGMENTS = 20
SHOWN_REFRESHES = 200
"""Refreshes listed one by one, newest first; the reasons of all are counted."""

_environment = Environment(
    loader=PackageLoader("calibrator.report"),
    autoescape=select_autoescape(),
    trim_blocks=True,
    lstrip_blocks=True,
)


def render_deployment_page(numbers: Numbers, made_at: float) -> str:
    """Render what :func:`calibrator.service.reading.period.period_numbers` read.

    Parameters
    ----------
    numbers
        The numbers of the period.
    made_at
        Seconds since 1970, shown on the page.
    """
    environment = _environment.overlay()
    environment.filters = {**_environment.filters, "at": moments_of(numbers)}
    return environment.get_template("deployment.html").render(
        n=numbers,
        made_at=made_at,
        headline=headline(numbers),
        answers=answers(numbers),
        policies=POLICIES,
        unpublished=unpublished(numbers),
        kept=[{**each, "advice": advice(numbers, each)} for each in kept_groups(numbers)],
        measured={name: measured(numbers, name) for name in _MEASURED},
        charts=_charts(numbers),
        has_rows=has_rows(numbers),
        limits=_limits(numbers),
        shown_segments=_segments(numbers)[:SHOWN_SEGMENTS],
        more_segments=max(0, len(_segments(numbers)) - SHOWN_SEGMENTS),
        shown_refreshes=list(reversed(numbers["refreshes"]))[:SHOWN_REFRESHES],
    )


def _segments(numbers: Numbers) -> list[tuple[str, Any]]:
    """Segments and classes of sampling temperature by name, those with the most rounds first."""
    named = [*numbers["segments"].items()]
    named += [(f"sampling {name}", each) for name, each in numbers["samplings"].items()]
    return sorted(named, key=lambda item: -(item[1].get("rows") or 0))


def _limits(numbers: Numbers) -> dict[int, dict[str, Any]]:
    """What the best temperatures leave, by position, with a word on whether offsets are needed.

    ``undecided`` where the interval allows both; ``enough`` where by its interval the affine form is not
    better, or where what temperatures leave is within the noise floor.
    """
    floors = {row["position"]: row["noise_floor"] for row in numbers["totals"]["in_force"]}
    found = {}
    for each in numbers.get("temperature_limited") or []:
        left, floor, low = each["temperature"], floors.get(each["position"]), each["difference_low"]
        within = left is not None and floor is not None and left <= floor
        word = (
            "temperature-limited" if each["limited"]
            else "enough" if within or (low is not None and low >= 0.0)
            else "undecided"
        )  # fmt: skip
        found[each["position"]] = {**each, "word": word}
    return found


def has_rows(numbers: Numbers) -> bool:
    """Whether anything was folded in the period."""
    return any(each["drafted"] for each in numbers["totals"]["raw"])


def headline(numbers: Numbers) -> dict[str, Any]:
    """Figures for the top of the page; undefined ones are None."""
    raw, in_force = numbers["totals"]["raw"], numbers["totals"]["in_force"]
    explored = numbers["exploration"][-1] if numbers["exploration"] else None
    inside = [each for each in numbers["versions"] if each["at"] >= numbers["from"]]
    value = next((each for each in numbers["value"] if each["policy"] == "in force"), None)
    return {
        "rounds": max((each["drafted"] for each in raw), default=0),
        "ece_raw": mean_of(raw, "ece"),
        "ece_in_force": mean_of(in_force, "ece"),
        "noise_floor": mean_of(in_force, "noise_floor"),
        "noise_floor_raw": mean_of(raw, "noise_floor"),
        "published": len(inside),
        "refreshes": len(numbers["refreshes"]),
        "version": numbers["versions"][-1]["version"] if numbers["versions"] else None,
        "form": numbers["versions"][-1]["form"] if numbers["versions"] else None,
        "open": [each["kind"] for each in numbers["episodes"] if each["ended_at"] is None],
        "explore": explored["explore"] if explored else None,
        "explore_cost": explored["extra_share"] if explored else None,
        "explore_speed": explored["relative_speed"] if explored else None,
        "judged": _judged(in_force),
        "worth": value["against_identity"] if value else None,
        "worth_requests": value["concurrency"] if value else None,
        "net": net_speed(numbers),
        "better": compared(mean_of(raw, "ece"), mean_of(in_force, "ece"), mean_of(in_force, "noise_floor")),
    }


def _judged(rows: Sequence[Numbers]) -> str:
    """How many positions have figures to rely on, and how many labels these are worth."""
    known = [row["n_eff"] for row in rows if row["n_eff"] is not None]
    if not known:
        return "no labels"
    good = sum(row["status"] == "ok" for row in rows)
    return (
        f"enough labels in the windows at {good} of {len(rows)} positions: "
        f"effective {max(known):,.0f} to {min(known):,.0f}"
    )


def _apart(row: Numbers, other: Numbers) -> str:
    """Class of an ECE whose interval does not meet the other's, none where they meet."""
    if None in (row["ece_low"], row["ece_high"], other["ece_low"], other["ece_high"]):
        return ""
    return (
        "after"
        if row["ece_high"] < other["ece_low"]
        else "before"
        if row["ece_low"] > other["ece_high"]
        else ""
    )


def _change(low: float | None, high: float | None) -> str:
    """Class of a difference of errors whose interval excludes 0."""
    if low is None or high is None:
        return ""
    return "after" if high < 0.0 else "before" if low > 0.0 else ""


def mean_of(rows: Sequence[Numbers], name: str) -> float | None:
    """Mean over the positions that have the figure."""
    known = [row[name] for row in rows if row[name] is not None]
    return float(np.mean(known)) if known else None


def _charts(numbers: Numbers) -> dict[str, bytes]:
    charts = {}
    if has_rows(numbers):
        charts["reliability"] = svg(reliability_chart(numbers))
        charts["error"] = svg(error_chart(numbers))
        charts["positions"] = svg(position_chart(numbers))
        charts["coverage"] = svg(coverage_chart(numbers))
    if numbers["versions"]:
        charts["parameters"] = svg(parameter_chart(numbers))
    return charts


def _figure(value: float | None, digits: int = 4) -> str:
    return "–" if value is None else f"{round(value, digits) + 0.0:.{digits}f}"


def _percent(value: float | None, digits: int = 1, signed: bool = False) -> str:
    if value is None:
        return "–"
    rounded = round(100.0 * value, digits) + 0.0  # never "-0.0 %"
    return f"{rounded:{'+' if signed and rounded else ''}.{digits}f} %"


def _less_one(ratio: float | None) -> float | None:
    return None if ratio is None else ratio - 1.0


def _count(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _moment(value: float | None) -> str:
    return "–" if value is None else f"{datetime.fromtimestamp(value, UTC):%Y-%m-%d %H:%M:%S}"


def _signed(value: float | None, digits: int = 4) -> str:
    return "–" if value is None else f"{round(value, digits) + 0.0:+.{digits}f}"


def _duration(seconds: float) -> str:
    """Length of time in its own unit.

    >>> _duration(1.0), _duration(90.0), _duration(3600.0), _duration(86400.0)
    ('1 s', '90 s', '1 h', '1 d')
    """
    for unit, name in ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min")):
        if seconds >= unit and seconds % unit == 0:
            return f"{seconds / unit:g} {name}"
    return f"{seconds:g} s"


def _direction(ratio: Numbers) -> str:
    """Class of a ratio whose interval lies above or below 1, none where it does neither."""
    low, high = ratio["low"], ratio["high"]
    if low is None or high is None:
        return ""
    return "after" if low > 1.0 else "before" if high < 1.0 else ""


def _image(chart: bytes) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(chart).decode()


_environment.filters.update(
    figure=_figure,
    percent=_percent,
    less_one=_less_one,
    count=_count,
    moment=_moment,
    signed=_signed,
    duration=_duration,
    direction=_direction,
    apart=_apart,
    change=_change,
    compared=compared,
    positions=named_positions,
    place=place,
    image=_image,
)
