"""Redis URLs: single servers, Sentinel and Cluster, with TLS and accounts.

=============================================================  ==========================================
``redis://user:password@host:6379/0``                          one server
``rediss://...``                                               the same over TLS
``unix:///path/to/socket``                                     the same over a socket of this machine
``redis+sentinel://user:password@host:26379,host:26379/name/0``  the master that the sentinels call ``name``
``redis+cluster://user:password@host:6379,host:6379``          a cluster
``rediss+sentinel://...``, ``rediss+cluster://...``            over TLS
=============================================================  ==========================================

User and password are percent-encoded. Sentinels with an account of their own take it from
``?sentinel_username=...&sentinel_password=...``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from redis import Redis, RedisCluster
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode
from redis.retry import Retry
from redis.sentinel import Sentinel

from serving_adapter.settings import mask_url

CONNECT_SECONDS = 3.0
ANSWER_SECONDS = 5.0
CHECK_SECONDS = 15
"""A connection that was silent for this long is checked: a firewall may have dropped it without a word."""

_SCHEME = re.compile(r"^(redis|rediss)\+(sentinel|cluster)://", re.IGNORECASE)
# redis-py has types for its clients but not for these.
_untyped_node: Any = ClusterNode
_untyped_sentinel: Any = Sentinel
_PORTS = {"sentinel": 26379, "cluster": 6379}


def connect(url: str, ca_file: str = "", answer_seconds: float = ANSWER_SECONDS) -> Redis | RedisCluster:
    """Make a client. One server and Sentinel connect with the first command, a cluster at once.

    Parameters
    ----------
    url
        See the table above.
    ca_file
        PEM file of the authorities to trust; without it the machine's own.
    answer_seconds
        How long an answer, and at most a connection, is waited for.

    Raises
    ------
    ValueError
        The URL cannot be understood; the message does not show its password.
    """
    options: dict[str, Any] = {
        "socket_connect_timeout": min(CONNECT_SECONDS, answer_seconds),
        "socket_timeout": answer_seconds,
        # The store repeats by itself, since it knows which calls may be repeated.
        "retry": Retry(NoBackoff(), 0),
    }
    kind = _SCHEME.match(url)
    if kind is None:
        if ca_file and url.startswith("rediss://"):
            options["ssl_ca_certs"] = ca_file
        try:
            return Redis.from_url(url, health_check_interval=CHECK_SECONDS, **options)
        except ValueError as error:
            raise ValueError(f"redis_url: got {mask_url(url)}, expected {error}") from None
    parts = _split(url, _PORTS[kind[2].lower()])
    options |= {"username": parts.username, "password": parts.password}
    if kind[1].lower() == "rediss":
        options["ssl"] = True
        file = ca_file or parts.query.get("ssl_ca_certs", "")
        if file:
            options["ssl_ca_certs"] = file
    if kind[2].lower() == "cluster":
        nodes: list[Any] = [_untyped_node(host, port) for host, port in parts.hosts]
        # Its own retries follow moved slots and failed-over nodes.
        options.pop("retry")
        return RedisCluster(startup_nodes=nodes, health_check_interval=CHECK_SECONDS, **options)
    service, _, database = parts.path.partition("/")
    if not service or (database and not database.isdigit()):
        raise ValueError(f"redis_url: got {mask_url(url)}, expected /service or /service/database at the end")
    sentinel = _untyped_sentinel(
        parts.hosts,
        sentinel_kwargs={
            "socket_connect_timeout": min(CONNECT_SECONDS, answer_seconds),
            "socket_timeout": answer_seconds,
            "retry": Retry(NoBackoff(), 0),
            "username": parts.query.get("sentinel_username"),
            "password": parts.query.get("sentinel_password"),
        }
        | {name: value for name, value in options.items() if name.startswith("ssl")},
        **options,
    )
    master: Redis = sentinel.master_for(service, db=int(database or 0), health_check_interval=CHECK_SECONDS)
    return master


@dataclass(frozen=True, slots=True)
class _Parts:
    hosts: list[tuple[str, int]]
    username: str | None
    password: str | None
    path: str
    query: Mapping[str, str]


def _split(url: str, default_port: int) -> _Parts:
    whole = urlsplit(url)
    account, _, addresses = whole.netloc.rpartition("@")
    username, _, password = account.partition(":")
    hosts = []
    for address in filter(None, addresses.split(",")):
        found = re.fullmatch(r"(\[[0-9a-fA-F:]+\]|[^:\[\]]+)(?::(\d{1,5}))?", address.strip())
        if found is None:
            raise ValueError(f"redis_url: got {mask_url(url)}, expected host:port, not {address!r}")
        hosts.append((found[1].strip("[]"), int(found[2] or default_port)))
    if not hosts:
        raise ValueError(f"redis_url: got {mask_url(url)}, expected at least one host:port")
    return _Parts(
        hosts=hosts,
        username=unquote(username) or None,
        password=unquote(password) or None,
        path=whole.path.strip("/"),
        query={name: values[0] for name, values in parse_qs(whole.query).items()},
    )
