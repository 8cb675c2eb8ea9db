"""What is planned for deployments: schedules and rollouts, for an overview."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import Connection

from calibrator.service.jobs.cron import CronError
from calibrator.service.jobs.ticks import next_tick
from calibrator.store import rollouts, schedules
from calibrator.store.deployments import Deployment
from calibrator.store.rollouts import Rollout
from calibrator.store.schedules import Schedule

_MOST_ROLLOUTS = 10_000


@dataclass(frozen=True, slots=True)
class Plan:
    """When a deployment is recalibrated; ``interval_seconds`` is what holds unless ``cron`` does."""

    interval_seconds: float | None
    cron: str | None
    paused: bool
    next_run_at: float | None
    source: Literal["default", "set"]


@dataclass(frozen=True, slots=True)
class Plans:
    """Schedules that somebody set, and rollouts under way, by deployment id."""

    schedules: Mapping[int, Schedule]
    rollouts: Mapping[int, Rollout]

    def schedule_of(self, deployment: Deployment, default_seconds: float, now: float) -> Plan:
        """When the deployment is recalibrated."""
        stored = self.schedules.get(deployment.id, Schedule())
        try:
            upcoming = next_tick(stored, default_seconds, deployment.created_at, now)
        except CronError:
            upcoming = None
        interval = stored.interval_seconds if stored.cron is None else None
        if stored.cron is None and interval is None:
            interval = default_seconds
        return Plan(
            interval_seconds=interval,
            cron=stored.cron,
            paused=stored.paused,
            next_run_at=upcoming,
            source="set" if stored.interval_seconds is not None or stored.cron is not None else "default",
        )


def read_plans(connection: Connection) -> Plans:
    """Read both by one query each."""
    under_way = rollouts.recent(connection, state=rollouts.RUNNING, limit=_MOST_ROLLOUTS)
    return Plans(schedules.every(connection), {each.deployment_id: each for each in under_way})
