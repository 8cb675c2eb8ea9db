"""Deployments at a glance, and one in full."""

from __future__ import annotations

import dataclasses
from typing import Any

from fastapi import APIRouter, Response

from calibrator.service.reading.deployments import Overview, overviews
from calibrator.service.reading.plans import Plan, Plans, read_plans
from calibrator.service.reading.replicas import ReplicaCounts
from calibrator.service.web.context import Context, ServiceContext
from calibrator.service.web.etags import etag_of
from calibrator.service.web.live import Live
from calibrator.service.web.lookup import known_deployment
from calibrator.service.web.models import deployments as models
from calibrator.service.web.models.base import DeploymentName
from calibrator.service.web.pagination import Cursor, Limit, Page, cut, decode_cursor
from calibrator.service.web.problems import problem_responses
from calibrator.store import deployments, fleet, sample
from calibrator.store.deployments import Deployment

router = APIRouter(tags=["deployments"])


@router.get("/deployments", operation_id="list_deployments", summary="All deployments at a glance, by name")
def list_deployments(
    context: Context, live: Live, limit: Limit = 100, cursor: Cursor = None
) -> Page[models.DeploymentSummary]:
    """Status, worst position, drift, versions and value of each."""
    behind = decode_cursor(cursor, str)
    now = context.clock.now()
    with context.store.read() as connection:
        found = fleet.page(connection, None if behind is None else str(behind[0]), limit + 1)
        kept, next_cursor = cut(found, limit, lambda each: (each.name,))
        shown = overviews(connection, kept, now)
        plans = read_plans(connection)
    items = [
        models.DeploymentSummary(
            **_summary(context, each, plans, live.reports.counts(each.deployment.name), now)
        )
        for each in shown
    ]
    return Page(items=items, next_cursor=next_cursor)


@router.get(
    "/deployments/{deployment}",
    operation_id="get_deployment",
    summary="One deployment in full",
    responses=problem_responses(404),
)
def get_deployment(
    context: Context, live: Live, deployment: DeploymentName, response: Response
) -> models.DeploymentDetail:
    """Give the summary with settings, segments and sampling buckets; the ETag is what changes refer to."""
    now = context.clock.now()
    with context.store.read() as connection:
        known = known_deployment(connection, deployment)
        (overview,) = overviews(connection, [known], now)
        plans = read_plans(connection)
        segments = sorted(deployments.segments(connection, known.id))
        samplings = {sampling for _, sampling in sample.strata(connection, known.id)}
    response.headers["ETag"] = deployment_etag(known)
    counts = live.reports.counts(known.name)
    return models.DeploymentDetail(
        **_summary(context, overview, plans, counts, now),
        settings=known.settings,
        segments=segments,
        samplings=sorted(samplings),
    )


def deployment_etag(deployment: Deployment) -> str:
    """Entity tag of what an operator can change, not of what changes by itself."""
    return etag_of(
        {
            "name": deployment.name,
            "gamma": deployment.gamma,
            "fingerprint": deployment.fingerprint,
            "settings": deployment.settings,
            "frozen": deployment.frozen,
        }
    )


def _summary(
    context: ServiceContext, overview: Overview, plans: Plans, counts: ReplicaCounts | None, now: float
) -> dict[str, Any]:
    deployment, latest = overview.deployment, overview.latest
    rollout = plans.rollouts.get(deployment.id)
    plan = plans.schedule_of(deployment, context.settings.refresh_seconds, now)
    return {
        "name": deployment.name,
        "gamma": deployment.gamma,
        "fingerprint": deployment.fingerprint,
        "frozen": deployment.frozen,
        "created_at": deployment.created_at,
        "last_seen_at": overview.ingested.last_seen,
        "rounds": overview.ingested.folded,
        "version": latest.version if latest else None,
        "form": latest.form if latest else None,
        "explore": latest.explore if latest else None,
        "status": overview.status,
        "worst": dataclasses.asdict(overview.worst) if overview.worst else None,
        "drift": {"open": sum(overview.drift.values()), "kinds": sorted(overview.drift)},
        "replicas": None if counts is None else dataclasses.asdict(counts),
        "value": dataclasses.asdict(overview.value) if overview.value else None,
        "schedule": _schedule(deployment, plan),
        "rollout": None if rollout is None else {"id": rollout.id, "stage": rollout.stage},
    }


def _schedule(deployment: Deployment, plan: Plan) -> dict[str, Any]:
    return {"deployment": deployment.name, **dataclasses.asdict(plan)}
