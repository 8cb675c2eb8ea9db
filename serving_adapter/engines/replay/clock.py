"""Engine time for a replay faster than real time: rows are stamped as the engine lived them."""

from __future__ import annotations

import time
from collections.abc import Callable


class EngineClock:
    """Reads engine time for stamps; waits and measures in real time.

    Parameters
    ----------
    elapsed
        Seconds of engine time since its start, e.g. ``lambda: engine.ledger.seconds``.
    start
        What the clock read then, in seconds since 1970; left out, now.
    """

    def __init__(self, elapsed: Callable[[], float] | None = None, start: float | None = None) -> None:
        self._elapsed = elapsed or (lambda: 0.0)
        self._start = time.time() if start is None else start

    def follow(self, elapsed: Callable[[], float]) -> None:
        """Take engine time from there from now on."""
        self._elapsed = elapsed

    def catch_up(self, now: float) -> None:
        """Jump forward to ``now`` and go on from there; a clock that is ahead stays."""
        self._start += max(0.0, now - self.now())

    def now(self) -> float:
        """Engine time in seconds since 1970."""
        return self._start + self._elapsed()

    def monotonic(self) -> float:
        """Real seconds that never go back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Let real time pass."""
        time.sleep(seconds)
