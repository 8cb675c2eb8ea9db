"""The numbers of a report as other programs read them: times as in the REST API."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from calibrator.report.outcomes import unpublished
from calibrator.report.words import Numbers

TIMES = frozenset(
    {
        "from",
        "to",
        "at",
        "started",
        "finished",
        "started_at",
        "alarmed_at",
        "ended_at",
        "published_at",
        "last",
        "before",
    }
)
"""Keys whose numbers are seconds since 1970, or lists of such numbers."""
GROUPS = frozenset({"measured_at"})
"""Keys whose values are all times."""


def machine_numbers(numbers: Numbers) -> dict[str, Any]:
    """Times in RFC 3339, and the reasons why refreshes published nothing, counted in refreshes.

    >>> _told("at", [0.0, 1.5])
    ['1970-01-01T00:00:00.000Z', '1970-01-01T00:00:01.500Z']
    """
    found = {**numbers, "not_published": unpublished(numbers)}
    return {name: _told(name, value) for name, value in found.items()}


def _told(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _told("at" if name in GROUPS else key, each) for key, each in value.items()}
    if isinstance(value, list):
        return [_told(name, each) for each in value]
    if name in TIMES and isinstance(value, int | float) and not isinstance(value, bool):
        return datetime.fromtimestamp(value, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value
