"""Calibration per position over time, and reliability diagrams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query
from starlette.responses import Response

from calibrator.service.reading.calibration import calibration_series
from calibrator.service.reading.figures import Figures, numbers
from calibrator.service.reading.ranges import MINUTES_UP_TO, Steps, cut_range, whole_hours
from calibrator.service.reading.reliability import EDGES, Diagrams, read_diagrams
from calibrator.service.web.context import Context
from calibrator.service.web.lookup import (
    SamplingQuery,
    SegmentQuery,
    check_positions,
    check_segment,
    known_deployment,
)
from calibrator.service.web.models.base import DeploymentName
from calibrator.service.web.models.calibration import CalibrationSeries, Reliability
from calibrator.service.web.problems import problem_responses
from calibrator.service.web.times import FromQuery, StepQuery, ToQuery, format_time, time_range

router = APIRouter(tags=["calibration"])

PositionsQuery = Annotated[
    list[int] | None, Query(alias="position", description="Only these draft positions, from 1; repeats.")
]
_FLOATS = (
    "ece", "ece_low", "ece_high", "noise_floor", "squared_error", "gap", "gap_low", "gap_high", "brier",
    "log_loss", "predicted", "observed", "n_eff", "coverage",
)  # fmt: skip
_POPULATION = {True: "traffic", False: "verified traffic only"}


@router.get(
    "/deployments/{deployment}/calibration",
    operation_id="get_calibration",
    summary="Calibration per position over time",
    response_model=CalibrationSeries,
    responses=problem_responses(404),
)
def get_calibration(
    context: Context,
    deployment: DeploymentName,
    start: FromQuery = None,
    end: ToQuery = None,
    step: StepQuery = None,
    segment: SegmentQuery = None,
    sampling: SamplingQuery = None,
    basis: Annotated[
        Literal["in_force", "raw"], Query(description="Predictions in force, or raw confidences.")
    ] = "in_force",
    positions: PositionsQuery = None,
) -> Response:
    """Give a point per step, nulls where nothing ran.

    Points begin at multiples of the step since 1970; the first and the last one may reach beyond the range.
    Ranges of more than six hours are cut into whole hours unless a step says otherwise.
    """
    given = time_range(start, end, step, context.clock.now())
    steps = cut_range(given.start, given.end, given.step, context.settings.window_seconds)
    with context.store.read() as connection:
        known = known_deployment(connection, deployment)
        check_segment(connection, known, segment)
        check_positions(known, positions)
        found = calibration_series(
            connection, known, steps, basis=basis, segment=segment, sampling=sampling, positions=positions
        )
    # Thousands of points: rendered as they are, past the validation of a model. A test holds them to it.
    body = {
        "deployment": known.name,
        "from": format_time(steps.start),
        "to": format_time(steps.end),
        "step": float(steps.step),
        "segment": segment,
        "sampling": sampling,
        "basis": basis,
        "positions": _series(found.figures, found.positions, steps),
    }
    return Response(msgspec.json.encode(body), media_type="application/json")


@router.get(
    "/deployments/{deployment}/reliability",
    operation_id="get_reliability",
    summary="Reliability diagrams per position",
    response_model=Reliability,
    responses=problem_responses(404),
)
def get_reliability(
    context: Context,
    deployment: DeploymentName,
    start: FromQuery = None,
    end: ToQuery = None,
    segment: SegmentQuery = None,
    sampling: SamplingQuery = None,
) -> Response:
    """Give the diagrams of a range, before (raw confidences) and after (parameters in force).

    Ranges of more than six hours are widened to whole hours.
    """
    given = time_range(start, end, None, context.clock.now())
    if given.end - given.start > MINUTES_UP_TO:
        first, last = whole_hours(given.start, given.end)
    else:
        steps = cut_range(given.start, given.end, None, context.settings.window_seconds)
        first, last = steps.start, steps.end
    with context.store.read() as connection:
        known = known_deployment(connection, deployment)
        check_segment(connection, known, segment)
        in_force, raw = read_diagrams(connection, known, first, last, segment=segment, sampling=sampling)
    shown = zip(_diagrams(in_force), _diagrams(raw), strict=True)
    body = {
        "deployment": known.name,
        "from": format_time(first),
        "to": format_time(last),
        "segment": segment,
        "sampling": sampling,
        "positions": [
            {"position": position, "in_force": after, "raw": before}
            for position, (after, before) in enumerate(shown, start=1)
        ],
    }
    return Response(msgspec.json.encode(body), media_type="application/json")


def _series(figures: Figures, positions: Sequence[int], steps: Steps) -> list[dict[str, Any]]:
    at = [format_time(start) for start in steps.starts]
    population = [_POPULATION[traffic] for traffic in figures.traffic.tolist()]
    names = ("at", *_FLOATS, "drafted", "verified", "status", "population")
    shown = []
    for position in positions:
        k = position - 1
        columns = [numbers(getattr(figures, name)[:, k]) for name in _FLOATS]
        counts = [getattr(figures, name)[:, k].tolist() for name in ("drafted", "verified", "status")]
        rows = zip(at, *columns, *counts, population, strict=True)
        points = [dict(zip(names, row, strict=True)) for row in rows]
        shown.append({"position": position, "points": points})
    return shown


def _diagrams(found: Diagrams) -> list[dict[str, Any]]:
    figures = found.figures
    bins = figures.bins
    some = bins.n_eff > 0
    lower, upper = EDGES[:-1].tolist(), EDGES[1:].tolist()
    shown = []
    for k in range(len(figures.ece)):
        known = some[k]
        columns = {
            "mass": bins.mass[k].tolist(),
            "predicted": _where(known, numbers(bins.predicted[k])),
            "observed": _where(known, numbers(bins.observed[k])),
            "observed_low": numbers(found.observed_low[k]),
            "observed_high": numbers(found.observed_high[k]),
            "band_low": numbers(found.band_low[k]),
            "band_high": numbers(found.band_high[k]),
            "n_eff": bins.n_eff[k].tolist(),
        }
        rows = zip(lower, upper, *columns.values(), strict=True)
        names = ("lower", "upper", *columns)
        shown.append(
            {
                **{
                    name: numbers(getattr(figures, name))[k]
                    for name in ("ece", "ece_low", "ece_high", "noise_floor", "gap", "n_eff")
                },
                "status": figures.status[k],
                "population": _POPULATION[bool(figures.traffic)],
                "bins": [dict(zip(names, row, strict=True)) for row in rows],
            }
        )
    return shown


def _where(known: Sequence[bool], values: list[Any]) -> list[Any]:
    return [value if is_known else None for is_known, value in zip(known, values, strict=True)]
