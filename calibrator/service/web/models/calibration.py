"""Calibration over time, and reliability diagrams."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from calibrator.core.population import Population
from calibrator.core.status import Status
from calibrator.service.web.lookup import SamplingBucket
from calibrator.service.web.models.base import Figure, Instant, Shown

Ece = Annotated[Figure, Field(description="Expected calibration error, 20 bins; a probability.")]
EceLow = Annotated[
    Figure,
    Field(
        description="95 % interval of the true error, lower end. With population 'verified traffic only' the "
        "interval is of the whole traffic and holds whatever the missing labels are."
    ),
]
EceHigh = Annotated[Figure, Field(description="The same, upper end.")]
NoiseFloor = Annotated[
    Figure, Field(description="Error that a perfectly calibrated predictor would show on as many labels.")
]
Gap = Annotated[Figure, Field(description="Mean predicted less mean observed: above 0 is overconfident.")]
Effective = Annotated[float, Field(description="Kish's effective number of labels.", ge=0)]
StatusField = Annotated[Status, Field(description="What the figure is worth.")]
PopulationField = Annotated[
    Population, Field(description="Whom the figures describe; 'traffic' is weighted by inverse propensity.")
]


class Point(Shown):
    """Figures of one window and position; null where undefined."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "at": "2026-11-29T22:00:00.000Z", "ece": 0.021, "ece_low": 0.006, "ece_high": 0.028,
                "noise_floor": 0.011, "squared_error": 0.0004, "gap": 0.012, "gap_low": 0.004,
                "gap_high": 0.02, "brier": 0.16, "log_loss": 0.49, "predicted": 0.71, "observed": 0.698,
                "n_eff": 5210.0, "drafted": 6000, "verified": 5400, "coverage": 0.9, "status": "ok",
                "population": "traffic",
            }
        }
    )  # fmt: skip

    at: Instant
    ece: Ece
    ece_low: EceLow
    ece_high: EceHigh
    noise_floor: NoiseFloor
    squared_error: Figure = Field(
        description="Debiased squared calibration error (Kumar, Liang, Ma 2019); may be negative."
    )
    gap: Gap
    gap_low: Figure = Field(description="95 % interval of the gap, lower end.")
    gap_high: Figure = Field(description="The same, upper end.")
    brier: Figure = Field(description="Mean squared difference of prediction and label.")
    log_loss: Figure = Field(description="Mean negative log likelihood, in nats.")
    predicted: Figure = Field(description="Mean predicted survival of the prefix.")
    observed: Figure = Field(description="Mean observed survival of the prefix.")
    n_eff: Effective
    drafted: int = Field(description="Rounds of the traffic.", ge=0)
    verified: int = Field(description="Of these, rounds in which the position was verified.", ge=0)
    coverage: Figure = Field(description="verified / drafted.")
    status: StatusField
    population: PopulationField


class PositionSeries(Shown):
    """One draft position over time."""

    position: int = Field(description="Draft position, from 1.", ge=1)
    points: list[Point]


class CalibrationSeries(Shown):
    """Calibration of a deployment over time."""

    deployment: str
    start: Instant = Field(alias="from")
    end: Instant = Field(alias="to")
    step: float = Field(description="Seconds per point.", gt=0)
    segment: str | None
    sampling: SamplingBucket | None
    basis: Literal["in_force", "raw"] = Field(
        description="Predictions of the parameters that were in force, or of the raw confidences."
    )
    positions: list[PositionSeries]


class ReliabilityBin(Shown):
    """One bin ``[lower, upper)`` of predicted survival; the last one is closed."""

    lower: float
    upper: float
    mass: float = Field(description="Share of the population in the bin.")
    predicted: Figure = Field(description="Mean prediction of its labelled rounds; null without one.")
    observed: Figure = Field(description="Share of them that survived.")
    observed_low: Figure = Field(description="95 % interval of it (Wilson), lower end.")
    observed_high: Figure = Field(description="The same, upper end.")
    band_low: Figure = Field(
        description="Where the observed share lies, 95 %, if the predictions are right: lower end."
    )
    band_high: Figure = Field(description="The same, upper end.")
    n_eff: Effective


class Diagram(Shown):
    """A reliability diagram with its figures."""

    ece: Ece
    ece_low: EceLow
    ece_high: EceHigh
    noise_floor: NoiseFloor
    gap: Gap
    n_eff: Effective
    status: StatusField
    population: PopulationField
    bins: list[ReliabilityBin]


class PositionDiagrams(Shown):
    """Diagrams of one position under the parameters in force and of the raw confidences."""

    position: int = Field(ge=1)
    in_force: Diagram
    raw: Diagram


class Reliability(Shown):
    """Reliability diagrams of a deployment."""

    deployment: str
    start: Instant = Field(alias="from")
    end: Instant = Field(alias="to")
    segment: str | None
    sampling: SamplingBucket | None
    positions: list[PositionDiagrams]
