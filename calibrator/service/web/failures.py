"""The last resort: whatever a middleware or route raised becomes a problem document and one log line."""

from __future__ import annotations

import logging

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from calibrator.service.web.problems import HANDLED, as_problem, problem_response

log = logging.getLogger(__name__)


class Failures:
    """Middleware outside of all that may fail."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def send_noted(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, send_noted)
        except Exception as error:
            if not isinstance(error, HANDLED):
                log.exception("request_crashed path=%r", scope["path"])
            if started:
                raise  # half an answer is out: all that is left is to close the connection
            await problem_response(scope["path"], as_problem(error))(scope, receive, send)
