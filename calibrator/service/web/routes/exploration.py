"""How much is explored, and what it buys."""

from __future__ import annotations

import dataclasses

from fastapi import APIRouter

from calibrator.service.reading.exploration import coverage, decisions
from calibrator.service.reading.ranges import whole_hours
from calibrator.service.web.context import Context
from calibrator.service.web.lookup import known_deployment
from calibrator.service.web.models import deployments as models
from calibrator.service.web.models.base import DeploymentName
from calibrator.service.web.problems import problem_responses
from calibrator.service.web.times import FromQuery, ToQuery, time_range
from calibrator.store import parameters

router = APIRouter(tags=["deployments"])


@router.get(
    "/deployments/{deployment}/exploration",
    operation_id="get_exploration",
    summary="Exploration: settings, decisions, coverage",
    responses=problem_responses(404),
)
def get_exploration(
    context: Context, deployment: DeploymentName, start: FromQuery = None, end: ToQuery = None
) -> models.Exploration:
    """Give what is explored, why and at what price; the coverage is of the range, widened to whole hours."""
    given = time_range(start, end, None, context.clock.now())
    first, last = whole_hours(given.start, given.end)
    with context.store.read() as connection:
        known = known_deployment(connection, deployment)
        latest = parameters.in_force(connection, known.id)
        made = decisions(connection, known.id)
        covered = coverage(connection, known, first, last)
    return models.Exploration.model_validate(
        {
            "settings": known.settings.get("explore", {}),
            "explore": latest.document.explore if latest else None,
            "decisions": [dataclasses.asdict(each) for each in made],
            "from": first,
            "to": last,
            "coverage": [dataclasses.asdict(each) for each in covered],
        }
    )
