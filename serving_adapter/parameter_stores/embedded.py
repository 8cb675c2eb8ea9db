"""The parameter store without a Redis: a private Valkey server under the same code."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from serving_adapter.parameter_stores.redis import RedisParameterStore
from serving_adapter.parameter_stores.valkey import ValkeyServer
from serving_adapter.ports import TransportError

log = logging.getLogger(__name__)

Result = TypeVar("Result")


class EmbeddedParameterStore(RedisParameterStore):
    """Starts a Valkey server, or joins the one that another process runs in the same folder.

    When the server, or the process that started it, dies, a call fails, and one of those that are left
    starts the server again with what the folder holds.

    Parameters
    ----------
    folder
        Where documents and reports are kept over restarts; None keeps them in memory.

    Raises
    ------
    TransportError
        The server cannot be had or started.
    """

    def __init__(self, folder: Path | str | None = None) -> None:
        self.server = ValkeyServer(folder)
        super().__init__(self.server.url)

    def _call(self, work: Callable[[Any], Result]) -> Result:
        try:
            return super()._call(work)
        except TransportError:
            # For the next call: this one has failed, and its caller decides when to try again.
            try:
                self.server.mend()
            except TransportError as error:
                log.warning("embedded parameter store stays away: %s", error)
            self._move(self.server.url)
            raise

    @property
    def url(self) -> str:
        """URL for further stores on the same server."""
        return self.server.url

    def close(self) -> None:
        """Release connections and stop the server if it is ours."""
        super().close()
        self.server.close()
