"""What a request must be before anybody looks at its content, and what every answer says to browsers."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import unquote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from calibrator.service.web.problems import Problem

MAX_BODY_BYTES = 1024 * 1024
"""A parameter document has at most 256 KiB; a table of step times of a foreign format a little more."""

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})

ESCAPED_SLASH = "\x1f"
"""Stands for %2F within one segment of a path: no name may hold a control character."""

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; "
        "img-src 'self' data:; "
        "font-src 'self'; connect-src 'self'; manifest-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class SecurityHeaders:
    """Middleware: scripts and data from here only, no frames; answers of the API are not kept by caches."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                if scope["path"].startswith("/v1"):
                    headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self._app(scope, receive, send_with_headers)


class Guard:
    """Middleware: host, origin, media type, path and size of a request.

    Parameters
    ----------
    hosts
        Names that a Host header may have; empty lets any through. A service on loopback takes loopback
        names only: a page of a stranger whose name was rebound to 127.0.0.1 says its own.
    max_body_bytes
        Largest body.
    """

    def __init__(
        self, app: ASGIApp, hosts: Collection[str] = (), max_body_bytes: int = MAX_BODY_BYTES
    ) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._max = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        self._check(scope)
        await self._app(_keep_slashes(scope), self._limited(receive), send)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        host = _host_name(headers.get("host", ""))
        if self._hosts and host not in self._hosts:
            raise Problem(f"got Host {host[:100]!r}, expected a name of this service", status=421)
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:19]) > self._max:
            raise Problem(f"expected a body of at most {self._max} bytes", status=413)
        if scope["method"] in SAFE_METHODS:
            return
        # Browsers send one of these with every request of another site's page.
        origin = headers.get("origin")
        foreign = origin is not None and urlsplit(origin).netloc.lower() != headers.get("host", "").lower()
        if foreign or headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise Problem("requests of other sites' pages may change nothing", status=403)
        has_body = length != "0" or "transfer-encoding" in headers
        media = headers.get("content-type", "").partition(";")[0].strip().lower()
        if has_body and media != "application/json" and not media.endswith("+json"):
            raise Problem(f"got Content-Type {media[:60]!r}, expected application/json", status=415)

    def _limited(self, receive: Receive) -> Receive:
        """Stop reading a body of unknown length where it gets too long."""
        received = 0

        async def receive_limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max:
                raise Problem(f"expected a body of at most {self._max} bytes", status=413)
            return message

        return receive_limited


def _host_name(host: str) -> str:
    """Name in a Host header without its port."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _keep_slashes(scope: Scope) -> Scope:
    """Decode the path so that an escaped slash stays inside its segment."""
    raw: bytes = scope.get("raw_path") or b""
    lowered = raw.lower()
    if b"%2f" not in lowered or b"%1f" in lowered:
        return scope
    path = raw.partition(b"?")[0].decode("latin-1").replace("%2F", "%1F").replace("%2f", "%1F")
    return {**scope, "path": unquote(path)}
