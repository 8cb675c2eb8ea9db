"""The sign of life of a run: its lease is renewed from a thread of its own while the work goes on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from sqlalchemy import Connection

from calibrator.store import run_leases
from calibrator.store.errors import StoreError
from calibrator.store.runs import Run
from calibrator.store.store import Store

log = logging.getLogger(__name__)


class Heartbeat:
    """Renews a lease three times within its length; a context manager around the work.

    Nothing stops the work when the lease is lost: what it writes is fenced.

    Parameters
    ----------
    store, run
        Whose lease.
    seconds
        Length of the lease.
    time
        Seconds since 1970, as leases count them.
    """

    def __init__(self, store: Store, run: Run, seconds: float, time: Callable[[Connection], float]) -> None:
        self._store = store
        self._run = run
        self._seconds = seconds
        self._time = time
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"dspark-run-{run.id}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._stop.wait(self._seconds / 3.0):
            try:
                with self._store.write() as connection:
                    held = run_leases.renew(connection, self._run, self._seconds, self._time(connection))
            except StoreError as error:
                log.warning("run_lease_not_renewed run=%d reason=%r", self._run.id, str(error))
                continue
            if not held:
                return
