"""Entity tags: whoever changes a document can say which one was meant."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any

from fastapi import Header
from pydantic import BaseModel

from calibrator.service.web.problems import PreconditionFailed

IfMatch = Annotated[
    str | None,
    Header(
        alias="If-Match",
        max_length=1024,
        description="ETag of the document that is meant; 412 when it has changed since.",
    ),
]
IfNoneMatch = Annotated[
    str | None,
    Header(
        alias="If-None-Match",
        max_length=1024,
        description="ETag that the caller has; 304 when it still holds.",
    ),
]


def etag_of(document: Any) -> str:
    """Strong entity tag over the content (a model or anything that JSON can hold)."""
    if isinstance(document, BaseModel):
        document = document.model_dump(mode="json", by_alias=True)
    body = json.dumps(document, sort_keys=True, separators=(",", ":"), default=str).encode()
    return f'"{hashlib.sha256(body).hexdigest()[:32]}"'


def check_match(if_match: str | None, etag: str) -> None:
    """Let a change through when no document or this one was meant.

    Raises
    ------
    PreconditionFailed
        Another one was meant.
    """
    if if_match is not None and not _names(if_match, etag, weak=False):
        raise PreconditionFailed("the document has changed since it was read: read it again")


def still_holds(if_none_match: str | None, etag: str) -> bool:
    """Whether the caller has this very document (answer 304)."""
    return if_none_match is not None and _names(if_none_match, etag, weak=True)


def _names(header: str, etag: str, *, weak: bool) -> bool:
    if header.strip() == "*":
        return True
    tags = [tag.strip() for tag in header.split(",")]
    if weak:
        tags = [tag.removeprefix("W/") for tag in tags]
    return etag in tags
