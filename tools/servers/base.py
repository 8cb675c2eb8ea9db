"""What every server has in common: a folder, a port, one process, and the signals that tests send to it."""

import abc
import atexit
import fcntl
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, ClassVar, Self

import psutil

INSTALL = "tools/servers/install.sh"
FOLDER_PREFIX = "dspark-server-"
# Below Linux's ephemeral ports. A client that keeps dialling a stopped server whose port is ephemeral may be
# given that very port as its own source and connect to itself, and the server can then never return to it.
PORTS = range(15_000, 32_000)
LOG_TAIL_LINES = 40

_given_ports: set[int] = set()
_spawners: dict[int, ThreadPoolExecutor] = {}
_random = random.SystemRandom()


class ServerUnavailable(RuntimeError):  # noqa: N818 - named for what it says
    """This machine cannot have the server. Tests fail with it: they do not skip."""

    def __init__(self, kind: str, why: str, variable: str | None = None) -> None:
        existing = f", or set {variable} to one that runs" if variable else ""
        super().__init__(f"{kind} is unavailable: {why}. To get it, run {INSTALL}{existing}.")


class ServerFailed(RuntimeError):  # noqa: N818
    """The server is installed but did not start, or did not stop; the message ends with its log."""


class Server(abc.ABC):
    """One server process with a private folder and fixed loopback ports.

    `stop` and `kill` keep port and data, so that `start` or `restart` brings the same server back. `close`
    (or leaving the ``with`` block) also removes the folder. The process dies with the Python process that
    started it, however that ends.
    """

    kind: ClassVar[str]
    variable: ClassVar[str | None] = None
    """Environment variable that names an existing server."""
    start_timeout: ClassVar[float] = 90.0
    stop_timeout: ClassVar[float] = 30.0
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    user: str | None = None
    """Account that runs the server when we are root; None for our own."""

    def __init__(self) -> None:
        self.host = "127.0.0.1"
        self.port = free_port()
        self._folder: Path | None = None
        self._lock: IO[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    # --- what a server defines

    def _prepare(self) -> None:  # noqa: B027 - a server without configuration has nothing to do here
        """Write configuration and storage into the fresh, empty folder."""

    @abc.abstractmethod
    def _command(self) -> Sequence[str]:
        """Program and arguments."""

    @abc.abstractmethod
    def _probe(self) -> None:
        """Raise unless the server answers a real request."""

    # --- what users call

    @property
    def folder(self) -> Path:
        """The private folder; it exists from the first start until `close`."""
        if self._folder is None:
            raise ServerFailed(f"{self.kind} was not started")
        return self._folder

    @property
    def log(self) -> Path:
        """Everything the server has said, over all its starts."""
        return self.folder / "server.log"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ServerFailed(f"{self.kind} was not started")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start the server, or start it again, and wait until it is usable."""
        if self.running:
            raise ServerFailed(f"{self.kind} is already running as process {self.pid}")
        if self._folder is None:
            self._create_folder()
            try:
                self._prepare()
            except BaseException:
                self.close()
                raise
        self._process = self._spawn(self._command())
        try:
            self._wait_until_usable()
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self) -> None:
        """Ask the server to finish, and wait; kill it when it does not finish in time."""
        if self._process is None or not self.running:
            return
        self.resume()
        self._process.send_signal(self.stop_signal)
        try:
            self._process.wait(self.stop_timeout)
        except subprocess.TimeoutExpired:
            tail = self.log_tail()
            self.kill()
            raise ServerFailed(f"{self.kind} did not stop within {self.stop_timeout:.0f} s\n{tail}") from None

    def kill(self) -> None:
        """Send SIGKILL to the server and all its children, as a crash would end it."""
        tree = self._tree()
        for process in tree:
            _signal(process, signal.SIGKILL)
        if self._process is not None:
            self._process.wait(10)
        psutil.wait_procs(tree[1:], timeout=10)

    def restart(self) -> Self:
        """Stop the server unless it is down already, and start it on the same port with the same folder."""
        self.stop()
        return self.start()

    def pause(self) -> None:
        """Freeze the server: connections stay open and nothing answers."""
        for process in self._tree():
            _signal(process, signal.SIGSTOP)

    def resume(self) -> None:
        """Undo `pause`."""
        for process in self._tree():
            _signal(process, signal.SIGCONT)

    def close(self) -> None:
        """Stop the server and remove its folder."""
        try:
            self.stop()
        finally:
            self._remove_folder()

    def log_tail(self) -> str:
        """The last lines of the log."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join(lines[-LOG_TAIL_LINES:])

    def __enter__(self) -> Self:
        return self if self.running else self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = f"process {self.pid}" if self.running else "not running"
        return f"<{type(self).__name__} {self.host}:{self.port}, {state}>"

    # --- how it is done

    def _unavailable(self, why: str) -> ServerUnavailable:
        return ServerUnavailable(self.kind, why, self.variable)

    def _program(self, *names: str) -> str:
        """The first of the programs that is installed."""
        for name in names:
            if found := shutil.which(name):
                return found
        raise self._unavailable(f"there is no {' or '.join(names)} on PATH")

    def _as_user(self) -> list[str]:
        if self.user is None or os.geteuid() != 0:
            return []
        return [f"--reuid={self.user}", f"--regid={self.user}", "--init-groups"]

    def _run(self, *command: str) -> None:
        """Run a preparing command to its end, its output in the log."""
        with self.log.open("ab") as log:
            code = subprocess.call(
                [self._program("setpriv"), *self._as_user(), *command],
                cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        if code != 0:
            raise ServerFailed(f"{self.kind}: {Path(command[0]).name} exited with {code}\n{self.log_tail()}")

    def _spawn(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        # The parent-death signal comes when the thread that forked ends, not the process: so one thread that
        # lives as long as the process starts every server. setpriv sets it after changing the user, which
        # would clear it, and needs no Python code between fork and exec.
        wrapped = [self._program("setpriv"), *self._as_user(), "--pdeathsig", "KILL", *command]

        def popen() -> subprocess.Popen[bytes]:
            with self.log.open("ab") as log:
                return subprocess.Popen(
                    wrapped, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    start_new_session=True,  # Ctrl-C in a terminal is for us alone: we then stop the servers
                )  # fmt: skip

        spawner = _spawners.setdefault(os.getpid(), ThreadPoolExecutor(1, "server-spawner"))
        return spawner.submit(popen).result()

    def _wait_until_usable(self) -> None:
        deadline = time.monotonic() + self.start_timeout
        while True:
            try:
                self._probe()
            except Exception as error:
                if not self.running:
                    code = self._process.returncode if self._process else None
                    raise ServerFailed(
                        f"{self.kind} exited with {code} while starting\n{self.log_tail()}"
                    ) from None
                if time.monotonic() > deadline:
                    raise ServerFailed(
                        f"{self.kind} was not usable within {self.start_timeout:.0f} s: "
                        f"{error}\n{self.log_tail()}"
                    ) from error
                time.sleep(0.05)
            else:
                return

    def _tree(self) -> list[psutil.Process]:
        """The running process and its descendants, the process first."""
        if self._process is None or not self.running:
            return []
        root = psutil.Process(self._process.pid)
        return [root, *root.children(recursive=True)]

    def _create_folder(self) -> None:
        _remove_abandoned_folders()
        self._folder = Path(tempfile.mkdtemp(prefix=f"{FOLDER_PREFIX}{self.kind.lower()}-"))
        self._lock = (self._folder / ".lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        if self._as_user() and self.user is not None:
            account = pwd.getpwnam(self.user)
            os.chown(self._folder, account.pw_uid, account.pw_gid)
        atexit.register(self._remove_folder)

    def _remove_folder(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        atexit.unregister(self._remove_folder)


def free_port() -> int:
    """A loopback port that nothing listens on and that this process has not given out before."""
    for _ in range(1000):
        port = _random.choice(PORTS)
        if port in _given_ports:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _given_ports.add(port)
        return port
    raise ServerFailed(f"no free loopback port between {PORTS.start} and {PORTS.stop}")


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)


def _remove_abandoned_folders() -> None:
    """Remove folders of runs that were killed: the lock in a folder goes with the process that held it."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"):
        try:
            if time.time() - folder.stat().st_mtime < 60:  # its owner may be about to lock it
                continue
            with (folder / ".lock").open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # in use, somebody else's, or gone already
            continue
