"""What the long-running commands share: an end on signals, and patience with servers that are not up yet."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from calibrator.store import Store, StoreUnavailableError
from serving_adapter.ports import TransportError
from serving_adapter.settings import Settings

log = logging.getLogger(__name__)

Result = TypeVar("Result")

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 10.0


@contextlib.contextmanager
def stop_on_signal() -> Iterator[threading.Event]:
    """Give an event that the first SIGTERM or SIGINT sets; a second one has its usual effect."""
    stop = threading.Event()

    def end(number: int, _frame: Any) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    previous = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def wait_for(what: str, attempt: Callable[[], Result], stop: threading.Event) -> Result | None:
    """Try until it works, with growing pauses; None when ``stop`` was set first.

    A server that is down when we start is no reason to give up: whoever restarts us could only do the same.
    """
    pause = FIRST_PAUSE_SECONDS
    while not stop.is_set():
        try:
            return attempt()
        except (StoreUnavailableError, TransportError) as error:
            log.warning("waiting_for what=%s seconds=%.1f reason=%r", what, pause, str(error))
            stop.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
    return None


@contextlib.contextmanager
def opened_store(settings: Settings, **options: Any) -> Iterator[Store]:
    """Open the store of the settings, not migrated yet; ``options`` are those of :class:`Store`."""
    store = Store(settings.database_url, **options)
    try:
        yield store
    finally:
        store.close()


def migrated(store: Store, stop: threading.Event) -> bool:
    """Bring the tables to this release once the database is there; False when stopped before.

    Raises
    ------
    StoreUnavailableError
        A SQLite file that cannot be opened: no server that might still come up.
    """

    def migrate() -> bool:
        store.migrate()
        return True

    if store.dialect != "sqlite":
        return wait_for("database", migrate, stop) is not None
    try:
        return migrate()
    except StoreUnavailableError as error:
        raise StoreUnavailableError(
            f"DSPARK_DATABASE_URL: got the file {store.engine.url.database!r}: {error}"
        ) from error
