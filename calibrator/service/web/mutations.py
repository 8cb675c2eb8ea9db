"""Every change through the API: noted before it is done, done once per idempotency key, noted again after."""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass
from typing import Annotated, Any

from anyio.to_thread import run_sync
from fastapi import Header, Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from calibrator.service.access import Caller
from calibrator.service.web.guards import SAFE_METHODS
from calibrator.service.web.problems import Conflict, Invalid, Problem
from calibrator.store import audit, idempotency
from calibrator.store.errors import StoreError
from calibrator.store.store import Store
from serving_adapter.ports import Clock

log = logging.getLogger(__name__)

HEADER = "Idempotency-Key"
REPLAYED = "Idempotency-Replayed"
_KEPT_HEADERS = ("content-type", "etag", "location")
_MAX_PATH = 2000
_MAX_NOTED = 64 * 1024

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias=HEADER,
        max_length=255,
        description="Repeated with the same request it gives the first answer; with another one it is 422.",
    ),
]
"""For OpenAPI only: the middleware has used it before a route is reached."""


def note_change(request: Request, before: Any, after: Any) -> None:
    """Say what the audit keeps of this change (JSON). Without it ``after`` is the body of the answer."""
    request.state.change = (before, after)


@dataclass(slots=True)
class _Begun:
    entry: int
    key: str | None
    stored: idempotency.Answer | None


class Mutations:
    """Middleware around everything that is not safe below /v1: audit and idempotency keys.

    Note who wants what (and take the key) in one transaction; let the route work; keep the answer and what
    changed in a second one. A service that dies in between leaves an audit entry without a status.
    """

    def __init__(self, app: ASGIApp, store: Store, clock: Clock) -> None:
        self._app = app
        self._store = store
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or scope["method"] in SAFE_METHODS or not scope["path"].startswith("/v1/"):
            await self._app(scope, receive, send)
            return
        body = await _read(receive)
        caller: Caller = scope["state"]["caller"]
        begun = await run_sync(self._begin, scope, caller, body)
        if begun.stored is not None:
            await _replay(begun.stored, send)
            return
        answer = _Recorder()
        try:
            await self._app(scope, _again(body, receive), answer.send)
        except BaseException:
            await run_sync(self._finish, begun, caller, 500, {}, b"", None)
            raise
        change = scope["state"].get("change")
        await run_sync(self._finish, begun, caller, answer.status, answer.headers, bytes(answer.body), change)
        for message in answer.messages:
            await send(message)

    def _begin(self, scope: Scope, caller: Caller, body: bytes) -> _Begun:
        key = Headers(scope=scope).get(HEADER)
        if key is not None and not (0 < len(key) <= 255 and key.isprintable()):
            raise Invalid(f"{HEADER}: expected 1 to 255 printable characters")
        path = _path(scope)
        now = self._clock.now()
        with self._store.write() as connection:
            if key is not None:
                digest = hashlib.sha256(
                    b"\n".join([scope["method"].encode(), path.encode(), body])
                ).hexdigest()
                stored = idempotency.claim(connection, caller.subject, key, digest, now)
                if stored is not None:
                    _check_same(stored, digest)
                    return _Begun(0, key, stored)
            entry = audit.begin(
                connection, at=now, subject=caller.subject, role=caller.role.value, method=scope["method"],
                path=path, request_id=scope["state"].get("request_id", ""),
            )  # fmt: skip
        return _Begun(entry, key, None)

    def _finish(
        self,
        begun: _Begun,
        caller: Caller,
        status: int,
        headers: dict[str, str],
        body: bytes,
        change: tuple[Any, Any] | None,
    ) -> None:
        before, after = change if change is not None else (None, _noted(status, body))
        try:
            with self._store.write() as connection:
                audit.finish(connection, begun.entry, status, before, after)
                if begun.key is not None and status < 500:
                    idempotency.keep(connection, caller.subject, begun.key, status, headers, body)
                elif begun.key is not None:
                    idempotency.release(connection, caller.subject, begun.key)
        except StoreError as error:
            # What was done is done: the log has what the audit lacks.
            log.error(
                "audit_incomplete entry=%d status=%d before=%r after=%r reason=%r",
                begun.entry, status, before, after, str(error),
            )  # fmt: skip


class _Recorder:
    """Holds an answer back until it is noted."""

    def __init__(self) -> None:
        self.status = 500
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.messages: list[Message] = []

    async def send(self, message: Message) -> None:
        self.messages.append(message)
        if message["type"] == "http.response.start":
            self.status = message["status"]
            given = Headers(raw=message["headers"])
            self.headers = {name: given[name] for name in _KEPT_HEADERS if name in given}
        elif message["type"] == "http.response.body":
            self.body += message.get("body", b"")


async def _read(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Problem("the request ended before its body did", status=400)
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return bytes(body)


def _again(body: bytes, receive: Receive) -> Receive:
    """Give a body that was read once more; after it whatever comes."""
    given = False

    async def receive_again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


async def _replay(answer: idempotency.Answer, send: Send) -> None:
    headers = [(name.encode(), value.encode("latin-1")) for name, value in answer.headers.items()]
    headers += [(REPLAYED.lower().encode(), b"true"), (b"content-length", str(len(answer.body)).encode())]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


def _check_same(stored: idempotency.Answer, digest: str) -> None:
    if stored.request_sha256 != digest:
        raise Invalid(f"{HEADER}: was used for another request")
    if stored.status is None:
        raise Conflict(f"{HEADER}: the first request of this key is still being worked on")


def _path(scope: Scope) -> str:
    raw: bytes = scope.get("raw_path") or scope["path"].encode("utf-8", "surrogateescape")
    query: bytes = scope.get("query_string", b"")
    # Percent-encoded as it came: printable, and never a character that a database refuses.
    text = raw.partition(b"?")[0] + (b"?" + query if query else b"")
    return text.decode("latin-1").replace("\x00", "%00")[:_MAX_PATH]


def _noted(status: int, body: bytes) -> Any:
    if len(body) > _MAX_NOTED or not 200 <= status < 300:
        return None
    try:
        return json.loads(body)
    except ValueError:
        return None
