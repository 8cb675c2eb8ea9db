"""Counts requests by route for the metrics page."""

from __future__ import annotations

import time

from starlette.types import ASGIApp, Receive, Scope, Send

from calibrator.service.web.metrics import RequestCounter
from calibrator.service.web.noted_status import NotedStatus

OTHER = "other"


class RequestCounts:
    """Middleware next to the routes: what a request was about is known after it was answered."""

    def __init__(self, app: ASGIApp, counter: RequestCounter) -> None:
        self._app = app
        self._counter = counter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, answer = time.monotonic(), NotedStatus(send)
        try:
            await self._app(scope, receive, answer)
        finally:
            route = getattr(scope.get("route"), "path", OTHER)
            self._counter.add(_method(scope["method"]), route, answer.status, time.monotonic() - began)


def _method(method: str) -> str:
    return method if method in ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS") else OTHER
