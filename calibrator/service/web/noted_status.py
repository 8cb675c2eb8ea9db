"""The status of an answer, for what is done after it."""

from __future__ import annotations

from starlette.types import Message, Send


class NotedStatus:
    """Passes messages on; ``status`` is that of the answer, 500 while nothing was answered."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 500

    async def __call__(self, message: Message) -> None:
        """Pass one message on."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        await self._send(message)
