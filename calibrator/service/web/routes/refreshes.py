"""Refreshes: every attempt, with its reasons and evidence, and what calibration is worth by it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from calibrator.service.reading.value import read_value
from calibrator.service.web.context import Context
from calibrator.service.web.lookup import known_deployment
from calibrator.service.web.models import operations as models
from calibrator.service.web.models.base import DeploymentName
from calibrator.service.web.pagination import Cursor, Limit, Page, cut, decode_cursor
from calibrator.service.web.problems import NotFound, problem_responses
from calibrator.store import refresh_history
from calibrator.store.refreshes import Refresh

router = APIRouter()


@router.get(
    "/deployments/{deployment}/refreshes",
    operation_id="list_refreshes",
    summary="Refreshes, newest first",
    tags=["jobs"],
    responses=problem_responses(404),
)
def list_refreshes(
    context: Context, deployment: DeploymentName, limit: Limit = 100, cursor: Cursor = None
) -> Page[models.RefreshItem]:
    """Each attempt with its outcome and reasons."""
    behind = decode_cursor(cursor, int)
    before = None if behind is None else int(behind[0])
    with context.store.read() as connection:
        known = known_deployment(connection, deployment)
        rows = refresh_history.page(connection, known.id, before=before, limit=limit + 1)
    kept, next_cursor = cut(rows, limit, lambda row: (row.id,))
    items = [
        models.RefreshItem(
            id=row.id, started_at=row.started, finished_at=row.finished, outcome=row.outcome,
            reasons=row.reasons, version=row.version,
        )
        for row in kept
    ]  # fmt: skip
    return Page(items=items, next_cursor=next_cursor)


@router.get(
    "/deployments/{deployment}/refreshes/{refresh}",
    operation_id="get_refresh",
    summary="One refresh with its evidence",
    tags=["jobs"],
    responses=problem_responses(404),
)
def get_refresh(
    context: Context,
    deployment: DeploymentName,
    refresh: Annotated[int, Path(ge=1, lt=2**63, description="Id of the refresh.")],
) -> models.RefreshDetail:
    """Give everything that it decided on."""
    with context.store.read() as connection:
        known = known_deployment(connection, deployment)
        row = refresh_history.one(connection, known.id, refresh)
    if row is None:
        raise NotFound(f"no refresh {refresh} of {known.name!r}")
    return _detail(row)


@router.get(
    "/deployments/{deployment}/value",
    operation_id="get_value",
    summary="What calibration is worth",
    tags=["throughput"],
    responses=problem_responses(404),
)
def get_value(context: Context, deployment: DeploymentName) -> models.CalibrationValue:
    """Give tokens per second of every policy, replayed on logged rounds by the newest refresh with rows."""
    with context.store.read() as connection:
        known = known_deployment(connection, deployment)
        found = read_value(connection, known.id)
    values = [models.PolicyValue.model_validate(row) for row in found.rows]
    return models.CalibrationValue(refresh=found.refresh, at=found.at, values=values, reasons=found.reasons)


def _detail(row: Refresh) -> models.RefreshDetail:
    return models.RefreshDetail(
        id=row.id,
        started_at=row.started,
        finished_at=row.finished,
        outcome=row.outcome,
        reasons=row.reasons,
        version=row.version,
        evidence=row.evidence,
    )
