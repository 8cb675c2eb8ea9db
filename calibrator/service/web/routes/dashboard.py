"""The dashboard: static files of the package, and one page that answers every deep link."""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Annotated

from fastapi import APIRouter, Header, HTTPException, Response

router = APIRouter(include_in_schema=False)

LIBRARY_SECONDS = 7 * 86400
"""Vendored files change with a release only; ours are asked for again each time, which costs a 304."""

SMALL = 1024
"""Bytes below which compression is not worth a header."""

TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file, compressed once; ``etag`` is a digest of what it holds."""

    body: bytes
    compressed: bytes | None
    media_type: str
    etag: str
    cache_control: str


@cache
def assets() -> dict[str, Asset]:
    """Every static file by its path below ``static/``: what is not in here is not served."""
    return dict(_walk(files("calibrator.service.web").joinpath("static"), ""))


def _walk(folder: Traversable, prefix: str) -> list[tuple[str, Asset]]:
    found: list[tuple[str, Asset]] = []
    for entry in folder.iterdir():
        path = prefix + entry.name
        if entry.is_dir():
            found += _walk(entry, path + "/")
        else:
            found.append((path, _asset(path, entry.read_bytes())))
    return found


def _asset(path: str, body: bytes) -> Asset:
    suffix = path[path.rfind(".") :]
    media_type = TYPES.get(suffix) or mimetypes.guess_type(path)[0] or "text/plain"
    compressed = gzip.compress(body, mtime=0) if len(body) >= SMALL else None
    return Asset(
        body=body,
        compressed=compressed,
        media_type=media_type,
        etag=f'"{hashlib.sha256(body).hexdigest()[:20]}"',
        cache_control=f"public, max-age={LIBRARY_SECONDS}" if path.startswith("vendor/") else "no-cache",
    )


IfNoneMatch = Annotated[str | None, Header()]
AcceptEncoding = Annotated[str, Header()]


@router.api_route("/static/{path:path}", methods=["GET", "HEAD"])
def static_file(
    path: str, if_none_match: IfNoneMatch = None, accept_encoding: AcceptEncoding = ""
) -> Response:
    """Serve one file of the dashboard."""
    asset = assets().get(path)
    if asset is None:
        raise HTTPException(404, f"there is no static file {path!r}")
    return _answer(asset, if_none_match, accept_encoding)


@router.api_route("/", methods=["GET", "HEAD"])
@router.api_route("/jobs", methods=["GET", "HEAD"])
@router.api_route("/rollouts", methods=["GET", "HEAD"])
@router.api_route("/rollouts/{rest:path}", methods=["GET", "HEAD"])
@router.api_route("/deployments/{rest:path}", methods=["GET", "HEAD"])
def page(if_none_match: IfNoneMatch = None, accept_encoding: AcceptEncoding = "", rest: str = "") -> Response:
    """Serve the page; what it shows is up to the address, which it reads itself."""
    del rest
    return _answer(assets()["index.html"], if_none_match, accept_encoding)


def _answer(asset: Asset, if_none_match: str | None, accept_encoding: str) -> Response:
    headers = {"ETag": asset.etag, "Cache-Control": asset.cache_control, "Vary": "Accept-Encoding"}
    known = {tag.strip().removeprefix("W/") for tag in (if_none_match or "").split(",")}
    if asset.etag in known:
        return Response(status_code=304, headers=headers)
    body = asset.body
    if asset.compressed is not None and _takes_gzip(accept_encoding):
        body = asset.compressed
        headers["Content-Encoding"] = "gzip"
    return Response(body, media_type=asset.media_type, headers=headers)


def _takes_gzip(accept_encoding: str) -> bool:
    """Whether gzip is among the codings that the client accepts (``gzip;q=0`` refuses it)."""
    for coding in accept_encoding.lower().split(","):
        name, _, parameters = coding.partition(";")
        if name.strip() in ("gzip", "*"):
            return parameters.replace(" ", "").rstrip("0.") != "q="
    return False
