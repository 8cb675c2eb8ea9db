"""Cron expressions as cron means them, on top of APScheduler's triggers, which count weekdays from Monday.

Five fields in UTC: minute, hour, day of month, month, day of week. A field is ``*`` or a list of numbers,
names (months and weekdays) and ranges, with ``/step`` after ``*`` or a range. Sunday is 0 or 7. When both
day fields are restricted, a day that fits either of them counts.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache

from apscheduler.triggers.cron import CronTrigger

MINUTE = 60.0
_DAY = 86_400.0
_HORIZON = 9 * 366 * _DAY
"""29 February comes every four years, or after eight around a century that is no leap year."""

_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_NAMES = {
    "month": {name: number for number, name in enumerate(_MONTHS, start=1)},
    "day of week": {name: number for number, name in enumerate(_WEEKDAYS)},
}
_FIELDS = (
    ("minute", 0, 59), ("hour", 0, 23), ("day of month", 1, 31), ("month", 1, 12), ("day of week", 0, 7),
)  # fmt: skip
_PART = re.compile(
    r"(?P<first>\*|[0-9]{1,4}|[a-z]{3})(?:-(?P<last>[0-9]{1,4}|[a-z]{3}))?(?:/(?P<step>[0-9]{1,4}))?"
)


class CronError(ValueError):
    """An expression that cannot be used; the message names the field and the value."""


class CronExpression:
    """When a cron expression fires.

    Parameters
    ----------
    text
        Five fields, such as ``*/5 * * * *``.

    Raises
    ------
    CronError
        It is none, or never fires.

    >>> CronExpression("30 2 * * 0").after(0.0)  # 1970-01-01 was a Thursday; Sunday is the 4th
    268200.0
    """

    def __init__(self, text: str) -> None:
        fields = text.lower().split()
        if len(fields) != len(_FIELDS):
            raise CronError(
                f"cron: got {text[:80]!r}, expected five fields: minute hour day-of-month month day-of-week"
            )
        minute, hour, day, month, weekday = (
            _numbers(field, *spec) for field, spec in zip(fields, _FIELDS, strict=True)
        )
        days = None if fields[2].startswith("*") else day
        weekdays = None if fields[4].startswith("*") else weekday
        # APScheduler wants both day fields to fit, cron either, unless one begins with an asterisk.
        pairs = [(day, None), (None, weekday)] if days and weekdays else [(day, weekday)]
        self.text = " ".join(fields)
        self._triggers = [_trigger(minute, hour, d, month, w) for d, w in pairs]
        if self.after(0.0) is None:
            raise CronError(f"cron: got {self.text!r}, expected a day that exists")

    def after(self, moment: float) -> float | None:
        """First time above ``moment`` (seconds since 1970) at which it fires, None if never."""
        return self._at_or_after(moment // MINUTE * MINUTE + MINUTE)

    def at_or_before(self, moment: float) -> float | None:
        """Last time up to ``moment`` at which it fired, None if not in the last nine years."""
        return _latest(self, int(moment // MINUTE))

    def fires_within(self, first: int, last: int) -> bool:
        """Whether it fires in one of these minutes since 1970, both ends included."""
        found = self._at_or_after(first * MINUTE)
        return found is not None and found <= last * MINUTE

    def _at_or_after(self, moment: float) -> float | None:
        start = datetime.fromtimestamp(moment, UTC)
        fires = (trigger.get_next_fire_time(None, start) for trigger in self._triggers)
        return min((fire.timestamp() for fire in fires if fire is not None), default=None)


@lru_cache(maxsize=256)
def parse_cron(text: str) -> CronExpression:
    """Parse an expression; see :class:`CronExpression`."""
    return CronExpression(text)


@lru_cache(maxsize=1024)
def _latest(expression: CronExpression, now: int) -> float | None:
    """Last minute up to ``now`` (both since 1970) in which it fired, as seconds."""
    # Triggers only look forwards, so the last one is found by halving.
    oldest, newest = max(0, now - int(_HORIZON // MINUTE)), now
    if not expression.fires_within(oldest, now):
        return None
    while oldest < newest:
        middle = (oldest + newest + 1) // 2
        if expression.fires_within(middle, now):
            oldest = middle
        else:
            newest = middle - 1
    return oldest * MINUTE


def _trigger(
    minute: list[int], hour: list[int], day: list[int] | None, month: list[int], weekday: list[int] | None
) -> CronTrigger:
    listed = [None if field is None else ",".join(map(str, field)) for field in (minute, hour, day, month)]
    names = None if weekday is None else ",".join(sorted({_WEEKDAYS[number % 7] for number in weekday}))
    return CronTrigger(
        minute=listed[0], hour=listed[1], day=listed[2], month=listed[3], day_of_week=names, timezone=UTC
    )


def _numbers(field: str, name: str, low: int, high: int) -> list[int]:
    chosen: set[int] = set()
    for part in field.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise CronError(f"cron, {name}: got {part[:40]!r}, expected *, a number, a range or a step")
        first, last, step = match["first"], match["last"], match["step"]
        if (first == "*" and last) or (step is not None and first != "*" and last is None) or step == "0":
            raise CronError(f"cron, {name}: got {part!r}, expected a step of 1 or more after * or a range")
        begin = low if first == "*" else _number(first, name, low, high)
        # 7 is Sunday again, and no eighth day that an asterisk could mean.
        end = min(high, 6) if first == "*" and name == "day of week" else high
        if first != "*":
            end = begin if last is None else _number(last, name, low, high)
        if name == "day of week" and begin > end == 0:
            end = 7  # fri-sun
        if begin > end:
            raise CronError(f"cron, {name}: got {part!r}, expected a range that rises")
        chosen.update(range(begin, end + 1, int(step or 1)))
    return sorted(chosen)


def _number(text: str, name: str, low: int, high: int) -> int:
    value = _NAMES.get(name, {}).get(text) if text.isalpha() else int(text)
    if value is None or not low <= value <= high:
        raise CronError(f"cron, {name}: got {text!r}, expected {low} to {high}")
    return value
