"""Deployments: how each is at a glance, and one in full."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field

from calibrator.core.status import Status
from calibrator.service.reading.deployments import DeploymentStatus
from calibrator.service.web.models.base import Figure, Instant, Probability, Shown

EXAMPLE: dict[str, Any] = {
    "name": "chat", "gamma": 7, "fingerprint": "9c1f", "frozen": False,
    "created_at": "2026-11-28T09:00:00.000Z", "last_seen_at": "2026-11-29T22:34:49.123Z", "rounds": 81234567,
    "version": 12, "form": "affine", "explore": 0.01, "status": "ok",
    "worst": {
        "position": 6, "ece": 0.024, "ece_low": 0.004, "ece_high": 0.031, "noise_floor": 0.012,
        "gap": -0.008, "n_eff": 4210.0, "status": "ok",
    },
    "drift": {"open": 0, "kinds": []},
    "replicas": {"live": 8, "refusing": 0, "versions": {"12": 8}},
    "value": {
        "baseline": "identity", "tokens_per_second": 2114.0, "relative": 0.021, "low": 0.012, "high": 0.03,
    },
    "schedule": None, "rollout": None,
}  # fmt: skip


class Worst(Shown):
    """The position whose error exceeds its noise floor the most, over this hour and the one before."""

    position: int = Field(ge=1)
    ece: Figure = Field(description="Expected calibration error, 20 bins.")
    ece_low: Figure
    ece_high: Figure
    noise_floor: Figure = Field(description="Error that a calibrated predictor would show.")
    gap: Figure = Field(description="Mean predicted less mean observed.")
    n_eff: float = Field(description="Effective number of labels.", ge=0)
    status: Status


class OpenDrift(Shown):
    """Episodes of drift that last."""

    open: int = Field(ge=0)
    kinds: list[Literal["calibration", "acceptance", "traffic", "cost"]]


class ReplicaCounts(Shown):
    """Live replicas."""

    live: int = Field(ge=0)
    refusing: int = Field(description="Those that refused a newer version than they run.", ge=0)
    versions: dict[str, int] = Field(description="Version -> replicas that run it; 0 is the identity.")


class Value(Shown):
    """What the parameters in force are worth in the replayed scheduler, by the newest refresh."""

    baseline: str = Field(description="identity: the confidences as the head gives them.")
    tokens_per_second: Figure
    relative: Figure = Field(description="Change against the baseline: 0.02 is 2 % more tokens per second.")
    low: Figure = Field(description="95 % interval of the change, lower end.")
    high: Figure = Field(description="The same, upper end.")


class ScheduleBrief(Shown):
    """When the deployment is recalibrated."""

    deployment: str
    interval_seconds: Figure
    cron: str | None
    paused: bool
    next_run_at: Instant | None
    source: Literal["default", "set"]


class RolloutBrief(Shown):
    """A rollout under way."""

    id: int
    stage: str


class DeploymentSummary(Shown):
    """One deployment at a glance."""

    model_config = ConfigDict(json_schema_extra={"example": EXAMPLE})

    name: str
    gamma: int = Field(description="Draft positions.", ge=1)
    fingerprint: str = Field(description="Engine configuration whose rows are evidence.")
    frozen: bool = Field(description="Measured, not refreshed.")
    created_at: Instant
    last_seen_at: Instant | None = Field(description="When rows last came in; null before the first.")
    rounds: int = Field(description="Rounds folded so far.", ge=0)
    version: int | None = Field(description="Newest parameter version.")
    form: str | None = Field(description="Its form: temperature or affine.")
    explore: Probability | None = Field(description="Its exploration probability.")
    status: DeploymentStatus = Field(
        description="The first that holds of: no_data, frozen, stale (no rows for ten minutes), drifting, "
        "insufficient (no position has enough labels), ok."
    )
    worst: Worst | None
    drift: OpenDrift
    replicas: ReplicaCounts | None = Field(description="null while the parameter store cannot be reached.")
    value: Value | None
    schedule: ScheduleBrief | None
    rollout: RolloutBrief | None


class DeploymentDetail(DeploymentSummary):
    """One deployment in full. The ETag covers name, gamma, fingerprint, settings and frozen."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                **EXAMPLE,
                "settings": {},
                "segments": ["chat", "code"],
                "samplings": ["greedy", "mid"],
            }
        }
    )

    settings: dict[str, Any] = Field(description="What an operator has set; all else has its default.")
    segments: list[str]
    samplings: list[str] = Field(description="Sampling buckets that rows came from.")


class Coverage(Shown):
    """How much of one position was verified in the range."""

    position: int = Field(ge=1)
    drafted: int = Field(ge=0)
    verified: int = Field(ge=0)
    share: Figure = Field(description="verified / drafted.")


class ExplorationDecision(Shown):
    """One decision, made by a refresh; costs are per round."""

    at: Instant
    refresh: int
    explore: Probability
    reason: str
    extra_verified: Figure = Field(description="Draft tokens verified beyond the schedule, per round.")
    extra_share: Figure = Field(description="The same relative to what is verified anyway.")
    tokens_per_second: Figure = Field(
        description="Change of the engine's output; null where step times are unknown."
    )
    relative_speed: Figure = Field(description="The same, relative.")


class Exploration(Shown):
    """How much is explored, why, and what it costs."""

    settings: dict[str, Any] = Field(description="What an operator has set of it.")
    explore: Probability | None = Field(description="Probability in force; null without a version.")
    decisions: list[ExplorationDecision] = Field(description="Newest first.")
    start: Instant = Field(alias="from", description="Range of the coverage.")
    end: Instant = Field(alias="to")
    coverage: list[Coverage]
