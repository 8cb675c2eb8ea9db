"""One id per request, from the caller or made here: in the answer, in every log line, in the audit."""

from __future__ import annotations

import re
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bound_contextvars

HEADER = "X-Request-ID"
_USABLE = re.compile(r"[A-Za-z0-9._:-]{1,64}")


class RequestIds:
    """Middleware: the outermost, so that errors carry the id too."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(HEADER, "")
        # Anything else could forge log lines or headers.
        request_id = given if _USABLE.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        with bound_contextvars(request_id=request_id):
            await self._app(scope, receive, send_with_id)
