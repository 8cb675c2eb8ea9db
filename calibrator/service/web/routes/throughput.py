"""Step times, the throughput ledger, and what became of every row."""

from __future__ import annotations

import dataclasses
from typing import Any

from fastapi import APIRouter

from calibrator.core.cost import AdditiveFit, CurveFit
from calibrator.core.throughput_ledger import LedgerFigures, LedgerSums
from calibrator.service.reading.accounting import accounting
from calibrator.service.reading.curve import read_curve
from calibrator.service.reading.figures import numbers
from calibrator.service.reading.ranges import cut_range
from calibrator.service.reading.throughput import throughput_ledger
from calibrator.service.web.context import Context
from calibrator.service.web.lookup import known_deployment
from calibrator.service.web.models import operations
from calibrator.service.web.models import throughput as models
from calibrator.service.web.models.base import DeploymentName
from calibrator.service.web.problems import problem_responses
from calibrator.service.web.times import FromQuery, StepQuery, ToQuery, time_range
from calibrator.store.boots import LedgerTotals
from serving_adapter.contract import CostCurve, Steps

router = APIRouter(tags=["throughput"])

_NOTHING = LedgerSums.zeros().figures()


@router.get(
    "/deployments/{deployment}/curve",
    operation_id="get_curve",
    summary="The throughput curve",
    responses=problem_responses(404),
)
def get_curve(context: Context, deployment: DeploymentName) -> models.CurveReading:
    """Give the curve in force, what telemetry says now, and how far step times are from the promise."""
    with context.store.read() as connection:
        known = known_deployment(connection, deployment)
    found = read_curve(context.store, known, context.clock.now())
    fit = found.live.fit
    return models.CurveReading(
        version=found.version,
        in_force=None if found.in_force is None else models.Curve(**_curve(found.in_force)),
        live=None if fit is None else models.LiveCurve(**_live(fit, found.live.reasons)),
        reasons=list(found.live.reasons),
        samples=_samples(found.samples),
        additive=None if found.additive is None else _additive(found.additive),
        drift=[
            models.CostDrift(
                load_regime=each.regime, context_bucket=each.context, bias=each.bias,
                median_relative_error=each.median_relative_error, n_eff=each.n_eff,
            )
            for each in found.drift
        ],
    )  # fmt: skip


@router.get(
    "/deployments/{deployment}/ledger",
    operation_id="get_ledger",
    summary="The throughput ledger",
    responses=problem_responses(404),
)
def get_ledger(
    context: Context,
    deployment: DeploymentName,
    start: FromQuery = None,
    end: ToQuery = None,
    step: StepQuery = None,
) -> models.Ledger:
    """Say where the time goes, by load and over time: time per token, waste, budget, tokens per second."""
    given = time_range(start, end, step, context.clock.now())
    steps = cut_range(given.start, given.end, given.step, context.settings.window_seconds)
    with context.store.read() as connection:
        known = known_deployment(connection, deployment)
        found = throughput_ledger(connection, known.id, steps)
    return models.Ledger.model_validate(
        {
            "deployment": known.name,
            "from": steps.start,
            "to": steps.end,
            "step": steps.step,
            "total": dataclasses.asdict(found.total),
            "by_load": [dataclasses.asdict(each) for each in found.by_load],
            "series": [{"at": at, **_without_load(figures)} for at, figures in found.series],
        }
    )


@router.get(
    "/deployments/{deployment}/accounting",
    operation_id="get_accounting",
    summary="What became of every row",
    tags=["deployments"],
    responses=problem_responses(404),
)
def get_accounting(context: Context, deployment: DeploymentName) -> operations.Accounting:
    """Count rows folded, lost and dead-lettered: by deployment, and by process start."""
    with context.store.read() as connection:
        known = known_deployment(connection, deployment)
        found = accounting(connection, known.id)
    return operations.Accounting(
        rounds=_counts(found.rounds),
        steps=_counts(found.steps),
        boots=[
            operations.Boot(
                replica=each.replica, boot=each.boot, first_seen_at=each.first_seen,
                last_seen_at=each.last_seen, folded=each.folded, lost=each.lost,
                dead_lettered=each.dead_lettered, in_flight=each.in_flight,
            )
            for each in found.boots
        ],
    )  # fmt: skip


def _curve(curve: CostCurve) -> dict[str, Any]:
    return {
        "batch_tokens": curve.batch_tokens,
        "seconds": curve.seconds,
        "sps": curve.sps or [1.0 / seconds for seconds in curve.seconds],
        "status": curve.status or ["measured"] * len(curve.seconds),
        "interpolation": curve.interpolation,
    }


def _live(fit: CurveFit, reasons: tuple[str, ...]) -> dict[str, Any]:
    return {
        "batch_tokens": fit.sizes.tolist(),
        "seconds": fit.seconds.tolist(),
        "sps": (1.0 / fit.seconds).tolist(),
        "status": list(fit.statuses),
        "interpolation": "linear",
        "n_eff": numbers(fit.n_eff),
        "standard_error": numbers(fit.standard_error),
        "dead_spots": list(fit.dead_spots),
        "outliers": fit.outliers,
        "reasons": list(reasons),
    }


def _samples(steps: Steps) -> list[models.StepSample]:
    columns = (steps.batch_tokens, steps.step_seconds, steps.requests, steps.context_tokens)
    return [
        models.StepSample(
            batch_tokens=tokens, seconds=seconds, requests=requests, context_tokens=length or None
        )
        for tokens, seconds, requests, length in zip(*(column.tolist() for column in columns), strict=True)
    ]


def _additive(fit: AdditiveFit) -> models.AdditiveCurve | None:
    cost = fit.cost
    if cost is None:
        return None
    return models.AdditiveCurve(
        bias_seconds=cost.bias_seconds,
        requests=cost.requests.tolist(),
        alpha_seconds=cost.alpha_seconds.tolist(),
        batch_tokens=cost.batch_tokens.tolist(),
        theta_seconds=cost.theta_seconds.tolist(),
        error=fit.error,
        reasons=list(fit.reasons),
    )


def _without_load(figures: LedgerFigures | None) -> dict[str, Any]:
    shown = dataclasses.asdict(figures or _NOTHING)
    del shown["requests_from"]
    return shown


def _counts(totals: LedgerTotals) -> operations.RowCounts:
    return operations.RowCounts(
        emitted=totals.emitted,
        folded=totals.folded,
        lost=totals.lost,
        dead_lettered=totals.dead_lettered,
        in_flight=totals.in_flight,
        duplicates=totals.duplicates_discarded,
        unknown_version=totals.unknown_version,
        misdated=totals.misdated,
    )
