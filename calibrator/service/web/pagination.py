"""Lists, a page at a time: an opaque cursor says where the next page begins."""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Callable, Sequence
from typing import Annotated, Generic, TypeVar

from fastapi import Query
from pydantic import BaseModel, Field

from calibrator.service.web.problems import Invalid

Item = TypeVar("Item")
Row = TypeVar("Row")

DEFAULT_LIMIT = 100
MOST = 500
_MAX_CURSOR = 1024

Limit = Annotated[int, Query(ge=1, le=MOST, description="Items of a page.")]
Cursor = Annotated[
    str | None,
    Query(max_length=_MAX_CURSOR, description="next_cursor of the page before; left out for the first page."),
]

Key = int | float | str


class Page(BaseModel, Generic[Item]):
    """Some items of a list, and how to get the next ones."""

    items: list[Item]
    next_cursor: str | None = Field(
        default=None, description="Cursor of the next page; null on the last one."
    )


def encode_cursor(*keys: Key) -> str:
    """Cursor behind the row with these sort keys."""
    body = json.dumps(keys, separators=(",", ":")).encode()
    # A checksum, no signature: a cursor grants nothing, this only tells a typo from a position.
    return base64.urlsafe_b64encode(zlib.crc32(body).to_bytes(4) + body).decode().rstrip("=")


def decode_cursor(cursor: str | None, *kinds: type) -> tuple[Key, ...] | None:
    """Sort keys that a cursor stands for, None without one.

    Parameters
    ----------
    cursor
        From the query.
    kinds
        Type of every sort key: ``int``, ``float`` or ``str``.

    Raises
    ------
    Invalid
        It is none of ours, or one of another list.
    """
    if cursor is None:
        return None
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        body = raw[4:]
        keys = json.loads(body) if raw[:4] == zlib.crc32(body).to_bytes(4) else None
    except (binascii.Error, ValueError, RecursionError):
        keys = None
    if not isinstance(keys, list) or len(keys) != len(kinds) or not all(map(_is, keys, kinds)):
        raise Invalid(
            "cursor: expected next_cursor of the page before",
            errors=[{"pointer": "query/cursor", "detail": "not a cursor of this list"}],
        )
    return tuple(keys)


def cut(
    rows: Sequence[Row], limit: int, key: Callable[[Row], tuple[Key, ...]]
) -> tuple[Sequence[Row], str | None]:
    """Cut ``limit + 1`` fetched rows into a page and the cursor of the next one.

    Fetch one row more than the page holds, in the order of ``key``, behind the cursor's keys.
    """
    if len(rows) <= limit:
        return rows, None
    kept = rows[:limit]
    return kept, encode_cursor(*key(kept[-1]))


def _is(value: object, kind: type) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    if kind is int:
        # What a BIGINT column can be compared with.
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    return isinstance(value, kind)
