"""A request waits for a database that has fallen silent for a while, and is then answered with 503."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from calibrator.store.patience import patience


class StorePatience:
    """Middleware: all database waiting of a request together takes at most ``seconds``.

    Event streams last for hours, but ask the database nothing themselves.
    """

    def __init__(self, app: ASGIApp, seconds: float) -> None:
        self._app = app
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with patience(self._seconds):
            await self._app(scope, receive, send)
