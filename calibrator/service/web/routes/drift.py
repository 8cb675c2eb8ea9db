"""Episodes of drift."""

from __future__ import annotations

import dataclasses
from typing import Annotated

from fastapi import APIRouter, Query

from calibrator.service.web.context import Context
from calibrator.service.web.lookup import known_deployment
from calibrator.service.web.models import throughput as models
from calibrator.service.web.models.base import DeploymentName
from calibrator.service.web.pagination import Cursor, Limit, Page, decode_cursor, encode_cursor
from calibrator.service.web.problems import problem_responses
from calibrator.store import episodes
from calibrator.store.episodes import EpisodeKind, EpisodeState

router = APIRouter(tags=["calibration"])


@router.get(
    "/deployments/{deployment}/drift",
    operation_id="list_drift",
    summary="Episodes of drift, newest alarm first",
    responses=problem_responses(404),
)
def list_drift(
    context: Context,
    deployment: DeploymentName,
    state: Annotated[
        EpisodeState, Query(description="Those that last, those that are over, or all.")
    ] = "all",
    kind: Annotated[list[EpisodeKind] | None, Query(description="Only this kind; repeats.")] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Page[models.Episode]:
    """Say what drifted, since when, and what helps."""
    behind = decode_cursor(cursor, int)
    with context.store.read() as connection:
        known = known_deployment(connection, deployment)
        found, following = episodes.history(
            connection,
            known.id,
            state=state,
            kinds=kind or (),
            before=None if behind is None else int(behind[0]),
            limit=limit,
        )
    items = [models.Episode(**dataclasses.asdict(each)) for each in found]
    return Page(items=items, next_cursor=None if following is None else encode_cursor(following))
