"""Rollouts: how far candidates got, and by whose decision."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

from fastapi import APIRouter, Body, Path, Query, Request, Response
from sqlalchemy import Connection

from calibrator.service.rollout.operations import Rollouts
from calibrator.service.web.access import CurrentCaller
from calibrator.service.web.context import Context, ServiceContext
from calibrator.service.web.etags import IfMatch, check_match, etag_of
from calibrator.service.web.lookup import known_deployment
from calibrator.service.web.models import rollouts as models
from calibrator.service.web.models.base import DeploymentName
from calibrator.service.web.mutations import note_change
from calibrator.service.web.pagination import Cursor, Limit, Page, cut, decode_cursor
from calibrator.service.web.problems import Conflict, NotFound, problem_responses
from calibrator.store import deployments, parameters, rollouts
from calibrator.store.rollouts import Rollout

router = APIRouter(tags=["rollouts"])

RolloutId = Annotated[int, Path(ge=1, lt=2**63, description="Id of the rollout.")]


@router.get(
    "/rollouts",
    operation_id="list_rollouts",
    summary="Rollouts, newest first",
    responses=problem_responses(404),
)
def list_rollouts(
    context: Context,
    deployment: Annotated[
        str | None, Query(min_length=1, max_length=128, description="Only of this deployment.")
    ] = None,
    state: Annotated[models.RolloutState | None, Query(description="Only in this state.")] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Page[models.RolloutItem]:
    """Those under way and those that have ended, with evidence and history."""
    behind = decode_cursor(cursor, int)
    with context.store.read() as connection:
        wanted = None if deployment is None else known_deployment(connection, deployment).id
        before = None if behind is None else int(behind[0])
        rows = rollouts.recent(connection, wanted, state=state, before=before, limit=limit + 1)
        kept, next_cursor = cut(rows, limit, lambda row: (row.id,))
        items = _shown(connection, list(kept))
    return Page(items=items, next_cursor=next_cursor)


@router.get(
    "/rollouts/{rollout}", operation_id="get_rollout", summary="One rollout", responses=problem_responses(404)
)
def get_rollout(context: Context, rollout: RolloutId, response: Response) -> models.RolloutItem:
    """Give its stage, the evidence of the last look, and who decided what."""
    return _answer(context, _known(context, rollout), response)


@router.post(
    "/deployments/{deployment}/rollouts",
    operation_id="start_rollout",
    summary="Start a rollout",
    status_code=201,
    responses=problem_responses(404, 409),
)
def start_rollout(
    context: Context,
    caller: CurrentCaller,
    request: Request,
    deployment: DeploymentName,
    given: models.NewRollout,
    response: Response,
) -> models.RolloutItem:
    """Put what a version holds on trial, as a new version. One at a time per deployment."""
    with context.store.read() as connection:
        known = known_deployment(connection, deployment)
        wanted = parameters.get(connection, known.id, given.version)
    if wanted is None:
        raise NotFound(f"deployment {known.name!r} has no version {given.version}")
    if wanted.fingerprint not in ("", known.fingerprint):
        raise Conflict(
            f"version {given.version} was made for another engine (fingerprint {wanted.fingerprint!r}, now "
            f"{known.fingerprint!r}): replicas would refuse it"
        )
    started = _rollouts(context).start(
        known.name,
        given.version,
        actor=caller.subject,
        reason=given.reason,
        stage=given.stage,
        share=given.share,
    )
    note_change(request, None, {**_brief(started), "content_of": given.version, "reason": given.reason})
    response.headers["Location"] = f"/v1/rollouts/{started.id}"
    return _answer(context, started, response)


@router.post(
    "/rollouts/{rollout}/promote",
    operation_id="promote_rollout",
    summary="Promote a candidate",
    responses=problem_responses(404, 409, 412),
)
def promote_rollout(
    context: Context,
    caller: CurrentCaller,
    request: Request,
    rollout: RolloutId,
    response: Response,
    given: Annotated[models.Promotion, Body()] = models.Promotion(),  # noqa: B008  it cannot be changed
    if_match: IfMatch = None,
) -> models.RolloutItem:
    """Put it in force everywhere, or on its share of the replicas, whatever the evidence says."""
    before = _meant(context, rollout, if_match)
    after = _rollouts(context).promote(rollout, actor=caller.subject, reason=given.reason, stage=given.stage)
    note_change(request, _brief(before), {**_brief(after), "reason": given.reason})
    return _answer(context, after, response)


@router.post(
    "/rollouts/{rollout}/abort",
    operation_id="abort_rollout",
    summary="Abort a rollout",
    responses=problem_responses(404, 409, 412),
)
def abort_rollout(
    context: Context,
    caller: CurrentCaller,
    request: Request,
    rollout: RolloutId,
    response: Response,
    given: Annotated[models.Withdrawal, Body()] = models.Withdrawal(),  # noqa: B008  it cannot be changed
    if_match: IfMatch = None,
) -> models.RolloutItem:
    """Withdraw the candidate; replicas that run it get what they ran before, under a new number."""
    before = _meant(context, rollout, if_match)
    after = _rollouts(context).abort(rollout, actor=caller.subject, reason=given.reason)
    note_change(request, _brief(before), {**_brief(after), "reason": given.reason})
    return _answer(context, after, response)


def _rollouts(context: ServiceContext) -> Rollouts:
    return Rollouts(context.store, context.parameter_store, context.publisher, context.clock)


def _known(context: ServiceContext, rollout_id: int) -> Rollout:
    with context.store.read() as connection:
        found = rollouts.get(connection, rollout_id)
    if found is None:
        raise NotFound(f"no rollout {rollout_id}")
    return found


def _meant(context: ServiceContext, rollout_id: int, if_match: str | None) -> Rollout:
    found = _known(context, rollout_id)
    check_match(if_match, _etag(found))
    return found


def _etag(rollout: Rollout) -> str:
    """Entity tag of what is decided, not of evidence that changes by the second."""
    return etag_of(_brief(rollout))


def _brief(rollout: Rollout) -> dict[str, Any]:
    names = ("id", "version", "stage", "state", "share", "stage_since")
    found = dataclasses.asdict(rollout)
    return {name: found[name] for name in names}


def _answer(context: ServiceContext, rollout: Rollout, response: Response) -> models.RolloutItem:
    response.headers["ETag"] = _etag(rollout)
    with context.store.read() as connection:
        return _shown(connection, [rollout])[0]


def _shown(connection: Connection, found: list[Rollout]) -> list[models.RolloutItem]:
    names = {each.id: each.name for each in deployments.every(connection)}
    lines = rollouts.history(connection, [each.id for each in found])
    return [models.RolloutItem.of(each, names[each.deployment_id], lines[each.id]) for each in found]
