"""A running test that holds at every time, however often anyone looks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]
Mask = NDArray[np.bool_]

BETS: Float = np.array([0.15, 0.35, 0.6, 0.9])
"""Stakes; their processes are averaged, so that none has to be chosen."""


@dataclass(frozen=True, slots=True, eq=False)
class SignTest:
    """Evidence that an outcome happens in more than half of the steps.

    ``M <- max(1, M) * (1 + stake * (+1 or -1))`` for each stake, averaged. As long as each outcome has,
    given the past, a probability of at most one half, the expected number of steps until ``M`` first
    reaches ``threshold`` is at least ``threshold``: with a million, one false alarm in a million steps.

    Parameters
    ----------
    log_evidence
        ``log max(1, M)`` per stake.
    since
        Number of the step at which each process last stood at 1.
    """

    log_evidence: Float
    since: NDArray[np.int64]

    @classmethod
    def start(cls, number: int) -> Self:
        """No evidence, before step ``number``."""
        return cls(np.zeros(len(BETS)), np.full(len(BETS), number, dtype=np.int64))

    def extend(self, outcomes: Mask, number: int) -> tuple[SignTest, Float, NDArray[np.int64]]:
        """Take in outcomes of consecutive steps.

        Returns
        -------
        The state after them, ``log M`` after each of them, and the step at which the leading process
        began to rise: both of shape ``[steps]``.

        >>> _, evidence, began = SignTest.start(0).extend(np.repeat([False, True], [5, 20]), 0)
        >>> bool(evidence[-1] > 5.0), int(began[-1])
        (True, 5)
        """
        steps = len(outcomes)
        if steps == 0:
            return self, np.zeros(0), np.zeros(0, dtype=np.int64)
        gain = np.where(outcomes[:, None], np.log1p(BETS), np.log1p(-BETS))
        path = self.log_evidence + np.vstack([np.zeros(len(BETS)), np.cumsum(gain, axis=0)])
        floor = np.minimum(np.minimum.accumulate(path, axis=0), 0.0)
        kept = path - floor  # log max(1, M) before each step and after the last
        raw = kept[:-1] + gain
        # A floor that moves in a step means that the process stands at 1 after it.
        numbers = number + np.arange(steps)
        resets = np.where(kept[1:] <= 0, numbers[:, None] + 1, -1)
        since = np.maximum.accumulate(np.vstack([self.since, resets]), axis=0)
        leading = since[np.arange(steps), np.argmax(raw, axis=1)]
        top = raw.max(axis=1)
        evidence = top + np.log(np.exp(raw - top[:, None]).mean(axis=1))
        return SignTest(kept[-1], since[-1]), evidence, leading
