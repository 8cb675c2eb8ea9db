"""An HTTP server that ends event streams when it is told to stop, instead of waiting for them."""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn


class EndingServer(uvicorn.Server):
    """Calls ``closing`` before it waits for the requests under way.

    Parameters
    ----------
    config
        Of the server.
    closing
        Ends what would never end by itself: :meth:`calibrator.service.web.live.LiveParts.close`.
    """

    def __init__(self, config: uvicorn.Config, closing: Callable[[], object]) -> None:
        super().__init__(config)
        self._closing = closing

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening and finish."""
        self._closing()
        await super().shutdown(sockets)
