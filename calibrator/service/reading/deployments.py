"""The overview of deployments: how each is, at a glance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sqlalchemy import Connection

from calibrator.core.status import Status
from calibrator.core.windows import WindowSums
from calibrator.service.reading.figures import figures_of, number
from calibrator.service.refresh import LIVE_SECONDS
from calibrator.store import episodes, fleet, window_series
from calibrator.store.deployments import Deployment
from calibrator.store.fleet import Ingested, Judged, LatestVersion
from calibrator.store.windows import HOUR

DeploymentStatus = Literal["ok", "drifting", "insufficient", "stale", "no_data", "frozen"]

RECENT_HOURS = 2
"""The present: this hour and the one before, so that there are labels just after the full hour too."""

BASELINE = "identity"
"""What value is measured against: the confidences as the head gives them."""
IN_FORCE = "in force"


@dataclass(frozen=True, slots=True)
class Worst:
    """The position whose error exceeds its noise floor the most."""

    position: int
    ece: float | None
    ece_low: float | None
    ece_high: float | None
    noise_floor: float | None
    gap: float | None
    n_eff: float
    status: Status


@dataclass(frozen=True, slots=True)
class Value:
    """Tokens per second of the set in force, and the change against the baseline (0.02: 2 % more)."""

    baseline: str
    tokens_per_second: float | None
    relative: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Overview:
    """What the store says of one deployment."""

    deployment: Deployment
    status: DeploymentStatus
    ingested: Ingested
    latest: LatestVersion | None
    worst: Worst | None
    drift: Mapping[str, int] = field(default_factory=dict)
    value: Value | None = None


def overviews(connection: Connection, known: Sequence[Deployment], now: float) -> list[Overview]:
    """Look at these deployments, with as many queries for a hundred as for one."""
    if not known:
        return []
    ids = [deployment.id for deployment in known]
    end = (math.floor(now / HOUR) + 1) * HOUR
    recent = window_series.of_deployments(
        connection, {d.id: d.gamma for d in known}, end - RECENT_HOURS * HOUR, end
    )
    rows = fleet.ingested(connection, ids)
    versions = fleet.latest_versions(connection, ids)
    drifting = episodes.open_kinds(connection)
    judged = fleet.latest_evidence(connection, "value", ids)
    return [
        _overview(
            deployment,
            recent.get(deployment.id),
            rows.get(deployment.id, Ingested()),
            versions.get(deployment.id),
            drifting.get(deployment.id, {}),
            judged.get(deployment.id),
            now,
        )
        for deployment in known
    ]


def value_of(rows: Any) -> Value | None:
    """Value of the parameters in force by the rows of a refresh's evidence, at the first concurrency.

    >>> interval = {"estimate": 1.5, "low": 1.25, "high": 1.75}
    >>> rows = [{"policy": "in force", "tokens_per_second": interval, "against_identity": interval}]
    >>> value_of(rows)
    Value(baseline='identity', tokens_per_second=1.5, relative=0.5, low=0.25, high=0.75)
    """
    row = next((row for row in rows or [] if row.get("policy") == IN_FORCE), None)
    if row is None:
        return None
    change = row["against_identity"]
    return Value(
        baseline=BASELINE,
        tokens_per_second=row["tokens_per_second"]["estimate"],
        relative=_less_one(change["estimate"]),
        low=_less_one(change["low"]),
        high=_less_one(change["high"]),
    )


def worst_position(sums: WindowSums) -> tuple[Worst | None, list[Status]]:
    """Return the worst position of recent sums, and the status of every one."""
    figures = figures_of(sums.scalars, sums.bins)
    statuses: list[Status] = figures.status.tolist()
    # A position that is known well comes before one with a large error from a handful of labels.
    ranked = sorted(
        (k for k in range(sums.gamma) if math.isfinite(figures.ece[k])),
        key=lambda k: (statuses[k] != "ok", -float(figures.excess[k]), -float(figures.ece[k])),
    )
    if not ranked:
        return None, statuses
    k = ranked[0]
    worst = Worst(
        position=k + 1,
        ece=number(figures.ece[k]),
        ece_low=number(figures.ece_low[k]),
        ece_high=number(figures.ece_high[k]),
        noise_floor=number(figures.noise_floor[k]),
        gap=number(figures.gap[k]),
        n_eff=float(figures.n_eff[k]),
        status=statuses[k],
    )
    return worst, statuses


def _overview(
    deployment: Deployment,
    sums: WindowSums | None,
    rows: Ingested,
    latest: LatestVersion | None,
    drift: Mapping[str, int],
    judged: Judged | None,
    now: float,
) -> Overview:
    worst, statuses = (None, []) if sums is None else worst_position(sums)
    return Overview(
        deployment=deployment,
        status=_status(deployment, rows, drift, statuses, now),
        ingested=rows,
        latest=latest,
        worst=worst,
        drift=drift,
        value=None if judged is None else value_of(judged.evidence),
    )


def _status(
    deployment: Deployment,
    rows: Ingested,
    drift: Mapping[str, int],
    statuses: Sequence[Status],
    now: float,
) -> DeploymentStatus:
    """The first of these that holds: what stands in the way of the next is told first."""
    if rows.last_seen is None or not rows.folded:
        return "no_data"
    if deployment.frozen:
        return "frozen"
    if now - rows.last_seen > LIVE_SECONDS:
        return "stale"
    if any(drift.values()):
        return "drifting"
    return "ok" if "ok" in statuses else "insufficient"


def _less_one(value: float | None) -> float | None:
    return None if value is None else value - 1.0
