"""Named memory that engine and sidecar share: a file on tmpfs, mapped by both.

The same files as ``multiprocessing.shared_memory`` makes, without its resource tracker: that one removes
a segment when any process that ever attached to it dies, which is the very moment it must survive.
Owners are told apart by open-file-description locks, which the kernel releases however a process ends and
which hold across the process namespaces of a pod's containers, where process ids mean nothing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import platform
import struct
import tempfile
import threading
import uuid
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where shm_open(3) puts its files
_MODE = 0o660  # the sidecar's container may run as another user of the same group
# struct flock: type, whence, start, length, process (0 for open-file-description locks).
_FLOCK = "hhqqi0q"


STORES_MAY_PASS = platform.machine().lower() not in ("x86_64", "amd64")
"""Whether another core may see two stores in another order than they were made in."""


class SharedMemoryError(OSError):
    """A segment that is missing, too small, or not one of ours."""


def segment_path(name: str) -> Path:
    """Path of a segment: a plain name lies in ``/dev/shm``, anything with a slash is a path.

    Containers of one pod do not share ``/dev/shm``; they share a mounted in-memory volume, hence paths.

    Raises
    ------
    ValueError
        For a name that cannot be a file.
    """
    if not name or "\0" in name or name.endswith("/") or name in (".", ".."):
        raise ValueError(f"ring: got {name!r}, expected a name such as 'dspark' or a path")
    if "/" in name:
        return Path(name)
    return (_SHARED_MEMORY if _SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())) / name


class Fence:
    """Orders this thread's loads and stores before the call against those after it.

    x86-64 keeps stores in order and loads in order by itself (TSO). ARMv8 does not: there it takes the
    store-release of the unlock followed by the load-acquire of the lock, which the architecture orders
    against each other. A compiler cannot move accesses across either call.
    """

    __slots__ = ("_acquire", "_release")

    def __init__(self) -> None:
        lock = threading.Lock()
        lock.acquire()
        self._release, self._acquire = lock.release, lock.acquire

    def __call__(self) -> None:
        """Let nothing pass, in either direction."""
        self._release()
        self._acquire()


def locked(fd: int, owner: int) -> bool:
    """Whether the lock numbered ``owner`` of an open segment is held, through another descriptor.

    A descriptor that may only read will do.
    """
    held, kind = _lock(fd, fcntl.F_OFD_GETLK, owner)
    return held and kind != fcntl.F_UNLCK


def _lock(fd: int, command: int, start: int, kind: int = fcntl.F_WRLCK, length: int = 1) -> tuple[bool, int]:
    request = struct.pack(_FLOCK, kind, os.SEEK_SET, start, length, 0)
    try:
        answer = fcntl.fcntl(fd, command, request)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False, fcntl.F_WRLCK
        raise
    return True, int(struct.unpack(_FLOCK, answer)[0])


class Segment:
    """A mapped file. ``words`` are its 8-byte words: one aligned load or store each, never torn.

    Parameters
    ----------
    path
        Where the file lies.
    fd
        Open descriptor, owned from here on; locks live as long as it does.
    size
        Bytes mapped.
    """

    def __init__(self, path: Path, fd: int, size: int) -> None:
        self.path = path
        self.size = size
        self._fd = fd
        self.memory = mmap.mmap(fd, size)
        self.words = memoryview(self.memory).cast("Q")

    @classmethod
    def create(cls, path: Path, size: int) -> Segment:
        """Make an unpublished segment of zeros beside ``path``; :meth:`publish` gives it that name.

        Raises
        ------
        OSError
            Among others when the memory is not there: pages are taken now, because a page that cannot
            be had later would kill the engine with SIGBUS.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.new-{uuid.uuid4().hex}")
        fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
        try:
            os.fchmod(fd, _MODE)
            os.posix_fallocate(fd, 0, size)
            return cls(draft, fd, size)
        except BaseException:
            os.close(fd)
            draft.unlink(missing_ok=True)
            raise

    @classmethod
    def attach(cls, path: Path, minimum: int = 8) -> Segment:
        """Map an existing segment.

        Raises
        ------
        FileNotFoundError
            There is none.
        SharedMemoryError
            It is smaller than ``minimum`` bytes.
        """
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            if size < minimum or size % 8:
                raise SharedMemoryError(f"{path}: got {size} bytes, expected at least {minimum}")
            return cls(path, fd, size)
        except BaseException:
            os.close(fd)
            raise

    def publish(self, path: Path) -> None:
        """Give the finished segment its name.

        Raises
        ------
        FileExistsError
            The name is taken; nothing was replaced.
        """
        os.link(self.path, path)
        self.path.unlink()
        self.path = path

    def is_at(self, path: Path) -> bool:
        """Whether ``path`` names this very segment now."""
        try:
            there = path.stat()
        except FileNotFoundError:
            return False
        here = os.fstat(self._fd)
        return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)

    def array(self, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """View of the memory as an array."""
        count = int(np.prod(shape))
        return np.frombuffer(self.memory, dtype=dtype, count=count, offset=offset).reshape(shape)

    def lock(self, owner: int) -> bool:
        """Take the lock numbered ``owner`` if nobody holds it; released by :meth:`close` or death."""
        return self._lock(fcntl.F_OFD_SETLK, owner)[0]

    def is_locked(self, owner: int) -> bool:
        """Whether somebody else holds that lock."""
        return locked(self._fd, owner)

    def _lock(self, command: int, start: int, kind: int = fcntl.F_WRLCK, length: int = 1) -> tuple[bool, int]:
        return _lock(self._fd, command, start, kind, length)

    def discard(self, start: int) -> None:
        """Give the pages from ``start`` on back to the system; they read as zeros afterwards."""
        start = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        if start < self.size:
            try:
                self.memory.madvise(mmap.MADV_REMOVE, start, self.size - start)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                    raise

    def close(self) -> None:
        """Unmap, and release the locks. The segment itself stays."""
        if self._fd < 0:
            return
        # Explicitly: the map has a descriptor of its own, which lives as long as any array into it.
        with contextlib.suppress(OSError):
            self._lock(fcntl.F_OFD_SETLK, 0, fcntl.F_UNLCK, 0)
        os.close(self._fd)
        self._fd = -1
        try:
            self.words.release()
            self.memory.close()
        except BufferError:
            pass  # an array still looks at it: unmapped when that one goes

    def unlink(self) -> None:
        """Remove the segment's name; memory goes when the last process lets go of it."""
        self.path.unlink(missing_ok=True)
