"""Ranges of time cut into points that the store can answer by one query."""

from __future__ import annotations

import math
from dataclasses import dataclass

from calibrator.store.windows import HOUR

MAX_POINTS = 200
"""Points of a range when nobody named a step: as many as a chart can show."""

MINUTES_UP_TO = 6 * HOUR
"""Longer ranges are cut into whole hours unless asked otherwise: their tables are sixty times smaller."""


@dataclass(frozen=True, slots=True)
class Steps:
    """``[start, end)`` in whole seconds since 1970, in points of ``step`` seconds aligned to 1970."""

    start: int
    end: int
    step: int

    @property
    def starts(self) -> range:
        """Where every point begins."""
        return range(self.start, self.end, self.step)

    @property
    def count(self) -> int:
        """Number of points."""
        return len(self.starts)


def cut_range(start: float, end: float, step: float | None, window_seconds: float) -> Steps:
    """Cut a range into points; the first and the last may reach beyond it.

    Parameters
    ----------
    start, end
        Seconds since 1970.
    step
        Seconds per point that were asked for, rounded up to whole windows; None: at most
        :data:`MAX_POINTS` points.
    window_seconds
        Length of the shortest window that the store keeps.

    >>> cut_range(90, 3690, None, 60)
    Steps(start=60, end=3720, step=60)
    >>> cut_range(0, 30 * 86400, None, 60).step // 3600
    4
    """
    window = max(1, math.ceil(window_seconds))
    if step is not None:
        width = _up(step, window)
    else:
        seconds = end - start
        width = _up(seconds / MAX_POINTS, window if seconds <= MINUTES_UP_TO else _up(HOUR, window))
    first = math.floor(start / width) * width
    return Steps(first, max(math.ceil(end / width) * width, first + width), width)


def whole_hours(start: float, end: float) -> tuple[int, int]:
    """The whole hours that hold a range.

    >>> whole_hours(3700, 7100)
    (3600, 7200)
    """
    return math.floor(start / HOUR) * HOUR, math.ceil(end / HOUR) * HOUR


def _up(value: float, unit: int) -> int:
    return max(1, math.ceil(value / unit - 1e-9)) * unit
