"""Ticks: the moments at which a schedule is due, the same for every service that computes them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from calibrator.service.jobs.cron import parse_cron
from calibrator.store.schedules import Schedule

MIN_SECONDS = 1.0
MAX_SECONDS = 366 * 86_400.0


class Ticks(Protocol):
    """A sequence of moments, in seconds since 1970."""

    def at_or_before(self, moment: float) -> float | None:
        """Last tick up to ``moment``, None if there is none."""

    def after(self, moment: float) -> float | None:
        """First tick above ``moment``, None if there is none."""


@dataclass(frozen=True, slots=True)
class IntervalTicks:
    """Every whole multiple of ``seconds`` since 1970.

    >>> IntervalTicks(60.0).at_or_before(125.0), IntervalTicks(60.0).after(120.0)
    (120.0, 180.0)
    """

    seconds: float

    def at_or_before(self, moment: float) -> float | None:
        """Last tick up to ``moment``."""
        return math.floor(moment / self.seconds) * self.seconds

    def after(self, moment: float) -> float | None:
        """First tick above ``moment``."""
        return (math.floor(moment / self.seconds) + 1) * self.seconds


def ticks_of(schedule: Schedule, default_seconds: float) -> Ticks:
    """Ticks of a schedule; one that says nothing takes the service's own interval.

    Raises
    ------
    CronError
        The stored expression cannot be used.
    """
    if schedule.cron is not None:
        return parse_cron(schedule.cron)
    return IntervalTicks(schedule.interval_seconds or default_seconds)


def due_tick(schedule: Schedule, default_seconds: float, created_at: float, now: float) -> float | None:
    """Latest tick that a deployment should have run by ``now``; None: none yet, or it is paused.

    A deployment gathers rows for one whole interval between two ticks before its first run. Earlier ticks
    that were missed are not named: one run makes up for all of them.

    Parameters
    ----------
    created_at, now
        Seconds since 1970.
    """
    if schedule.paused:
        return None
    ticks = ticks_of(schedule, default_seconds)
    tick = ticks.at_or_before(now)
    if tick is None or tick <= schedule.since or not _gathered(ticks, tick, created_at):
        return None
    return tick


def next_tick(schedule: Schedule, default_seconds: float, created_at: float, now: float) -> float | None:
    """First tick above ``now`` that will be run; None while it is paused."""
    if schedule.paused:
        return None
    ticks = ticks_of(schedule, default_seconds)
    tick = ticks.after(max(now, schedule.since))
    while tick is not None and not _gathered(ticks, tick, created_at):
        tick = ticks.after(tick)
    return tick


def _gathered(ticks: Ticks, tick: float, created_at: float) -> bool:
    before = ticks.at_or_before(tick - 1e-3)
    return before is not None and before >= created_at
