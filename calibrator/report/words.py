"""Words that the parts of a report share: times, places, policies, and when something was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

Numbers = Mapping[str, Any]
Moment = Callable[[float | None], str]

POLICIES = {
    "identity": "raw head",
    "in force": "set in force at that refresh",
    "candidate": "set fitted by that refresh",
    "best monotone map": "best map of the confidences",
    "perfect foresight": "perfect foresight",
}
"""What the policies of a value table are called on a page."""

IN_FORCE = "in force"
_SHORT_SECONDS = 7_200.0


@dataclass(frozen=True, slots=True)
class Answer:
    """A question, the answer in a word or two, and what it rests on."""

    question: str
    word: str
    text: Sequence[str]


def moments_of(numbers: Numbers) -> Moment:
    """How to tell a time of this period in one cell of a table: with seconds when the period is short.

    >>> moments_of({"from": 0.0, "to": 600.0})(61.0)
    '00:01:01'
    >>> moments_of({"from": 0.0, "to": 200_000.0})(86_461.0)
    '01-02 00:01'
    """
    first, last = (datetime.fromtimestamp(numbers[name], UTC) for name in ("from", "to"))
    short = numbers["to"] - numbers["from"] <= _SHORT_SECONDS
    style = ("" if first.date() == last.date() else "%m-%d ") + ("%H:%M:%S" if short else "%H:%M")

    def tell(value: float | None) -> str:
        if value is None:
            return "–"
        at = datetime.fromtimestamp(value, UTC)
        day = "" if style.startswith("%m") or at.date() == first.date() else f"{at:%m-%d} "
        return day + at.strftime(style)

    return tell


def place(episode: Numbers) -> str:
    """Where an episode is, in words."""
    parts = [episode["segment"] or "all traffic"]
    for name, word in (
        ("position", "position"),
        ("load_regime", "load regime"),
        ("context_bucket", "context bucket"),
    ):
        if episode[name] is not None:
            parts.append(f"{word} {episode[name]}")
    return " ".join(parts)


def told(verdict: bool | None, good: str, bad: str) -> str:
    """Say what an interval shows."""
    return "no difference shown" if verdict is None else good if verdict else bad


def measured(numbers: Numbers, name: str) -> str:
    """When evidence that is shown of the newest refresh that has it was taken.

    >>> tried = [{"started": 60.0}, {"started": 120.0}, {"started": 180.0}]
    >>> numbers = {"from": 0.0, "to": 600.0, "refreshes": tried, "measured_at": {"value": 60.0}}
    >>> measured(numbers, "value")
    'at the refresh of 00:01:00, 2 refreshes before the latest'
    >>> measured(numbers | {"measured_at": {"value": 180.0}}, "value")
    'at the latest refresh'
    """
    at = (numbers.get("measured_at") or {}).get(name)
    if at is None:
        return "at the newest refresh that had it"
    later = sum(each["started"] > at for each in numbers["refreshes"])
    if not later:
        return "at the latest refresh"
    return (
        f"at the refresh of {moments_of(numbers)(at)}, {later} refresh{'es' * (later > 1)} before the latest"
    )
