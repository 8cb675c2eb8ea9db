"""Who may call what: every path below /v1 needs a role, unless a route below says more."""

from __future__ import annotations

import hashlib
import logging
import time
from collections import Counter, OrderedDict
from typing import Annotated

from anyio.to_thread import run_sync
from fastapi import Depends, Request
from fastapi.security import HTTPBearer
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from calibrator.service.access import AccessError, AccessPolicy, Caller, Role
from calibrator.service.access.failure_limit import FailureLimit
from calibrator.service.web.guards import SAFE_METHODS
from calibrator.service.web.problems import Forbidden, Problem, TooManyFailures, Unauthorized, Unavailable
from calibrator.store.errors import StoreError
from serving_adapter.ports import TransportError

log = logging.getLogger(__name__)

METRICS = "/metrics"
PROTECTED = ("/v1/", METRICS)
"""Begins of paths that need a caller. Dashboard files, health and the API's description hold no data."""
ADMIN_ONLY = ("/v1/audit",)
REMEMBERED_SECONDS = 900.0
MOST_REMEMBERED = 256
REFUSALS = ("missing", "wrong", "limited")
"""Why nobody is let in: no token, a wrong one, or a wrong one too many."""

bearer_scheme = HTTPBearer(
    auto_error=False,
    scheme_name="token",
    description="A token of `dspark-calibrator token create`, or a JSON Web Token of the identity provider.",
)
"""For OpenAPI only: the middleware has decided before a route is reached."""


class Access:
    """Middleware: authenticates, and compares the role with what method and path need.

    Who may read the metrics is remembered for :data:`REMEMBERED_SECONDS`: an alert that the database is away
    must reach somebody, and tokens are in that database. Nothing else is answered from memory.

    Parameters
    ----------
    policy
        Who is let in.
    limit
        Of wrong tokens by address. Every token is looked at before: a right one never waits for what others
        behind its address have tried.
    refused
        Counts refusals by reason, one of :data:`REFUSALS`.
    """

    def __init__(
        self, app: ASGIApp, policy: AccessPolicy, limit: FailureLimit, refused: Counter[str]
    ) -> None:
        self._app = app
        self._policy = policy
        self._limit = limit
        self._refused = refused
        self._readers: OrderedDict[bytes, tuple[Caller, float]] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http" and needs_caller(scope["path"]):
            authorization = Headers(scope=scope).get("authorization")
            try:
                caller = await self._caller(scope["path"], authorization)
            except AccessError as error:
                raise self._refusal(scope, authorization, error) from error
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

    def _refusal(self, scope: Scope, authorization: str | None, error: AccessError) -> Problem:
        # The peer of the connection: what a header says of it, anybody can write.
        address = str((scope.get("client") or ("",))[0])
        wait = 0.0 if authorization is None else self._limit.failed(address)
        self._refused["missing" if authorization is None else "limited" if wait else "wrong"] += 1
        problem = TooManyFailures(wait) if wait else Unauthorized(str(error))
        log.warning(
            "request_refused status=%d path=%r address=%r reason=%r",
            problem.status, scope["path"], address, str(error),
        )  # fmt: skip
        return problem

    async def _caller(self, path: str, authorization: str | None) -> Caller:
        if path != METRICS:
            return await run_sync(self._policy.authenticate, authorization)
        key = hashlib.sha256((authorization or "").encode("utf-8", "surrogatepass")).digest()
        try:
            caller = await run_sync(self._policy.authenticate, authorization)
        except StoreError:
            reader, until = self._readers.get(key, (None, 0.0))
            if reader is None or time.monotonic() > until:
                raise
            return reader
        except AccessError:
            self._readers.pop(key, None)
            raise
        self._readers[key] = (caller, time.monotonic() + REMEMBERED_SECONDS)
        self._readers.move_to_end(key)
        if len(self._readers) > MOST_REMEMBERED:
            self._readers.popitem(last=False)
        return caller


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
