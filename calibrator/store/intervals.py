"""Sets of whole numbers as sorted, disjoint half-open intervals: which rows of a boot are accounted for."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

Interval = tuple[int, int]


class IntervalSet:
    """Half-open intervals ``[start, stop)``.

    >>> rows = IntervalSet([(0, 10)])
    >>> rows.missing(5, 15)
    [(10, 15)]
    >>> rows.add(5, 15)
    5
    >>> rows.to_list()
    [[0, 15]]
    """

    __slots__ = ("_starts", "_stops")

    def __init__(self, intervals: Iterable[Iterable[int]] = ()) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        for interval in intervals:
            start, stop = interval
            self.add(start, stop)

    def __len__(self) -> int:
        """Number of intervals."""
        return len(self._starts)

    def to_list(self) -> list[list[int]]:
        """Intervals in order, as JSON holds them."""
        return [[a, b] for a, b in zip(self._starts, self._stops, strict=True)]

    def missing(self, start: int, stop: int) -> list[Interval]:
        """Parts of ``[start, stop)`` that are not in the set."""
        gaps: list[Interval] = []
        at = start
        for i in range(bisect_right(self._stops, start), len(self._starts)):
            if self._starts[i] >= stop:
                break
            if at < self._starts[i]:
                gaps.append((at, self._starts[i]))
            at = self._stops[i]
        if at < stop:
            gaps.append((at, stop))
        return gaps

    def add(self, start: int, stop: int) -> int:
        """Include ``[start, stop)``; return how many numbers are new."""
        if stop <= start:
            return 0
        added = sum(b - a for a, b in self.missing(start, stop))
        first, last = bisect_left(self._stops, start), bisect_right(self._starts, stop)
        if first < last:
            start, stop = min(start, self._starts[first]), max(stop, self._stops[last - 1])
        self._starts[first:last] = [start]
        self._stops[first:last] = [stop]
        return added

    def remove(self, start: int, stop: int) -> int:
        """Take ``[start, stop)`` out; return how many numbers were in the set."""
        first, last = bisect_right(self._stops, start), bisect_left(self._starts, stop)
        if first >= last:
            return 0
        kept: list[Interval] = []
        removed = 0
        for a, b in zip(self._starts[first:last], self._stops[first:last], strict=True):
            removed += min(b, stop) - max(a, start)
            if a < start:
                kept.append((a, start))
            if b > stop:
                kept.append((stop, b))
        self._starts[first:last] = [a for a, _ in kept]
        self._stops[first:last] = [b for _, b in kept]
        return removed

    def drop_below(self, floor: int) -> None:
        """Forget everything below ``floor``."""
        if self._starts and self._starts[0] < floor:
            self.remove(self._starts[0], floor)

    def starts(self) -> list[int]:
        """First number of every interval."""
        return list(self._starts)
