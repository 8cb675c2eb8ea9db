"""Times of the API: RFC 3339 or seconds since 1970 in, RFC 3339 in UTC out; ranges and their steps."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

from fastapi import Query
from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from calibrator.service.web.problems import Invalid

LATEST = 4_102_444_800.0
"""2100-01-01: nothing that this service measures lies beyond."""
MAX_POINTS = 200
"""Points that a range is cut into unless the caller names a step."""
MOST_POINTS = 2_000
"""Points that a caller may ask for."""
DEFAULT_SECONDS = 3600.0

_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?")


def parse_time(value: object) -> float:
    """Seconds since 1970 of an RFC 3339 time or of a number of seconds.

    Raises
    ------
    ValueError
        Not a time, without an offset, or outside 1970 to 2100.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("expected an RFC 3339 time such as 2026-11-29T10:00:00Z, or seconds since 1970")
    if isinstance(value, str):
        seconds = _parse_text(value.strip())
    else:
        # An integer of thousands of digits is no float.
        seconds = float(value) if abs(value) < 1e18 else math.inf
    if not (math.isfinite(seconds) and 0.0 <= seconds <= LATEST):
        raise ValueError("expected a time between 1970 and 2100")
    return seconds


def format_time(seconds: float) -> str:
    """RFC 3339 in UTC with milliseconds.

    >>> format_time(1_700_000_000.25)
    '2023-11-14T22:13:20.250Z'
    """
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


Instant = Annotated[
    float,
    BeforeValidator(parse_time),
    PlainSerializer(format_time, return_type=str),
    WithJsonSchema({"type": "string", "format": "date-time", "examples": ["2026-11-29T22:34:49.123Z"]}),
]
"""A field of a model: seconds since 1970 inside, RFC 3339 on the wire."""


@dataclass(frozen=True, slots=True)
class TimeRange:
    """``[start, end)`` in seconds since 1970, cut into windows of ``step`` seconds (None: not asked for)."""

    start: float
    end: float
    step: float | None = None

    def stepped(self, window_seconds: float, most: int = MAX_POINTS) -> float:
        """Length of a point: what the caller asked for, rounded up to whole windows, or what fits.

        Parameters
        ----------
        window_seconds
            Length of the shortest window that the store keeps.
        most
            Points that the range may have when the caller named no step.
        """
        wanted = self.step if self.step is not None else (self.end - self.start) / most
        return max(1, math.ceil(wanted / window_seconds - 1e-9)) * window_seconds


FromQuery = Annotated[
    str | None,
    Query(
        alias="from",
        max_length=64,
        description="Begin, RFC 3339 or seconds since 1970; an hour before the end when left out.",
        examples=["2026-11-29T21:00:00Z"],
    ),
]
ToQuery = Annotated[
    str | None,
    Query(
        alias="to",
        max_length=64,
        description="End (not included), RFC 3339 or seconds since 1970; now when left out.",
        examples=["2026-11-29T22:00:00Z"],
    ),
]
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def _seconds(given: object) -> object:
    """Read ``60s``, ``5m``, ``1h`` and ``1d``; whatever else is left to be judged as a number."""
    text = given.strip() if isinstance(given, str) else ""
    number, unit = text[:-1], _UNITS.get(text[-1:])
    if unit is None or not _NUMBER.fullmatch(number):
        return given
    return float(number) * unit


StepQuery = Annotated[
    float | None,
    BeforeValidator(_seconds),
    Query(
        gt=0,
        le=366 * 86400.0,
        description="Seconds per point, or with a unit (60s, 5m, 1h, 1d); chosen to give at most 200 points "
        "when left out.",
    ),
]


def time_range(
    start: str | None, end: str | None, step: float | None, now: float, seconds: float = DEFAULT_SECONDS
) -> TimeRange:
    """Read the range of a request.

    A range in the future is a range without rows. One that is empty or reversed is a mistake.

    Raises
    ------
    Invalid
        Naming the parameter.
    """
    last = _parameter("to", end) if end is not None else None
    first = _parameter("from", start) if start is not None else None
    if last is None:
        # A begin in the future without an end is a range that has not begun.
        last = now if first is None or first < now else min(first + seconds, LATEST)
    if first is None:
        first = max(0.0, last - seconds)
    if first >= last:
        raise Invalid(
            f"from: got {format_time(first)}, expected a time before to = {format_time(last)}",
            errors=[{"pointer": "query/from", "detail": "expected a time before to"}],
        )
    if step is not None and (last - first) / step > MOST_POINTS:
        raise Invalid(
            f"step: got {step:g} s, expected at least {(last - first) / MOST_POINTS:g} s for this range",
            errors=[{"pointer": "query/step", "detail": f"more than {MOST_POINTS} points"}],
        )
    return TimeRange(first, last, step)


def _parameter(name: str, text: str) -> float:
    try:
        return parse_time(text)
    except ValueError as error:
        raise Invalid(
            f"{name}: {error}", errors=[{"pointer": f"query/{name}", "detail": str(error)}]
        ) from error


def _parse_text(text: str) -> float:
    if _NUMBER.fullmatch(text):
        return float(text)
    try:
        # A plus sign in a query that was not escaped arrives as a space.
        moment = datetime.fromisoformat(re.sub(r" (\d\d:\d\d)$", r"+\1", text))
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ValueError(
            "expected an RFC 3339 time with an offset such as 2026-11-29T10:00:00Z, or seconds since 1970"
        )
    try:
        return moment.timestamp()
    except (OverflowError, ValueError) as error:
        raise ValueError("expected a time between 1970 and 2100") from error
