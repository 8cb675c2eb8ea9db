"""Schedules and runs of recalibration."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from calibrator.service.jobs.cron import CronError, parse_cron
from calibrator.service.jobs.ticks import MAX_SECONDS, MIN_SECONDS
from calibrator.service.web.models.base import Figure, Given, Instant, Shown
from calibrator.service.web.models.deployments import ScheduleBrief as Schedule
from calibrator.store.runs import Run

__all__ = ["Job", "Recalibrate", "RunItem", "RunState", "Schedule", "ScheduleGiven"]

RunState = Literal["waiting", "running", "done", "failed", "abandoned"]

RUN_EXAMPLE: dict[str, Any] = {
    "id": 4711, "deployment": "chat", "kind": "recalibrate", "trigger": "schedule", "dry_run": False,
    "tick": "2026-11-29T22:35:00.000Z", "state": "done", "outcome": "published", "attempt": 1,
    "holder": "calibrator-0/7/9f86d081884c", "created_at": "2026-11-29T22:35:00.412Z",
    "started_at": "2026-11-29T22:35:00.431Z", "finished_at": "2026-11-29T22:35:02.118Z",
    "duration_seconds": 1.687, "rows": 20000, "version": 42, "refresh": 1337,
    "reasons": ["log loss 0.4121 -> 0.4103 (95 % interval of the gain 0.0011 to 0.0025)"],
}  # fmt: skip

_AS_STORED = (
    "id", "kind", "trigger", "dry_run", "state", "outcome", "attempt", "holder", "created_at", "started_at",
    "finished_at", "version", "reasons",
)  # fmt: skip


class ScheduleGiven(Given):
    """An interval or a cron expression; neither is the interval of the service's settings."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"interval_seconds": 300.0}, {"cron": "*/5 * * * *", "paused": False}]
        }
    )

    interval_seconds: Annotated[float, Field(ge=MIN_SECONDS, le=MAX_SECONDS)] | None = Field(
        default=None, description="Ticks are the whole multiples of this since 1970."
    )
    cron: Annotated[str, Field(min_length=9, max_length=128)] | None = Field(
        default=None, description="Minute, hour, day of month, month, day of week (0 is Sunday), in UTC."
    )
    paused: bool = Field(
        default=False,
        strict=True,
        description="Ticks that pass meanwhile are not made up for. Given alone, the rest stays as it is.",
    )

    @field_validator("cron")
    @classmethod
    def _usable(cls, text: str | None) -> str | None:
        if text is None:
            return None
        try:
            return parse_cron(text).text
        except CronError as error:
            raise ValueError(str(error)) from error

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if self.interval_seconds is not None and self.cron is not None:
            raise ValueError("expected interval_seconds or cron, not both")
        return self

    @property
    def only_pauses(self) -> bool:
        """Whether it says nothing about when: pausing, or going on, with what was set before."""
        return self.model_fields_set == {"paused"}


class Recalibrate(Given):
    """What to do now."""

    dry_run: bool = Field(default=False, description="Decide, and keep the evidence, but publish nothing.")


class RunItem(Shown):
    """One run: what asked for it, who did it, what came of it."""

    model_config = ConfigDict(json_schema_extra={"example": RUN_EXAMPLE})

    id: int
    deployment: str
    kind: Literal["recalibrate"]
    trigger: Literal["schedule", "manual", "alarm"]
    dry_run: bool
    tick: Instant | None = Field(description="Tick of the schedule that it belongs to; null without one.")
    state: RunState
    outcome: str | None = Field(description="published, would_publish, unchanged, no_rows, frozen, error ...")
    attempt: int = Field(description="Services that have begun it; the first one may have died.")
    holder: str | None = Field(description="Service that does it or did it.")
    created_at: Instant
    started_at: Instant | None = Field(description="Begin of the latest attempt.")
    finished_at: Instant | None
    duration_seconds: Figure = Field(description="Of the latest attempt, once it is over.")
    rows: int | None = Field(description="Rows of the sample that it used.")
    version: int | None = Field(description="Version that it made.")
    refresh: int | None = Field(description="Refresh with its evidence.")
    reasons: list[str]

    @classmethod
    def of(cls, run: Run, deployment: str) -> Self:
        """Show a run of the store."""
        duration = None
        if run.started_at is not None and run.finished_at is not None:
            duration = max(0.0, run.finished_at - run.started_at)
        return cls.model_validate(
            {
                **{name: getattr(run, name) for name in _AS_STORED},
                "deployment": deployment,
                "tick": None if run.tick is None else run.tick / 1000.0,
                "duration_seconds": duration,
                "rows": run.rows_used,
                "refresh": run.refresh_id,
            }
        )


class Job(Shown):
    """What is done for a deployment again and again, and how it went last."""

    deployment: str
    kind: Literal["recalibrate"] = "recalibrate"
    schedule: Schedule
    last_run: RunItem | None
