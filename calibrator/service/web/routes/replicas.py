"""Replicas: what each has applied or refused."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter

from calibrator.service.reading.replicas import Arm, Replica, list_replicas
from calibrator.service.web.context import Context
from calibrator.service.web.live import Live
from calibrator.service.web.lookup import known_deployment
from calibrator.service.web.models import operations as models
from calibrator.service.web.models.base import DeploymentName
from calibrator.service.web.pagination import Cursor, Limit, Page, cut, decode_cursor
from calibrator.service.web.problems import problem_responses
from calibrator.store import rollouts
from calibrator.store.rollouts import Rollout
from serving_adapter.canary import takes_candidate

router = APIRouter(tags=["deployments"])

SEEN_SECONDS = 3600.0
"""A replica that has sent nothing for so long, and does not report, is gone."""


@router.get(
    "/deployments/{deployment}/replicas",
    operation_id="list_replicas",
    summary="Replicas by name",
    responses=problem_responses(404),
)
def get_replicas(
    context: Context, live: Live, deployment: DeploymentName, limit: Limit = 100, cursor: Cursor = None
) -> Page[models.Replica]:
    """Replicas that report to the parameter store, or whose rows came in within the hour."""
    behind = decode_cursor(cursor, str)
    with context.store.read() as connection:
        known = known_deployment(connection, deployment)
        under_way = rollouts.running(connection, known.id)
    reports = live.reports.reports(known.name)  # another server: no transaction waits for it
    arms = arm_of(known.name, under_way)
    since = context.clock.now() - SEEN_SECONDS
    with context.store.read() as connection:
        found = list_replicas(connection, known.id, reports, since, arms)
    if behind is not None:
        found = [each for each in found if each.replica > str(behind[0])]
    kept, next_cursor = cut(found, limit, lambda each: (each.replica,))
    return Page(items=[_model(each) for each in kept], next_cursor=next_cursor)


def arm_of(deployment: str, rollout: Rollout | None) -> Callable[[str], Arm | None]:
    """Which side of a rollout a replica is on; None unless a canary is running."""
    if rollout is None or rollout.stage != rollouts.CANARY:
        return lambda _replica: None
    return lambda replica: "canary" if takes_candidate(deployment, replica, rollout.share) else "control"


def _model(replica: Replica) -> models.Replica:
    return models.Replica(
        replica=replica.replica,
        version=replica.version,
        applied_at=replica.reported_at,
        refused_version=replica.refused_version,
        reason=replica.reason,
        forms=list(replica.forms),
        fingerprint=replica.fingerprint,
        arm=replica.arm,
        boot=replica.boot,
        last_seen_at=replica.last_seen,
    )
