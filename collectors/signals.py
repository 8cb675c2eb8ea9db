"""SIGTERM and SIGINT as an event: the loops finish what they hold, and return."""

from __future__ import annotations

import signal
import threading
from types import FrameType


def stop_on_signals(stop: threading.Event) -> None:
    """Set ``stop`` at the first SIGTERM or SIGINT; a second one has its usual effect.

    Call from the main thread.
    """

    def handle(number: int, _frame: FrameType | None) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)
