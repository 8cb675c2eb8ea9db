"""``dspark-calibrator`` as a real process, and what it wrote."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx

PATIENCE_SECONDS = 90.0


class ServiceProcess:
    """A command in its own process; ends with the ``with`` block."""

    def __init__(self, folder: Path, *arguments: str, **settings: object) -> None:
        self.log = folder / f"log-{time.monotonic_ns()}.txt"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("DSPARK_")}
        given = {
            "database_url": f"sqlite:///{folder / 'store.db'}",
            "bus_path": folder / "bus.db",
            **settings,
        }
        environment = {f"DSPARK_{name.upper()}": str(value) for name, value in given.items()}
        with self.log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "calibrator.cli", *arguments],
                stdout=file, stderr=subprocess.STDOUT, cwd=folder,
                env={**inherited, "PYTHONPATH": str(Path(__file__).parents[1]), **environment},
            )  # fmt: skip

    def __enter__(self) -> "ServiceProcess":
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def until(self, pattern: str) -> re.Match[str]:
        """Wait until the output holds a match."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (found := re.search(pattern, self.output())) is None:
            assert self.process.poll() is None, f"ended with {self.process.returncode}:\n{self.output()}"
            assert time.monotonic() < deadline, f"waited in vain for {pattern!r}:\n{self.output()}"
            time.sleep(0.05)
        return found

    def address(self) -> str:
        """Wait until it serves; its base URL."""
        address = self.until(r"serving (https?://\S+?)/ ")[1]
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            with contextlib.suppress(httpx.TransportError):
                httpx.get(f"{address}/healthz", verify=False)
                return address
            assert self.process.poll() is None, self.output()
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.05)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal; exit code."""
        self.process.send_signal(number)
        return self.process.wait(timeout=PATIENCE_SECONDS)

    def ended(self) -> int:
        """Wait for its own end; exit code."""
        return self.process.wait(timeout=PATIENCE_SECONDS)
