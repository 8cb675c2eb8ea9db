"""Replicas: what each has applied or refused, and when its rows were last seen."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import Connection, func, select

from calibrator.store import schema
from serving_adapter.ports import Clock, ParameterStore, ReplicaReport, TransportError

KEEP_SECONDS = 1.0
"""Reports are repeated every few seconds: pages that ask at once share one look."""


Arm = Literal["control", "canary"]


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica; None is unknown.

    ``version`` is the one in force there (0: identity), ``refused_version`` the last one that it refused,
    with ``reason``. ``boot`` and ``last_seen`` (seconds since 1970) are of its newest process, by the rows
    that came in.
    """

    replica: str
    version: int | None
    reported_at: float | None
    refused_version: int | None
    reason: str | None
    forms: tuple[str, ...]
    fingerprint: str | None
    arm: Arm | None
    boot: str | None
    last_seen: float | None


@dataclass(frozen=True, slots=True)
class ReplicaCounts:
    """Live replicas of a deployment, those that refuse the newest version, and who runs which version."""

    live: int
    refusing: int
    versions: Mapping[str, int]


class ReportCache:
    """Reports of replicas, asked for at most once a second per deployment; safe between threads."""

    def __init__(
        self, parameter_store: ParameterStore, clock: Clock, keep_seconds: float = KEEP_SECONDS
    ) -> None:
        self._parameter_store = parameter_store
        self._clock = clock
        self._keep = keep_seconds
        self._known: dict[str, tuple[float, dict[str, ReplicaReport]]] = {}
        self._failed: tuple[float, str] | None = None
        self._lock = threading.Lock()

    def reports(self, deployment: str) -> dict[str, ReplicaReport]:
        """Reports of live replicas.

        Raises
        ------
        TransportError
            The parameter store cannot be reached. It is not asked again within the second, so that an
            overview of many deployments does not wait for each.
        """
        now = self._clock.monotonic()
        with self._lock:
            if self._failed is not None and now - self._failed[0] < self._keep:
                raise TransportError(self._failed[1])
            known = self._known.get(deployment)
        if known is not None and now - known[0] < self._keep:
            return known[1]
        try:
            found = self._parameter_store.reports(deployment)
        except TransportError as error:
            with self._lock:
                self._failed = (self._clock.monotonic(), str(error))
            raise
        with self._lock:
            self._failed = None
            if len(self._known) > 1000:
                self._known.clear()
            self._known[deployment] = (now, found)
        return found

    def counts(self, deployment: str) -> ReplicaCounts | None:
        """Count the replicas; None while the parameter store cannot be reached."""
        try:
            return count_replicas(self.reports(deployment).values())
        except TransportError:
            return None


def count_replicas(reports: Iterable[ReplicaReport]) -> ReplicaCounts:
    """Count live replicas by what they say.

    >>> made = [ReplicaReport("a", 2, 0.0), ReplicaReport("b", 1, 0.0, refused=2, reason="digest")]
    >>> count_replicas(made)
    ReplicaCounts(live=2, refusing=1, versions={'1': 1, '2': 1})
    """
    given = list(reports)
    versions = Counter(str(report.applied) for report in given)
    return ReplicaCounts(
        live=len(given),
        refusing=sum(report.refused > report.applied for report in given),
        versions={version: versions[version] for version in sorted(versions, key=int)},
    )


def list_replicas(
    connection: Connection,
    deployment_id: int,
    reports: Mapping[str, ReplicaReport],
    since: float,
    arm_of: Callable[[str], Arm | None] = lambda _replica: None,
) -> list[Replica]:
    """Replicas that report, or whose rows were seen since that time, by name.

    Parameters
    ----------
    connection
        From :meth:`Store.read`.
    reports
        Of the parameter store, by replica.
    since
        Seconds since 1970.
    arm_of
        Which arm of a rollout a replica is in, None outside of one.
    """
    table = schema.boots
    newest = (
        select(table.c.replica, func.max(table.c.last_seen).label("seen"))
        .where(table.c.deployment_id == deployment_id, table.c.last_seen >= since)
        .group_by(table.c.replica)
        .subquery()
    )
    rows = connection.execute(
        select(table.c.replica, table.c.boot, table.c.fingerprint, table.c.last_seen)
        .join(newest, (table.c.replica == newest.c.replica) & (table.c.last_seen == newest.c.seen))
        .where(table.c.deployment_id == deployment_id)
    )
    seen = {row.replica: row for row in rows}
    replicas = []
    for name in sorted({*seen, *reports}):
        row, report = seen.get(name), reports.get(name)
        replicas.append(
            Replica(
                replica=name,
                version=report.applied if report else None,
                reported_at=report.reported_at if report else None,
                refused_version=(report.refused or None) if report else None,
                reason=(report.reason or None) if report else None,
                forms=tuple(report.forms) if report else (),
                fingerprint=(report.fingerprint if report else None) or (row.fingerprint if row else None),
                arm=arm_of(name),
                boot=row.boot if row else None,
                last_seen=row.last_seen if row else None,
            )
        )
    return replicas
