"""Server-sent events: one poller per process looks for changes in the store and tells every client."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from calibrator.service.web.times import format_time
from calibrator.store.change_feed import Look, look
from calibrator.store.errors import StoreError
from calibrator.store.store import Store

log = logging.getLogger(__name__)

POLL_SECONDS = 0.5
PROGRESS_SECONDS = 2.0
"""Rows come in all the time: a deployment is told of at most this often."""
KEEP_ALIVE_SECONDS = 15.0
"""Proxies close connections that are silent for half a minute."""
QUEUE = 256
"""Events that wait for one client; one that is further behind reads everything anew instead."""
MAX_CLIENTS = 200
IDLE_SECONDS = 30.0
"""Without a client for this long nobody looks."""

_TIMES = ("ended_at", "last_seen")


class TooManyClientsError(Exception):
    """Every place is taken."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event: its name, and what it is about as JSON."""

    id: int
    name: str
    deployment: str
    data: dict[str, Any]

    def encode(self) -> bytes:
        """Render as a server-sent event."""
        return _frame(self.name, {"deployment": self.deployment, **self.data}, self.id)


class Subscription:
    """What one client has not read yet. Filled from the poller's thread, read in the client's event loop."""

    def __init__(self, deployment: str | None, limit: int = QUEUE) -> None:
        self.deployment = deployment
        self._limit = limit
        self._waiting: deque[Event] = deque()
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._lock = threading.Lock()
        self.behind = False
        self.closed = False

    def put(self, event: Event) -> None:
        """Queue an event; a client that is too far behind loses all that waits, and is told so."""
        if self.deployment is not None and event.deployment != self.deployment:
            return
        with self._lock:
            if len(self._waiting) >= self._limit:
                self._waiting.clear()
                self.behind = True
            if not self.behind:
                self._waiting.append(event)
        self._wake()

    def close(self) -> None:
        """End the stream."""
        self.closed = True
        self._wake()

    async def next(self, timeout: float) -> list[Event]:
        """Events that wait, or nothing after ``timeout`` seconds."""
        try:
            await asyncio.wait_for(self._news.wait(), timeout)
        except TimeoutError:
            return []
        self._news.clear()
        with self._lock:
            found = list(self._waiting)
            self._waiting.clear()
        return found

    def _wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._news.set)
        except RuntimeError:  # its loop is gone, and so is the client
            self.closed = True


class EventHub:
    """Looks for changes while anybody listens, and fans them out.

    Parameters
    ----------
    store
        Where to look.
    poll_seconds, progress_seconds
        Between two looks; between two events about rows that came in.
    monotonic
        Seconds that never go back.
    """

    def __init__(
        self,
        store: Store,
        *,
        poll_seconds: float = POLL_SECONDS,
        progress_seconds: float = PROGRESS_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._poll_seconds = poll_seconds
        self._progress_seconds = progress_seconds
        self._monotonic = monotonic
        self._clients: set[Subscription] = set()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._seen: Look | None = None
        self._told: dict[int, float] = {}
        self._next_id = 1

    @property
    def clients(self) -> int:
        """How many listen."""
        return len(self._clients)

    def subscribe(self, deployment: str | None = None) -> Subscription:
        """Begin to listen; call in the event loop that will read.

        Raises
        ------
        TooManyClientsError
            Every place is taken.
        """
        subscription = Subscription(deployment)
        with self._lock:
            if len(self._clients) >= MAX_CLIENTS:
                raise TooManyClientsError(f"{MAX_CLIENTS} clients listen already")
            if self._stop.is_set():
                subscription.close()
                return subscription
            self._clients.add(subscription)
            if self._thread is None:
                self._seen = None
                self._thread = threading.Thread(target=self._run, name="dspark-events", daemon=True)
                self._thread.start()
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Stop listening."""
        with self._lock:
            self._clients.discard(subscription)

    def close(self) -> None:
        """End every stream and the poller, at once and for good."""
        self._stop.set()
        with self._lock:
            clients = list(self._clients)
        for client in clients:
            client.close()

    def poll(self) -> list[Event]:
        """Look once, tell everybody what changed since the last look, and return it.

        The first look only remembers: clients read the present by themselves when they connect.
        """
        try:
            with self._store.read() as connection:
                seen = look(connection)
        except StoreError as error:
            log.warning("events_wait reason=%r", str(error))
            return []
        before, self._seen = self._seen, seen
        if before is None:
            return []
        events = [*self._changes(before, seen), *self._progress(before, seen)]
        with self._lock:
            clients = list(self._clients)
        for event in events:
            for client in clients:
                client.put(event)
        return events

    def _changes(self, before: Look, seen: Look) -> list[Event]:
        return [
            self._event(kind, seen.names[deployment_id], state)
            for (kind, deployment_id, key), state in sorted(seen.states.items(), key=_order)
            if before.states.get((kind, deployment_id, key)) != state and deployment_id in seen.names
        ]

    def _progress(self, before: Look, seen: Look) -> list[Event]:
        now, events = self._monotonic(), []
        for deployment_id, state in seen.progress.items():
            if before.progress.get(deployment_id) == state or deployment_id not in seen.names:
                continue
            if now - self._told.get(deployment_id, float("-inf")) < self._progress_seconds:
                # Not now: let the next look find the difference again.
                if deployment_id in before.progress:
                    seen.progress[deployment_id] = before.progress[deployment_id]
                continue
            self._told[deployment_id] = now
            events.append(self._event("deployment", seen.names[deployment_id], state))
        return events

    def _event(self, name: str, deployment: str, state: dict[str, Any]) -> Event:
        shown = {
            key: format_time(value) if key in _TIMES and value is not None else value
            for key, value in state.items()
            if key != "settings"
        }
        made = Event(self._next_id, name, deployment, shown)
        self._next_id += 1
        return made

    def _run(self) -> None:
        idle_since = self._monotonic()
        while not self._stop.is_set():
            try:
                self.poll()
            except Exception:
                log.exception("events_failed")
            self._stop.wait(self._poll_seconds)
            with self._lock:
                if self._clients:
                    idle_since = self._monotonic()
                elif self._monotonic() - idle_since > IDLE_SECONDS:
                    self._thread = None
                    return


async def stream(hub: EventHub, subscription: Subscription, reconnected: bool) -> AsyncIterator[bytes]:
    """Render one client's stream until it leaves, falls behind, or the service ends.

    ``reset`` says that events were missed: whoever gets it reads again what it shows.
    """
    try:
        yield b"retry: 2000\n: events of the DSpark Calibrator\n\n"
        if reconnected:
            yield _frame("reset", {"reason": "reconnected"})
        while not subscription.closed:
            events = await subscription.next(KEEP_ALIVE_SECONDS)
            if subscription.behind:
                yield _frame("reset", {"reason": "too slow"})
                return
            if events:
                yield b"".join(event.encode() for event in events)
            elif not subscription.closed:
                yield b": keep-alive\n\n"
    finally:
        hub.unsubscribe(subscription)


def _frame(name: str, data: dict[str, Any], number: int | None = None) -> bytes:
    head = "" if number is None else f"id: {number}\n"
    return f"{head}event: {name}\ndata: {json.dumps(data)}\n\n".encode()


def _order(item: tuple[tuple[str, int, Any], Any]) -> tuple[str, int, int]:
    (kind, deployment_id, key), _ = item
    return kind, deployment_id, key or 0
