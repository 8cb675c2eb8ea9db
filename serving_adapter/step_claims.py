"""Which rounds a step row stands for, by their numbers, and which of them a message holds.

A step of the ring names its rounds: ``rows`` of them from number ``first`` on. Steps follow each other as
their rounds do, so their ends never fall. Rounds of no step lie between them where an engine reports some
without a step row, or where the step row was overwritten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


def steps_within(
    first: NDArray[Any], rows: NDArray[Any], begin: int, end: int, most: int, abandoned: bool = False
) -> tuple[int, int]:
    """Decide how many steps to send with rounds ``[begin, end)``, and up to which round.

    Parameters
    ----------
    first, rows
        Of the next steps, shape ``[steps]``; one more than ``most`` of them, where there are more.
    begin, end
        Rounds at hand.
    most
        Steps that a message may hold.
    abandoned
        Whether rounds that are not at hand will never come.

    Returns
    -------
    kept, reach
        The first ``kept`` steps end within ``reach``, and the next step begins there or is cut by it: that
        one only where it has more rounds than are at hand and none can be sent otherwise.
    """
    begins = first.astype(np.int64)
    ends = begins + rows.astype(np.int64)
    ended = len(ends) if abandoned else int(np.searchsorted(ends, end, side="right"))
    kept = min(ended, most)
    if kept == len(ends):
        return kept, end
    next_begins = int(begins[kept])
    if kept < ended:  # no more room: its rounds wait with it
        return kept, min(end, max(begin, next_begins))
    return kept, next_begins if begin < next_begins < end else end


@dataclass(frozen=True, slots=True)
class StepSpans:
    """Rounds ``[begins, ends)`` of consecutive steps; both of shape ``[steps]``."""

    begins: Integers
    ends: Integers

    @classmethod
    def of(cls, first: NDArray[Any], rows: NDArray[Any]) -> Self:
        """Make spans of the columns of the ring."""
        begins = first.astype(np.int64)
        return cls(begins, begins + rows.astype(np.int64))

    def gaps(self, begin: int, end: int) -> Integers:
        """Where among rounds ``[begin, end)`` a step begins right behind rounds of no step.

        A message is cut there: within one, rounds of no step come last.
        """
        full = self.ends > self.begins
        begins, ends = self.begins[full], self.ends[full]
        before = np.append(begin, ends[:-1])[: len(begins)]
        cut: Integers = begins[(begins > before) & (begins > begin) & (begins < end)]
        return cut

    def divide(self, stretches: Sequence[tuple[int, int]]) -> list[tuple[slice, NDArray[np.uint32]]]:
        """Divide the steps among stretches of rounds, and what is left: which steps, and their claims.

        A step goes with the stretch that reaches its end and claims those of its rounds that lie in there.

        Parameters
        ----------
        stretches
            First round and the one after the last of each message, ascending.

        Returns
        -------
        shares
            One per stretch, and one for the steps that end behind all of them: these claim nothing.
        """
        place = np.searchsorted(np.array([stop for _, stop in stretches], dtype=np.int64), self.ends)
        edges = np.searchsorted(place, np.arange(len(stretches) + 2)).tolist()
        shares = []
        for index in range(len(stretches) + 1):
            part = slice(edges[index], edges[index + 1])
            claims = np.zeros(part.stop - part.start, dtype=np.int64)
            if index < len(stretches):
                start = stretches[index][0]
                claims = np.maximum(0, self.ends[part] - np.maximum(self.begins[part], start))
            shares.append((part, claims.astype(np.uint32)))
        return shares
