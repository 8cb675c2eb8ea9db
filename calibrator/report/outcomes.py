"""Why refreshes published nothing, and which positions kept what they had: counted in refreshes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from calibrator.report.words import Numbers

PUBLISHED = "published"
POSITION = "position "
"""Reasons that begin so say why a position kept its parameters, not why nothing was published."""
FORM = "form "
"""Reasons that begin so say which form was chosen."""
_NUMBER = re.compile(r"[-+]?\d[\d.,]*\d(?:e[-+]?\d+)?|[-+]?\d")
_ROWS = re.compile(r"n_eff ([\d.,]*\d), needs ([\d.,]*\d)")


def deciding(reasons: Sequence[str]) -> str:
    """The reason that decided: refreshes tell it first; lines of positions and of the form never decide.

    >>> deciding(["position 7: n_eff 2, needs 300", "form affine: better", "no gain on held-out rows"])
    'no gain on held-out rows'
    """
    others = [each for each in reasons if not each.startswith((POSITION, FORM))]
    return next(iter(others or reasons), "no reason given")


def unpublished(numbers: Numbers) -> list[dict[str, Any]]:
    """Deciding reasons of refreshes that published nothing, each refresh counted once.

    Reasons that differ in their numbers only are one; ``reason`` is as given last, ``last`` when that was.
    """
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for each in numbers["refreshes"]:
        if each["outcome"] in (None, PUBLISHED):
            continue
        reason = deciding(each["reasons"])
        entry = found.setdefault(
            (each["outcome"], _NUMBER.sub("#", reason)), {"outcome": each["outcome"], "count": 0}
        )
        entry.update(count=entry["count"] + 1, reason=reason, last=each["started"])
    return sorted(found.values(), key=lambda entry: (-entry["count"], entry["reason"]))


def refused_positions(numbers: Numbers) -> list[dict[str, Any]]:
    """Positions that a refresh left as they were: how often, when last, why then, and from how many rows."""
    found: dict[int, dict[str, Any]] = {}
    for refresh in numbers["refreshes"]:
        mine: dict[int, list[str]] = {}
        for reason in refresh["reasons"]:
            head, colon, why = reason.removeprefix(POSITION).partition(": ")
            if reason.startswith(POSITION) and colon and head.isdecimal():
                mine.setdefault(int(head), []).append(why)
        for position, why in mine.items():
            entry = found.setdefault(position, {"position": position, "count": 0})
            entry.update(
                count=entry["count"] + 1, last=refresh["started"], reasons=why, rows=refresh.get("rows")
            )
    return [found[position] for position in sorted(found)]


def kept_groups(numbers: Numbers) -> list[dict[str, Any]]:
    """Refused positions of one history: as often, last at the same refresh, the same kinds of reasons."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for each in refused_positions(numbers):
        kinds = tuple(_NUMBER.sub("#", reason) for reason in each["reasons"])
        groups.setdefault((each["count"], each["last"], kinds), []).append(each)
    latest = max((each["started"] for each in numbers["refreshes"]), default=None)
    return [
        {
            "positions": [each["position"] for each in mine],
            "count": count,
            "last": last,
            "latest": last == latest,
            "rows": mine[0]["rows"],
            "reason": _explained(
                "; ".join(merged(lines) for lines in zip(*(m["reasons"] for m in mine), strict=True))
            ),
            "share": _share(reason for each in mine for reason in each["reasons"]),
        }
        for (count, last, _), mine in groups.items()
    ]


def advice(numbers: Numbers, group: dict[str, Any]) -> str:
    """What brings the rows that positions lack; empty where that is not what they lack."""
    if group["share"] is None or not group["rows"]:
        return ""
    least, most = group["share"]
    times = f"{most:,.0f}" if round(least) == round(most) else f"{least:,.0f} to {most:,.0f}"
    explored = numbers["exploration"][-1]["explore"] if numbers.get("exploration") else None
    at = "" if explored is None else f"At {100 * explored:g} % exploration "
    text = (
        f"{at}a fit of them takes roughly {times} times the {group['rows']:,} rounds that the refresh had, "
        "as far as the half-life keeps them; raise “explore” in the settings to get there sooner."
    )
    return text[0].upper() + text[1:]


def merged(texts: Sequence[str]) -> str:
    """One line for lines that differ in their numbers only.

    >>> merged(["n_eff 29, needs 300", "n_eff 2, needs 300"])
    'n_eff 2 to 29, needs 300'
    """
    columns = iter(zip(*(_NUMBER.findall(text) for text in texts), strict=True))

    def together(_: re.Match[str]) -> str:
        values = sorted(set(next(columns)), key=lambda text: float(text.replace(",", "")))
        return values[0] if len(values) == 1 else f"{values[0]} to {values[-1]}"

    return _NUMBER.sub(together, texts[0])


def named_positions(positions: Sequence[int]) -> str:
    """Positions in words, neighbours as a range.

    >>> named_positions([2]), named_positions([5, 6, 7]), named_positions([1, 3, 4])
    ('position 2', 'positions 5 to 7', 'positions 1, 3, 4')
    """
    first, last = positions[0], positions[-1]
    if len(positions) == 1:
        return f"position {first}"
    if len(positions) > 2 and list(positions) == list(range(first, last + 1)):
        return f"positions {first} to {last}"
    return "positions " + ", ".join(map(str, positions))


def _explained(reason: str) -> str:
    return reason.replace("n_eff ", "effective rows for the fit ")


def _share(reasons: Iterable[str]) -> tuple[float, float] | None:
    """By how much the rows of a fit must grow, least and most; None where rows are not what is missing."""
    found = [
        float(needed.replace(",", "")) / max(float(had.replace(",", "")), 1.0)
        for reason in reasons
        for had, needed in _ROWS.findall(reason)
    ]
    return (min(found), max(found)) if found else None
