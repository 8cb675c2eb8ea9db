"""The parameter store on Redis or Valkey: one server, Sentinel, Cluster, TLS, accounts."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from redis import Redis, RedisCluster
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisClusterException, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from serving_adapter.contract import ParameterDocument
from serving_adapter.contract.parameters import encode_document
from serving_adapter.parameter_stores import scripts
from serving_adapter.parameter_stores.subscription import Subscription
from serving_adapter.parameter_stores.urls import ANSWER_SECONDS, connect
from serving_adapter.ports import Candidate, ReplicaReport, TransportError, VersionConflictError
from serving_adapter.settings import mask_url

log = logging.getLogger(__name__)

Result = TypeVar("Result")

_ATTEMPTS = 2  # a pooled connection that the server closed fails once


class _StoredReport(msgspec.Struct, frozen=True):
    replica: str
    applied: int
    reported_at: float
    fingerprint: str = ""
    forms: tuple[str, ...] = ("temperature",)
    refused: int = 0
    reason: str = ""
    segment_sets: bool = False
    expires_at: float = 0.0


class _StoredCandidate(msgspec.Struct, frozen=True):
    share: float
    document: msgspec.Raw


class RedisParameterStore:
    """Parameter documents, candidates and replica reports of any number of deployments.

    Connects with the first call, and again after every disturbance. Threads may share a store.

    Keys, for deployment D: ``dspark:{D}:parameters`` the document in force, ``dspark:{D}:candidate`` one
    on trial, ``dspark:{D}:applied`` a hash of reports by replica (each with ``expires_at``, removed by
    whoever reads after it; the key goes with its last report), ``dspark:{D}:publication`` who published
    last (for a minute), channel ``dspark:{D}:changed``.

    Parameters
    ----------
    url
        See :mod:`serving_adapter.parameter_stores.urls`.
    ca_file
        PEM file of the authorities to trust with TLS.
    answer_seconds
        How long an answer is waited for, twice: a call that got none is repeated once.
    """

    def __init__(self, url: str, ca_file: str = "", answer_seconds: float = ANSWER_SECONDS) -> None:
        self._url = url
        self._name = mask_url(url)
        self._ca_file = ca_file
        self._answer_seconds = answer_seconds
        self._lock = threading.Lock()
        self._connected: Redis | RedisCluster | None = None
        self._subscriptions: dict[tuple[int, str], Subscription] = {}
        self._closed = False

    def read(self, deployment: str) -> bytes | None:
        """Read the document in force, as stored; None when there is none."""
        payload: bytes | None = self._call(lambda client: client.get(_key(deployment, "parameters")))
        return payload

    def publish(self, document: ParameterDocument) -> None:
        """Compare the version, set and tell subscribers, in one step.

        Raises
        ------
        VersionConflictError
            Naming the version in force.
        TransportError
            The store cannot be reached; whether the document is in force is not known.
        """
        token = secrets.token_hex(16)
        deployment = document.deployment
        stored, in_force = self._call(
            lambda client: client.eval(
                scripts.PUBLISH,
                2,
                _key(deployment, "parameters"),
                _key(deployment, "publication"),
                encode_document(document),
                str(document.version),
                channel(deployment),
                token,
            )
        )
        if not stored:
            raise VersionConflictError(deployment, document.version, int(in_force))

    def offer(self, document: ParameterDocument, share: float) -> None:
        """Put a candidate on trial with that share of the replicas; raises as :meth:`publish` does."""
        candidate = _StoredCandidate(share, msgspec.Raw(encode_document(document)))
        deployment = document.deployment
        stored, in_force = self._call(
            lambda client: client.eval(
                scripts.OFFER,
                2,
                _key(deployment, "parameters"),
                _key(deployment, "candidate"),
                msgspec.json.encode(candidate),
                str(document.version),
                channel(deployment),
            )
        )
        if not stored:
            raise VersionConflictError(deployment, document.version, int(in_force))

    def candidate(self, deployment: str) -> Candidate | None:
        """Read the candidate; None when there is none, or one that nobody can read."""
        payload = self._call(lambda client: client.get(_key(deployment, "candidate")))
        if payload is None:
            return None
        try:
            stored = msgspec.json.decode(payload, type=_StoredCandidate)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            log.warning("candidate of %s cannot be read: %s", deployment, error)
            return None
        return Candidate(bytes(stored.document), stored.share)

    def withdraw(self, deployment: str) -> None:
        """Remove the candidate, if any, and tell subscribers."""

        def remove(client: Any) -> None:
            if client.delete(_key(deployment, "candidate")):
                client.publish(channel(deployment), "0")

        self._call(remove)

    def wait_for_change(self, deployment: str, timeout: float) -> bool:
        """Wait for a hint that something changed; False after ``timeout`` seconds.

        Also True when a subscription has just begun, the first or one after a disturbance, because a
        change may have been missed before. Never raises: a store that cannot be reached has no hints, and
        the next read says so.
        """
        place = (threading.get_ident(), deployment)
        subscription = self._subscriptions.get(place)
        if subscription is None:
            subscription = Subscription(self._client, channel(deployment), self._name)
            with self._lock:
                self._subscriptions[place] = subscription
        return subscription.wait(timeout)

    def report(self, deployment: str, report: ReplicaReport, expire_seconds: float) -> None:
        """Store what a replica applied or refused, for that long."""
        self._call(
            lambda client: client.eval(
                scripts.REPORT,
                1,
                _key(deployment, "applied"),
                report.replica,
                msgspec.json.encode(report),
                str(max(1, round(expire_seconds * 1000))),
            )
        )

    def reports(self, deployment: str) -> dict[str, ReplicaReport]:
        """Reports that have not expired, by replica."""
        key = _key(deployment, "applied")

        def read(client: Any) -> tuple[float, dict[bytes, bytes]]:
            seconds, microseconds = client.eval("return redis.call('TIME')", 1, key)
            return int(seconds) + int(microseconds) / 1e6, client.hgetall(key)

        now, stored = self._call(read)
        live, expired = {}, []
        for field, payload in stored.items():
            replica = field.decode("utf-8", errors="replace")
            try:
                kept = msgspec.json.decode(payload, type=_StoredReport)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                log.warning("report of %s in %s cannot be read: %s", replica, deployment, error)
                continue
            if kept.expires_at <= now:
                expired.append(field)
                continue
            live[replica] = ReplicaReport(
                replica=replica,
                applied=kept.applied,
                reported_at=kept.reported_at,
                fingerprint=kept.fingerprint,
                forms=kept.forms,
                refused=kept.refused,
                reason=kept.reason,
                segment_sets=kept.segment_sets,
            )
        if expired:
            self._call(lambda client: client.hdel(key, *expired))
        return live

    def ping(self) -> None:
        """Raise TransportError unless the store answers."""
        self._call(lambda client: client.ping())

    def server_time(self) -> float:
        """Seconds since 1970 by the store's clock: what expiry goes by."""
        key = _key("", "time")  # a key names the node in a cluster
        seconds, microseconds = self._call(lambda client: client.eval("return redis.call('TIME')", 1, key))
        return int(seconds) + int(microseconds) / 1e6

    def close(self) -> None:
        """Release connections; whoever waits for a change returns within a second."""
        with self._lock:
            self._closed = True
            client, self._connected = self._connected, None
            subscriptions = list(self._subscriptions.values())
        for subscription in subscriptions:
            subscription.close()
        if client is not None:
            client.close()

    def _client(self) -> Any:
        with self._lock:
            if self._closed:
                raise TransportError(f"{self._name}: the store is closed")
            if self._connected is None:
                self._connected = connect(self._url, self._ca_file, self._answer_seconds)
            return self._connected

    def _move(self, url: str) -> None:
        """Go to another server with the next call."""
        with self._lock:
            if url == self._url:
                return
            self._url, self._name = url, mask_url(url)
            client, self._connected = self._connected, None
        if client is not None:
            client.close()

    def _call(self, work: Callable[[Any], Result]) -> Result:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return work(self._client())
            except (RedisConnectionError, RedisTimeoutError) as error:
                if attempt == _ATTEMPTS:
                    raise TransportError(f"{self._name}: {error}") from error
                time.sleep(0.05)
            except (RedisError, RedisClusterException, OSError) as error:
                raise TransportError(f"{self._name}: {error}") from error
        raise AssertionError("unreachable")


def channel(deployment: str) -> str:
    """Channel that tells of every change of a deployment."""
    return _key(deployment, "changed")


def _key(deployment: str, kind: str) -> str:
    return f"dspark:{{{deployment}}}:{kind}"
