"""Replicas, refreshes, and what became of every row."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from calibrator.service.web.models.base import Figure, Instant, Shown


class Replica(Shown):
    """One replica; null is unknown."""

    replica: str
    version: int | None = Field(description="Version in force there; 0 is the identity.")
    applied_at: Instant | None = Field(description="When it last said so.")
    refused_version: int | None
    reason: str | None = Field(description="Why it refused that version.")
    forms: list[str] = Field(description="Forms that its engine can apply.")
    fingerprint: str | None
    arm: Literal["control", "canary"] | None = Field(description="Its side of a rollout under way.")
    boot: str | None = Field(description="Its newest process.")
    last_seen_at: Instant | None = Field(description="When rows of it last came in.")


class RefreshItem(Shown):
    """One attempt to refresh the parameters."""

    id: int
    started_at: Instant
    finished_at: Instant | None = Field(description="null while it runs, or if its service died.")
    outcome: str | None = Field(description="published, would_publish, unchanged, no_rows, conflict ...")
    reasons: list[str]
    version: int | None = Field(description="Version that it published.")


class RefreshDetail(RefreshItem):
    """With everything that it decided on."""

    evidence: dict[str, Any]


class RowCounts(Shown):
    """``emitted = folded + lost + dead_lettered + in_flight``."""

    emitted: int = Field(description="Rows that replicas numbered, as far as messages told.")
    folded: int
    lost: int = Field(description="Overwritten in the ring before they were read.")
    dead_lettered: int = Field(description="In messages that could not be decoded.")
    in_flight: int
    duplicates: int = Field(description="Arrived again and were discarded.")
    unknown_version: int = Field(description="Folded under the identity only: their version is not known.")
    misdated: int = Field(description="Folded at their arrival: their own time cannot be.")


class Boot(Shown):
    """Rounds of one process start."""

    replica: str
    boot: str
    first_seen_at: Instant
    last_seen_at: Instant
    folded: int
    lost: int
    dead_lettered: int
    in_flight: int


class Accounting(Shown):
    """What became of every row; the newest 500 process starts one by one."""

    rounds: RowCounts
    steps: RowCounts
    boots: list[Boot]


class IntervalEstimate(Shown):
    """An estimate and its 95 % interval."""

    estimate: Figure
    low: Figure
    high: Figure


class PolicyValue(Shown):
    """What one policy is worth at one number of requests, replayed on logged rounds."""

    policy: str = Field(examples=["identity", "in force", "candidate", "verify all"])
    concurrency: int = Field(description="Requests running at a time.", ge=1)
    tokens_per_second: IntervalEstimate
    against_identity: IntervalEstimate = Field(description="Ratio of tokens per second.")
    against_verify_all: IntervalEstimate
    against_verify_none: IntervalEstimate
    regret: IntervalEstimate | None = Field(
        description="Share of perfect foresight's tokens per second that it misses; null where unknown."
    )
    accepted: Figure = Field(description="Draft tokens accepted per round, bonus token excluded.")
    verified: Figure = Field(description="Draft tokens verified per round.")
    supported: Figure = Field(description="Share of the positions it would verify whose label can be seen.")


class CalibrationValue(Shown):
    """What calibration is worth, by the newest refresh that had rows."""

    refresh: int | None
    at: Instant | None
    values: list[PolicyValue]
    reasons: list[str] = Field(
        description="Why there are no values, or which curve but the live one they were replayed with."
    )
