"""HEAD is answered like GET, without the body."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

STREAMS = "/v1/events"
"""Without its body a stream would still have no end: its route answers HEAD by itself."""


class HeadRequests:
    """Middleware next to the routes: they see a GET, the client no body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def send_without_body(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        method = "HEAD" if scope["path"] == STREAMS else "GET"
        await self._app({**scope, "method": method}, receive, send_without_body)
