"""One operating-system process of the rig: started, killed, frozen, and never left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOG_TAIL_LINES = 30
DRAIN_SECONDS = 10.0
"""How long a process may take to end after SIGTERM."""

# The parent-death signal comes when the thread that started a process ends: one thread starts them all.
_spawner = ThreadPoolExecutor(1, "fault-rig")


class RigProcess:
    """A program of ours with a log file; it dies with the process that made it.

    Parameters
    ----------
    name
        For messages, and of the log file.
    arguments
        After ``python -m``.
    environment
        The whole environment.
    folder
        Where the log is kept, over all starts.
    """

    def __init__(
        self, name: str, arguments: Sequence[str], environment: Mapping[str, str], folder: Path
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._arguments = list(arguments)
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self.wanted = False
        """Started, and not told to end since."""
        self.starts = 0

    def __repr__(self) -> str:
        state = f"process {self.pid}" if self.running else f"ended with {self.exit_code}"
        return f"<{self.name}: {state}, started {self.starts} times>"

    @property
    def pid(self) -> int:
        """Process id of the last start."""
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it runs, frozen or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """How it ended, None while it runs."""
        return None if self._process is None else self._process.poll()

    def start(self, *more: str) -> None:
        """Start it (again), with more arguments if given."""
        assert not self.running, f"{self.name} runs already"
        setpriv = shutil.which("setpriv")
        assert setpriv is not None, "setpriv (util-linux) is needed to start processes that die with us"
        command = [setpriv, "--pdeathsig", "KILL", sys.executable, "-m", *self._arguments, *more]

        def popen() -> subprocess.Popen[bytes]:
            with self.log.open("ab") as log:
                log.write(f"--- start {self.starts + 1}\n".encode())
                log.flush()
                return subprocess.Popen(
                    command, cwd=ROOT, env=self._environment, stdin=subprocess.DEVNULL, stdout=log,
                    stderr=log, start_new_session=True,
                )  # fmt: skip

        self._process = _spawner.submit(popen).result()
        self.wanted = True
        self.starts += 1

    def kill(self) -> None:
        """SIGKILL, as the kernel's out-of-memory killer does."""
        self.wanted = False
        if self._process is not None and self.running:
            self._process.kill()
            self._process.wait(30)

    def terminate(self) -> int:
        """SIGTERM; returns the exit code. One that has not ended in time is a failure."""
        assert self._process is not None, f"{self.name} was not started"
        self.wanted = False
        self._process.terminate()
        return self.wait(DRAIN_SECONDS * 3)

    def wait(self, seconds: float = 120.0) -> int:
        """Wait for its end and return the exit code."""
        assert self._process is not None, f"{self.name} was not started"
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end\n{self.log_tail()}") from None
        self.wanted = False
        return code

    def freeze(self) -> None:
        """SIGSTOP: it holds what it holds and does nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def log_tail(self, lines: int = LOG_TAIL_LINES) -> str:
        """The last lines of the log, under its name."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join([f"=== {self!r}", *text.splitlines()[-lines:]])
