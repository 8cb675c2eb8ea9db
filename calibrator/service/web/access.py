"""Who may call what: every path below /v1 needs a role, unless a route below says more."""

from __future__ import annotations

import logging
from typing import Annotated

from anyio.to_thread import run_sync
from fastapi import Depends, Request
from fastapi.security import HTTPBearer
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from calibrator.service.access import AccessError, AccessPolicy, Caller, Role
from calibrator.service.web.guards import SAFE_METHODS
from calibrator.service.web.problems import Forbidden, Unauthorized, Unavailable
from serving_adapter.ports import TransportError

log = logging.getLogger(__name__)

PROTECTED = ("/v1/", "/metrics")
"""Begins of paths that need a caller. Dashboard files, health and the API's description hold no data."""
ADMIN_ONLY = ("/v1/audit",)

bearer_scheme = HTTPBearer(
    auto_error=False,
    scheme_name="token",
    description="A token of `dspark-calibrator token create`, or a JSON Web Token of the identity provider.",
)
"""For OpenAPI only: the middleware has decided before a route is reached."""


class Access:
    """Middleware: authenticates, and compares the role with what method and path need."""

    def __init__(self, app: ASGIApp, policy: AccessPolicy) -> None:
        self._app = app
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http" and needs_caller(scope["path"]):
            authorization = Headers(scope=scope).get("authorization")
            try:
                caller = await run_sync(self._policy.authenticate, authorization)
            except AccessError as error:
                log.warning("request_refused status=%d path=%r reason=%r", 401, scope["path"], str(error))
                raise Unauthorized(str(error)) from error
            except TransportError as error:
                raise Unavailable(f"the identity provider is not available: {error}") from error
            needed = needed_role(scope["method"], scope["path"])
            if not caller.role.covers(needed):
                log.warning(
                    "request_refused status=%d path=%r subject=%r role=%s needed=%s",
                    403, scope["path"], caller.subject, caller.role.value, needed.value,
                )  # fmt: skip
                raise Forbidden(_why(caller, needed))
            scope.setdefault("state", {})["caller"] = caller
        await self._app(scope, receive, send)


def needs_caller(path: str) -> bool:
    """Whether the path gives or changes data."""
    return path.startswith(PROTECTED)


def needed_role(method: str, path: str) -> Role:
    """Role that a method on a path asks for."""
    if path.startswith(ADMIN_ONLY):
        return Role.ADMIN
    return Role.VIEWER if method in SAFE_METHODS else Role.OPERATOR


def caller_of(request: Request) -> Caller:
    """Return who asks, as the middleware found."""
    caller: Caller = request.state.caller
    return caller


CurrentCaller = Annotated[Caller, Depends(caller_of)]


def _why(caller: Caller, needed: Role) -> str:
    if caller.subject == "local":
        return (
            f"this needs the role {needed}, and callers without a token have {caller.role} here; make one "
            f"with `dspark-calibrator token create --role {needed}`"
        )
    return f"this needs the role {needed}, the caller has {caller.role}"
