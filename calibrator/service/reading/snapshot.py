"""Everything that a metrics page shows of the deployments, read at once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy import Connection

from calibrator.core.throughput_ledger import LedgerFigures
from calibrator.core.windows import WindowSums
from calibrator.service.reading.deployments import RECENT_HOURS, Overview, overviews
from calibrator.store import fleet, ledger_sums, parameters, window_series
from calibrator.store.windows import HOUR
from serving_adapter.contract import ParameterDocument

MAX_DEPLOYMENTS = 200
"""Deployments shown, by name: labels must not grow without bound. Segments are never labels."""
LEDGER_SECONDS = 600.0
"""Throughput is of the last ten minutes."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One deployment: overview, sums of recent hours (by start) in force, newest document, ledger."""

    overview: Overview
    hours: Mapping[int, WindowSums]
    document: ParameterDocument | None
    ledger: LedgerFigures
    refreshes: Mapping[str, int] = field(default_factory=dict)
    runs: Mapping[str, int] = field(default_factory=dict)

    @property
    def sums(self) -> WindowSums | None:
        """Sums of the recent hours together, None without rows."""
        together: WindowSums | None = None
        for each in self.hours.values():
            together = each if together is None else together + each
        return together


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All deployments; ``hidden`` counts those beyond :data:`MAX_DEPLOYMENTS`."""

    measured: list[Measured]
    hidden: int


def snapshot(connection: Connection, now: float) -> Snapshot:
    """Read it: a handful of queries, and two small ones per deployment."""
    known = fleet.page(connection, None, MAX_DEPLOYMENTS + 1)
    shown = known[:MAX_DEPLOYMENTS]
    hidden = max(fleet.count(connection) - len(shown), 0) if len(known) > len(shown) else 0
    end = (math.floor(now / HOUR) + 1) * HOUR
    gammas = {deployment.id: deployment.gamma for deployment in shown}
    hours = {
        start: window_series.of_deployments(connection, gammas, start, start + HOUR)
        for start in range(end - RECENT_HOURS * HOUR, end, HOUR)
    }
    refreshed, ran = fleet.refresh_counts(connection), fleet.run_counts(connection)
    measured = []
    for overview in overviews(connection, shown, now):
        deployment = overview.deployment
        latest = parameters.in_force(connection, deployment.id) if overview.latest else None
        measured.append(
            Measured(
                overview=overview,
                hours={start: sums[deployment.id] for start, sums in hours.items() if deployment.id in sums},
                document=latest.document if latest else None,
                ledger=ledger_sums.total(
                    connection, deployment.id, now - LEDGER_SECONDS, now + 1.0
                ).figures(),
                refreshes=refreshed.get(deployment.id, {}),
                runs=ran.get(deployment.id, {}),
            )
        )
    return Snapshot(measured, hidden)
