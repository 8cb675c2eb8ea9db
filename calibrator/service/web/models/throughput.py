"""Step times and the throughput ledger."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from calibrator.service.web.models.base import Figure, Instant, Shown


class Curve(Shown):
    """Seconds of one engine step by batch tokens."""

    batch_tokens: list[int]
    seconds: list[float]
    sps: list[float] = Field(description="Steps per second.")
    status: list[str] = Field(description="Per size: measured, extrapolated, flat, unsupported or stale.")
    interpolation: str


class LiveCurve(Curve):
    """What telemetry says now, whether it may be published or not."""

    n_eff: list[Figure] = Field(description="Effective number of steps per size.")
    standard_error: list[Figure] = Field(description="Of the seconds, relative.")
    dead_spots: list[tuple[int, int]] = Field(
        description="Ranges of sizes that were never scheduled although larger ones were."
    )
    outliers: float = Field(description="Share of steps rejected as outliers.")
    reasons: list[str] = Field(description="Why it may not be published; empty when it may.")


class StepSample(Shown):
    """One sampled step."""

    batch_tokens: int
    seconds: float
    requests: int
    context_tokens: float | None = Field(
        description="Mean context length; null where the engine does not tell."
    )


class AdditiveCurve(Shown):
    """``seconds(R, B) = bias + alpha(R) + theta(B)`` of requests R and batch tokens B."""

    bias_seconds: float
    requests: list[int]
    alpha_seconds: list[float]
    batch_tokens: list[int]
    theta_seconds: list[float]
    error: Figure = Field(description="Relative error of its cells, weighted median.")
    reasons: list[str] = Field(description="Why it may not be published; empty when it may.")


class CostDrift(Shown):
    """Measured against predicted step time over the last hour; null: of all loads or contexts."""

    load_regime: int | None
    context_bucket: int | None
    bias: Figure = Field(description="Median of measured over predicted, less one: 0.1 is 10 % slower.")
    median_relative_error: Figure
    n_eff: float


class CurveReading(Shown):
    """The throughput curve of a deployment."""

    version: int | None = Field(description="Newest parameter version; its curve is the one in force.")
    in_force: Curve | None
    live: LiveCurve | None = Field(description="null before the first step was reported.")
    reasons: list[str] = Field(description="Why the live curve may not be published.")
    samples: list[StepSample]
    additive: AdditiveCurve | None
    drift: list[CostDrift]


class LedgerFigures(Shown):
    """Where the time goes and what came of it; null where unknown."""

    requests_from: int | None = Field(
        description="Smallest number of requests of this load; null: all loads."
    )
    steps: int
    rounds: int
    requests: float = Field(description="Mean requests per step.")
    time_per_token: Figure = Field(description="Seconds of drafting and verifying per accepted draft token.")
    draft_share: Figure = Field(description="Share of the time that went into drafting.")
    wasted: Figure = Field(description="Share of verified draft tokens that were not accepted.")
    accepted_length: Figure = Field(description="Accepted draft tokens per round.")
    emitted_length: Figure = Field(description="Tokens per round that the request received.")
    budget: Figure = Field(description="Draft tokens verified per request and step.")
    tokens_per_second: Figure
    tokens_per_second_per_user: Figure


class LedgerPoint(Shown):
    """One point of time; figures are null where nothing ran."""

    at: Instant
    steps: int
    rounds: int
    requests: float
    time_per_token: Figure
    draft_share: Figure
    wasted: Figure
    accepted_length: Figure
    emitted_length: Figure
    budget: Figure
    tokens_per_second: Figure
    tokens_per_second_per_user: Figure


class Ledger(Shown):
    """The throughput ledger of a range."""

    deployment: str
    start: Instant = Field(alias="from")
    end: Instant = Field(alias="to")
    step: float = Field(description="Seconds per point.")
    total: LedgerFigures
    by_load: list[LedgerFigures] = Field(description="By number of requests, ascending.")
    series: list[LedgerPoint]


class Episode(Shown):
    """One stretch of drift."""

    id: int
    kind: Literal["calibration", "acceptance", "traffic", "cost"]
    segment: str | None
    position: int | None
    load_regime: int | None
    context_bucket: int | None
    direction: Literal["above", "below", "slower", "faster"] | None
    started_at: Instant = Field(description="Estimate of when it began.")
    alarmed_at: Instant = Field(description="When that was sure.")
    ended_at: Instant | None = Field(description="null while it lasts.")
    gap: Figure
    summary: str
    remedy: str
    version: int | None = Field(description="Parameters that were watched.")
