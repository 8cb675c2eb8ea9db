"""Waiting for a message on a channel, over every loss of the connection."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from redis.exceptions import RedisClusterException, RedisError

from serving_adapter.ports import TransportError

log = logging.getLogger(__name__)

_SLICE_SECONDS = 1.0  # how long a closed store may keep a waiting thread
_RETRY_SECONDS = 0.2


class Subscription:
    """One channel, waited for by one thread.

    Parameters
    ----------
    client
        Gives the Redis client.
    channel, name
        The channel, and what to call the server in the log.
    """

    def __init__(self, client: Callable[[], Any], channel: str, name: str) -> None:
        self._client = client
        self._channel = channel
        self._name = name
        self._pubsub: Any = None
        self._closed = threading.Event()
        self._in_use = threading.Lock()

    def wait(self, timeout: float) -> bool:
        """True with a message or when the subscription has just begun; False after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        while not self._closed.is_set():
            left = deadline - time.monotonic()
            with self._in_use:
                if self._heard(max(0.0, min(left, _SLICE_SECONDS))):
                    return True
            if time.monotonic() >= deadline:
                return False
        return False

    def _heard(self, timeout: float) -> bool:
        try:
            if self._pubsub is None:
                self._pubsub = self._client().pubsub()
                self._pubsub.subscribe(self._channel)
            message = self._pubsub.get_message(timeout=timeout)
            if message is None or message["type"] not in ("message", "subscribe"):
                return False
            while self._pubsub.get_message(timeout=0.0) is not None:
                pass  # ten hints that waited together are one
        except (RedisError, RedisClusterException, OSError, TransportError) as error:
            log.info("%s: subscription to %s lost: %s", self._name, self._channel, error)
            self._drop()
            self._closed.wait(min(timeout, _RETRY_SECONDS))
            return False
        return True

    def close(self) -> None:
        """End the waiting and the connection."""
        self._closed.set()
        with self._in_use:  # redis-py's connections fall over being closed while another thread reads
            self._drop()

    def _drop(self) -> None:
        pubsub, self._pubsub = self._pubsub, None
        if pubsub is not None:
            try:
                pubsub.close()
            except (RedisError, OSError):
                log.debug("%s: closing a lost subscription failed", self._name)
