"""What commands share: their store, an end on signals, and patience with servers that are not up yet."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from calibrator.cli.output import UsageError
from calibrator.store import Store, StoreError, StoreUnavailableError
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
    """Open the store of the settings, not migrated yet; ``options`` are those of :class:`Store`.

    Raises
    ------
    UsageError
        The URL is none of a database that is supported.
    """
    try:
        store = Store(settings.database_url, **options)
    except StoreError as error:  # opening connects to nothing, so it is the URL
        raise UsageError(str(error)) from error
    try:
        yield store
    finally:
        store.close()


@contextlib.contextmanager
def existing_store(settings: Settings) -> Iterator[Store]:
    """Open a store that must be there already: SQLite would make a file of that name, and find nothing in it.

    Raises
    ------
    UsageError
        The URL is none of a database that is supported, or there is no such file.
    """
    with opened_store(settings) as store:
        missing = missing_file(store)
        if missing is not None:
            raise UsageError(f"database: no such file: {missing} (--database-url or DSPARK_DATABASE_URL)")
        yield store


def missing_file(store: Store) -> Path | None:
    """Return the file of a SQLite database that is not there; a server or a database in memory has none."""
    url = store.engine.url
    if store.dialect != "sqlite" or url.database in (None, "", ":memory:") or "uri" in url.query:
        return None
    path = Path(str(url.database))
    return None if path.is_file() else path


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
