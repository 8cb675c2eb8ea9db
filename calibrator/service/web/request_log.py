"""One log line per request: what was asked, by whom, how it was answered, how long it took."""

from __future__ import annotations

import logging
import time

from starlette.types import ASGIApp, Receive, Scope, Send

from calibrator.service.web.noted_status import NotedStatus

log = logging.getLogger(__name__)

QUIET = frozenset({"/healthz", "/readyz", "/metrics"})
"""Asked every few seconds by machines: only worth a line when it goes wrong."""


class RequestLog:
    """Middleware. Headers, bodies and query strings never reach the log."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, answer = time.perf_counter(), NotedStatus(send)
        try:
            await self._app(scope, receive, answer)
        finally:
            caller = scope.get("state", {}).get("caller")
            quiet = answer.status < 500 and (scope["path"] in QUIET or not scope["path"].startswith("/v1"))
            log.log(
                logging.DEBUG if quiet else logging.INFO,
                "request_done method=%s path=%r status=%d seconds=%.4f subject=%r",
                scope["method"], scope["path"], answer.status, time.perf_counter() - begun,
                caller.subject if caller is not None else "",
            )  # fmt: skip
