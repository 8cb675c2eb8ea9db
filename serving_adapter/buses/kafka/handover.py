"""Rebalances: from kafka-python's network thread to the thread that polls, and back.

kafka-python calls its listener in the thread that also sends heartbeats and handles every answer. A
listener that waits for a database there loses the group membership, and one that commits offsets there
waits for itself. So the call of kafka-python runs in a helper thread, and the thread that called us serves
the listener's calls until that is done, as the port promises.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from kafka.consumer.subscription_state import AsyncConsumerRebalanceListener

from serving_adapter.ports import AssignmentListener, Positions

Result = TypeVar("Result")

_LOOK_SECONDS = 0.005  # how often the network thread looks whether the listener is done


class ListenerFailed(Exception):  # noqa: N818 - named for what it says
    """The listener raised ``cause``."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class _Call:
    """One call of the listener, to be made by the thread that polls."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self.done = threading.Event()
        self.result: Any = None
        self.error: Exception | None = None

    def make(self) -> None:
        try:
            self.result = self._work()
        except Exception as error:
            self.error = error
        finally:
            self.done.set()


class Rebalance(AsyncConsumerRebalanceListener):  # type: ignore[misc]
    """Keeps the set of assigned partitions and calls the listener in the right thread.

    Parameters
    ----------
    listener
        Of the port.
    start_at
        Called with new partitions and the positions that the listener gave for them.
    """

    def __init__(
        self, listener: AssignmentListener, start_at: Callable[[frozenset[int], Positions], None]
    ) -> None:
        self._listener = listener
        self._start_at = start_at
        self._net: Any = None
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="kafka-poll")
        self._calls: queue.Queue[_Call | None] = queue.Queue()
        self._failed: Exception | None = None
        self.assigned: frozenset[int] = frozenset()
        self.serving = False
        """The listener is being called."""

    def attach(self, consumer: Any) -> None:
        """Take over from the consumer before: nothing is assigned yet."""
        # The only awaitable that its own event loop offers to a listener is this sleep.
        self._net = consumer._net
        self.assigned = frozenset()

    def run(self, work: Callable[[], Result]) -> Result:
        """Do ``work`` in the helper thread and make the listener's calls here until it is done."""
        calls = self._calls = queue.Queue()
        self._failed = None
        future = self._worker.submit(work)
        future.add_done_callback(lambda _future: calls.put(None))
        while (call := calls.get()) is not None:
            self.serving = True
            try:
                call.make()
            finally:
                self.serving = False
        if self._failed is not None:
            future.exception()
            raise ListenerFailed(self._failed)
        return future.result()

    def revoke_rest(self) -> None:
        """Tell the listener of partitions that went without a word."""
        gone, self.assigned = self.assigned, frozenset()
        if gone:
            self._listener.revoked(gone)

    def close(self) -> None:
        """End the helper thread."""
        self._worker.shutdown(wait=False)

    async def on_partitions_assigned(self, assigned: Any) -> None:
        """Ask where to start the new ones."""
        new = frozenset(where.partition for where in assigned) - self.assigned
        if not new:
            return
        positions = await self._call(lambda: self._listener.assigned(new))
        self._start_at(new, positions)
        self.assigned |= new

    async def on_partitions_revoked(self, revoked: Any) -> None:
        """Have the work on the old ones finished."""
        gone = frozenset(where.partition for where in revoked) & self.assigned
        if not gone:
            return
        try:
            await self._call(lambda: self._listener.revoked(gone))
        finally:
            self.assigned -= gone

    async def _call(self, work: Callable[[], Any]) -> Any:
        call = _Call(work)
        self._calls.put(call)
        while not call.done.is_set():
            await self._net.sleep(_LOOK_SECONDS)
        if call.error is not None:
            self._failed = call.error
            raise call.error
        return call.result
