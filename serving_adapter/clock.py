"""The system clock and one that is set by hand."""

from __future__ import annotations

import time


class SystemClock:
    """The clock of the machine, in UTC."""

    def now(self) -> float:
        """Seconds since 1970."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Block this thread."""
        time.sleep(seconds)


class ManualClock:
    """A clock that moves only when told: for tests and for replays faster than real time."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self._now = now
        self._start = now

    def now(self) -> float:
        """Seconds since 1970."""
        return self._now

    def monotonic(self) -> float:
        """Seconds since this clock was made."""
        return self._now - self._start

    def sleep(self, seconds: float) -> None:
        """Move the clock."""
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Move the clock forward by that many seconds."""
        if seconds < 0:
            raise ValueError(f"seconds: got {seconds}, expected a time that does not go back")
        self._now += seconds
