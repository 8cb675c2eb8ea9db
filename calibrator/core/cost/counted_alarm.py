"""The alarm of step costs, fed with counts: what is left of steps once collectors have added them up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from calibrator.core.cost.drift import Direction
from calibrator.core.cost.eprocess import BETS

Float = NDArray[np.float64]

DIRECTIONS: tuple[Direction, ...] = ("slower", "faster")
LOG_END = float(np.log(1e3))
"""Evidence for the end of an episode: to be wrong about it costs less than a false alarm."""


@dataclass(frozen=True, slots=True, eq=False)
class CountedAlarm:
    """:class:`calibrator.core.cost.CostAlarm` with one look per batch of counts.

    ``M <- max(1, M) * (1 + stake)**hits * (1 - stake)**misses`` for each stake, averaged: one look at the
    evidence of many steps multiplies fair bets like many looks do, so n looks raise a false alarm with
    probability at most ``n / threshold``, and there are at most as many looks as steps.

    Parameters
    ----------
    log_evidence
        ``log max(1, M)`` of both directions and of the curve being right again, shape ``[3, stakes]``.
    since
        When each process of both directions last stood at 1, shape ``[2, stakes]``.
    open
        Direction of the episode in progress, None without one, and ``began`` when its evidence began to
        rise.

    >>> alarm = CountedAlarm.start(0.0).extend(40, slower=40, faster=0, at=10.0, log_threshold=15.0)
    >>> alarm.open, alarm.began
    ('slower', 0.0)
    >>> alarm.extend(60, slower=2, faster=3, at=20.0, log_threshold=15.0).open is None
    True
    """

    log_evidence: Float
    since: Float
    open: Direction | None = None
    began: float = 0.0

    @classmethod
    def start(cls, at: float) -> Self:
        """No evidence at that time."""
        return cls(np.zeros((3, len(BETS))), np.full((2, len(BETS)), at))

    @property
    def quiet(self) -> bool:
        """Nothing is going on and nothing is suspected."""
        return self.open is None and not bool((self.log_evidence[:2] > 0).any())

    def extend(self, steps: int, slower: int, faster: int, at: float, log_threshold: float) -> CountedAlarm:
        """Take in steps of which so many were slower, or faster, than predicted beyond the tolerance.

        Parameters
        ----------
        at
            Time of this look.
        log_threshold
            Natural logarithm of the evidence for an alarm in one direction.
        """
        if steps <= 0:
            return self
        if self.open is not None:
            wrong = slower if self.open == "slower" else faster
            gained = self.log_evidence[2] + _gain(steps, steps - wrong)
            if _log_mean(gained) >= LOG_END:
                return CountedAlarm.start(at)
            log_evidence = self.log_evidence.copy()
            log_evidence[2] = np.maximum(gained, 0.0)
            return CountedAlarm(log_evidence, self.since, self.open, self.began)
        gained = self.log_evidence[:2] + np.stack([_gain(steps, slower), _gain(steps, faster)])
        means = [_log_mean(each) for each in gained]
        side = int(np.argmax(means))
        if means[side] >= log_threshold:
            began = float(self.since[side, int(np.argmax(gained[side]))])
            return CountedAlarm(np.zeros_like(self.log_evidence), self.since, DIRECTIONS[side], began)
        log_evidence = np.concatenate([np.maximum(gained, 0.0), np.zeros((1, len(BETS)))])
        return CountedAlarm(log_evidence, np.where(gained <= 0.0, at, self.since))

    def to_builtins(self) -> dict[str, Any]:
        """As numbers and lists, for JSON."""
        return {
            "log_evidence": self.log_evidence.tolist(),
            "since": self.since.tolist(),
            "open": self.open,
            "began": self.began,
        }

    @classmethod
    def from_builtins(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild from :meth:`to_builtins`; exact."""
        return cls(
            np.array(data["log_evidence"], dtype=np.float64),
            np.array(data["since"], dtype=np.float64),
            data["open"],
            float(data["began"]),
        )


def _gain(steps: int, hits: int) -> Float:
    gain: Float = hits * np.log1p(BETS) + (steps - hits) * np.log1p(-BETS)
    return gain


def _log_mean(log_values: Float) -> float:
    top = float(log_values.max())
    return top + float(np.log(np.exp(log_values - top).mean()))
