"""Rollouts: candidates on their way, and the evidence for and against them."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from calibrator.service.web.models.base import Figure, Given, Instant, Shown
from calibrator.service.web.models.changes import Reason
from calibrator.store.rollouts import Event, Rollout

RolloutState = Literal["running", "done", "aborted"]


class Measure(Shown):
    """One comparison of canary and control; intervals hold at every look at once."""

    measure: str = Field(description="acceptance, calibration, step_time or throughput.")
    canary: Figure = Field(
        description="Accepted tokens per round; log loss per position (of both sets on the canary's rows); "
        "mean log of step seconds over expected ones; null for throughput, which is relative."
    )
    control: Figure
    difference: Figure = Field(
        description="Canary less control, in the unit of the two; for throughput the log of the ratio."
    )
    low: Figure
    high: Figure
    n_canary: int = Field(description="Rounds, positions or steps.")
    n_control: int
    verdict: Literal["better", "worse", "undecided"]
    bounded: bool = Field(description="A loss as large as the tolerance is excluded.")
    decides: bool = Field(description="The rollout ends by it; the others explain.")
    tolerance: float


class ShadowMeasure(Measure):
    """The candidate against the set in force, on everybody's rows, applied nowhere."""

    rounds: int


class Decision(Shown):
    """What the last look came to."""

    action: Literal["promote", "abort", "wait"]
    reason: str


class Sides(Shown):
    """Live replicas by side, and how many compute with the candidate."""

    canary: int
    control: int
    applied: int


class RolloutEvidence(Shown):
    """What the last look found, stage by stage."""

    shadow: ShadowMeasure | None = None
    canary: list[Measure] = Field(default_factory=list)
    decision: Decision | None = None
    replicas: Sides | None = None
    curve: bool | None = Field(
        default=None,
        description="Whether step times are relative to a throughput curve; without one (false) the figures "
        "of step_time are logs of plain seconds, and only their difference is relative.",
    )


class RolloutEvent(Shown):
    """One line of the history."""

    at: Instant
    stage: str
    reason: str
    by: str = Field(description="Subject of the caller, controller or refresh.")


class RolloutItem(Shown):
    """A rollout."""

    id: int
    deployment: str
    version: int = Field(description="The candidate.")
    control_version: int | None = Field(description="What it is compared with; null is the identity.")
    stage: Literal["shadow", "canary", "all", "aborted"]
    state: RolloutState
    share: float = Field(description="Part of the replicas, by hash, that takes the candidate in canary.")
    share_asked: float = Field(
        description="The share that was asked for. Where it would leave no live replica on a side, ``share`` "
        "is the nearest possible."
    )
    started_at: Instant
    stage_since: Instant
    finished_at: Instant | None
    reason: str | None = Field(description="Why it ended.")
    evidence: RolloutEvidence
    history: list[RolloutEvent]

    @classmethod
    def of(cls, rollout: Rollout, deployment: str, history: list[Event]) -> RolloutItem:
        """Show a stored rollout."""
        return cls(
            id=rollout.id,
            deployment=deployment,
            version=rollout.version,
            control_version=rollout.control_version or None,
            stage=rollout.stage,  # type: ignore[arg-type]  # validated here
            state=rollout.state,  # type: ignore[arg-type]
            share=rollout.share,
            share_asked=rollout.evidence.get("asked_share", rollout.share),
            started_at=rollout.started_at,
            stage_since=rollout.stage_since,
            finished_at=rollout.finished_at,
            reason=rollout.reason,
            evidence=RolloutEvidence.model_validate(rollout.evidence),
            history=[RolloutEvent(at=e.at, stage=e.stage, reason=e.reason, by=e.actor) for e in history],
        )


class NewRollout(Given):
    """Put what a version holds on trial; it gets a new number."""

    model_config = ConfigDict(json_schema_extra={"example": {"version": 12, "share": 0.2, "reason": "again"}})

    version: int = Field(ge=1, lt=2**32)
    share: float | None = Field(
        default=None, gt=0, le=1, description="Left out: as the deployment's settings."
    )
    stage: Literal["shadow", "canary"] | None = Field(default=None, description="Where to begin.")
    reason: Reason = ""


class Promotion(Given):
    """Move on by hand."""

    model_config = ConfigDict(json_schema_extra={"example": {"reason": "looked at it", "stage": "all"}})

    stage: Literal["canary", "all"] = Field(default="all", description="How far.")
    reason: Reason = ""


class Withdrawal(Given):
    """End by hand."""

    model_config = ConfigDict(json_schema_extra={"example": {"reason": "incident"}})

    reason: Reason = ""
