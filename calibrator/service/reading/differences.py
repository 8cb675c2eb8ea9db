"""What two documents differ in, as paths."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_MISSING = object()

IGNORED = frozenset({"digest", "signature"})
"""They follow from the rest."""


@dataclass(frozen=True, slots=True)
class Change:
    """One value that differs, None for one that is not there; ``path`` is a JSON pointer (RFC 6901)."""

    path: str
    before: Any
    after: Any


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[Change]:
    """Values that differ, in order of path; lists are compared item by item.

    >>> changes({"temperatures": [1.0, 2.0], "version": 1}, {"temperatures": [1.0, 2.5], "version": 2})
    [Change(path='/temperatures/1', before=2.0, after=2.5), Change(path='/version', before=1, after=2)]
    """
    kept = [{key: value for key, value in each.items() if key not in IGNORED} for each in (before, after)]
    return list(_walk("", *kept))


def _walk(path: str, before: Any, after: Any) -> Iterator[Change]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            step = f"{path}/{str(key).replace('~', '~0').replace('/', '~1')}"
            yield from _walk(step, before.get(key, _MISSING), after.get(key, _MISSING))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, pair in enumerate(zip(before, after, strict=True)):
            yield from _walk(f"{path}/{index}", *pair)
    elif before != after:
        yield Change(path, *(None if value is _MISSING else value for value in (before, after)))
