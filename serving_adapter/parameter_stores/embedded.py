"""The parameter store without a Redis: a private Valkey server under the same code."""

from __future__ import annotations

from pathlib import Path

from serving_adapter.parameter_stores.redis import RedisParameterStore
from serving_adapter.parameter_stores.valkey import ValkeyServer


class EmbeddedParameterStore(RedisParameterStore):
    """Starts a Valkey server, or joins the one that another process runs in the same folder.

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

    @property
    def url(self) -> str:
        """URL for further stores on the same server."""
        return self.server.url

    def close(self) -> None:
        """Release connections and stop the server if it is ours."""
        super().close()
        self.server.close()
