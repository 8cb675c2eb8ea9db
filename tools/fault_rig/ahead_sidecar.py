"""The sidecar of a pod whose clock is wrong: ``python -m tools.fault_rig.ahead_sidecar SECONDS``."""

from __future__ import annotations

import signal
import sys
import threading

from serving_adapter.clock import SystemClock
from serving_adapter.settings import load_settings
from serving_adapter.sidecar import Sidecar


class AheadClock(SystemClock):
    """The machine's clock and so many seconds more."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def now(self) -> float:
        """Seconds since 1970, as this pod believes."""
        return super().now() + self._seconds


def main() -> int:
    """Run until SIGTERM."""
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    sidecar = Sidecar(load_settings(), clock=AheadClock(float(sys.argv[1])))
    sidecar.start()
    ended.wait()
    return 0 if sidecar.stop() else 1


if __name__ == "__main__":
    sys.exit(main())
