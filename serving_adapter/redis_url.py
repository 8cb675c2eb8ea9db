"""What is wrong with a Redis URL, found without a connection: such a URL will not work later either."""

from __future__ import annotations

import re

_SCHEME = re.compile(r"^(?:(unix)|rediss?(?:\+(sentinel|cluster))?)://", re.IGNORECASE)
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]\s]*)(?::(\d+))?")
_MOST_PORT = 65_535


def redis_url_problem(url: str) -> str:
    """Say what was expected instead of this URL; empty when it can be understood.

    Parameters
    ----------
    url
        As in :mod:`serving_adapter.parameter_stores.urls`.

    >>> redis_url_problem("redis://host:6379/0")
    ''
    >>> redis_url_problem("redis://host:99999")
    'expected a port in 1 to 65535, not 99999'
    """
    scheme = _SCHEME.match(url)
    if scheme is None:
        return "expected a URL such as redis://host:6379/0, or rediss, unix, redis+sentinel, redis+cluster"
    rest = url[scheme.end() :]
    if scheme[1]:
        return "" if rest.partition("?")[0].strip("/") else "expected the path of a socket"
    netloc = re.split(r"[/?#]", rest, maxsplit=1)[0]
    addresses = netloc.rpartition("@")[2].split(",")
    if len(addresses) > 1 and scheme[2] is None:
        return "expected one host:port; several are for redis+sentinel:// and redis+cluster://"
    if scheme[2] and not any(addresses):
        return "expected at least one host:port"
    for address in addresses:
        found = _ADDRESS.fullmatch(address.strip())
        if found is None:
            shown = address.rpartition(":")[2]
            return f"expected host:port with a number for the port, not {shown!r}"
        if found[2] and not 1 <= int(found[2][:9]) <= _MOST_PORT:
            return f"expected a port in 1 to {_MOST_PORT}, not {found[2][:9]}"
    path = rest[len(netloc) :].partition("?")[0].strip("/")
    if scheme[2] and scheme[2].lower() == "sentinel":
        service, _, database = path.partition("/")
        if not service or (database and not database.isdigit()):
            return "expected /service or /service/database at the end"
    return ""
