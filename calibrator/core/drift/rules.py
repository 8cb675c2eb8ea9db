"""What counts as drift, and how sure an alarm must be."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]

STAKES = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Stakes of the bets; their processes are averaged, so that none has to be chosen.

A gap of g points is found fastest with a stake near g over the variance of the label, 0.1 to 0.25: these
suit gaps from one point to twenty. Changing them means folding afresh: stored evidence is a sum over them.
"""

PROCESSES = 2 * len(STAKES)
"""Processes per stream: every stake on labels above the prediction, then every stake on labels below."""

ABOVE, BELOW = 1, -1


@dataclass(frozen=True, slots=True)
class DriftRules:
    """When to raise an alarm.

    Parameters
    ----------
    tolerance
        Gap between mean prediction and mean label that is no drift, in probability. It has a say when
        rows are folded: stored evidence belongs to one tolerance.
    acceptance_tolerance
        The same for the level of acceptance against its reference.
    false_alarm_rounds
        A stream whose gap stays inside the tolerance raises a false alarm in n rounds with probability at
        most ``n / false_alarm_rounds``, however often anyone looks.
    traffic_index
        Population stability index from which the traffic counts as moved; 0.25 is the common rule.
    traffic_distance
        Kolmogorov-Smirnov distance that is needed besides.

    >>> round(DriftRules(false_alarm_rounds=1e6).log_threshold(streams=7), 1)
    15.8
    """

    tolerance: float = 0.01
    acceptance_tolerance: float = 0.02
    false_alarm_rounds: float = 1e7
    traffic_index: float = 0.25
    traffic_distance: float = 0.1

    def __post_init__(self) -> None:
        for name in ("tolerance", "acceptance_tolerance"):
            value = getattr(self, name)
            if not 0.0 <= value <= 0.2:
                raise ValueError(f"{name}: got {value}, expected a probability from 0 to 0.2")
        if not self.false_alarm_rounds >= 1.0:
            raise ValueError(f"false_alarm_rounds: got {self.false_alarm_rounds}, expected at least 1")

    def log_threshold(self, streams: int = 1) -> float:
        """Natural logarithm of the evidence for an alarm when so many streams are watched together."""
        return math.log(self.false_alarm_rounds * max(1, streams))
