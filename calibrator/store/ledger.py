"""What became of every row that a process ever numbered: folded, lost in the ring, or dead-lettered."""

from __future__ import annotations

from typing import Any, Self

from calibrator.store.intervals import Interval, IntervalSet

MAX_INTERVALS = 256
"""Intervals kept per kind and boot; beyond it the oldest rows are settled, so that a row of the ledger
stays small however often a ring overflows."""


class RowLedger:
    """Row numbers of one boot (rounds, or steps), and the counters that follow from them.

    A row is in exactly one state: folded before dead-lettered before lost, so that rows that were given
    up and arrive after all are counted where they belong. Identity, at any time::

        next_sequence = folded + lost + dead_lettered + in_flight

    Rows below ``floor`` are settled: what had not arrived by then counts as lost, and what arrives
    still is discarded as a duplicate.
    """

    def __init__(self) -> None:
        self.floor = 0
        self.next_sequence = 0
        self.folded = 0
        self.lost = 0
        self.dead_lettered = 0
        self.duplicates = 0
        self._folded = IntervalSet()
        self._dead = IntervalSet()
        self._lost = IntervalSet()

    @classmethod
    def load(cls, intervals: dict[str, Any], counters: dict[str, int]) -> Self:
        """Build from what :meth:`intervals` and :meth:`counters` returned."""
        ledger = cls()
        ledger.floor = intervals.get("floor", 0)
        ledger._folded = IntervalSet(intervals.get("folded", ()))
        ledger._dead = IntervalSet(intervals.get("dead_lettered", ()))
        ledger._lost = IntervalSet(intervals.get("lost", ()))
        for name, value in counters.items():
            setattr(ledger, name, value)
        return ledger

    def intervals(self) -> dict[str, Any]:
        """Intervals by state, as JSON."""
        return {
            "floor": self.floor,
            "folded": self._folded.to_list(),
            "lost": self._lost.to_list(),
            "dead_lettered": self._dead.to_list(),
        }

    def counters(self) -> dict[str, int]:
        """Counters by name (:data:`calibrator.store.schema.LEDGER_COUNTERS`)."""
        return {
            "next_sequence": self.next_sequence,
            "folded": self.folded,
            "lost": self.lost,
            "dead_lettered": self.dead_lettered,
            "duplicates": self.duplicates,
        }

    @property
    def in_flight(self) -> int:
        """Rows before ``next_sequence`` of which nothing is known yet."""
        return self.next_sequence - self.folded - self.lost - self.dead_lettered

    def fold(self, start: int, count: int) -> list[Interval]:
        """Book ``count`` rows from ``start`` as folded; return the parts that were not folded before.

        The caller folds exactly these parts.
        """
        stop = start + count
        fresh = [gap for gap in self._folded.missing(max(start, self.floor), stop) if gap[1] > gap[0]]
        new = sum(b - a for a, b in fresh)
        self.duplicates += count - new
        self.folded += new
        for a, b in fresh:
            self._folded.add(a, b)
            self.dead_lettered -= self._dead.remove(a, b)
            self.lost -= self._lost.remove(a, b)
        self.next_sequence = max(self.next_sequence, stop)
        self._settle()
        return fresh

    def lose(self, start: int, stop: int) -> None:
        """Book rows as overwritten in the ring, unless they arrived after all."""
        for a, b in self._folded.missing(max(start, self.floor), stop):
            for c, d in self._dead.missing(a, b):
                self.lost += self._lost.add(c, d)
        self.next_sequence = max(self.next_sequence, stop)
        self._settle()

    def dead_letter(self, start: int, count: int) -> None:
        """Book rows of a refused message, unless they were folded from another one."""
        stop = start + count
        for a, b in self._folded.missing(max(start, self.floor), stop):
            self.lost -= self._lost.remove(a, b)
            self.dead_lettered += self._dead.add(a, b)
        self.next_sequence = max(self.next_sequence, stop)
        self._settle()

    def _settle(self) -> None:
        kinds = (self._folded, self._dead, self._lost)
        if max(len(kind) for kind in kinds) <= MAX_INTERVALS:
            return
        largest = max(kinds, key=len)
        floor = largest.starts()[len(largest) // 2]
        known = IntervalSet()
        for kind in kinds:
            for a, b in kind.to_list():
                known.add(a, b)
            kind.drop_below(floor)
        self.lost += sum(b - a for a, b in known.missing(self.floor, floor))
        self.floor = floor
