"""Schedules and runs of recalibration."""

from __future__ import annotations

import dataclasses
from typing import Annotated

from fastapi import APIRouter, Body, Path, Query, Request, Response

from calibrator.service.reading.plans import Plans
from calibrator.service.web.context import Context, ServiceContext
from calibrator.service.web.etags import IfMatch, check_match, etag_of
from calibrator.service.web.lookup import known_deployment
from calibrator.service.web.models import jobs as models
from calibrator.service.web.models.base import DeploymentName
from calibrator.service.web.mutations import note_change
from calibrator.service.web.pagination import Cursor, Limit, Page, cut, decode_cursor
from calibrator.service.web.problems import Conflict, NotFound, problem_responses
from calibrator.store import deployments, runs, schedules
from calibrator.store.deployments import Deployment
from calibrator.store.schedules import Schedule

router = APIRouter(tags=["jobs"])


@router.get(
    "/deployments/{deployment}/schedule",
    operation_id="get_schedule",
    summary="When a deployment is recalibrated",
    responses=problem_responses(404),
)
def get_schedule(context: Context, deployment: DeploymentName, response: Response) -> models.Schedule:
    """Interval or cron expression, and when the next run is due."""
    with context.store.read() as connection:
        known = known_deployment(connection, deployment)
        schedule = schedules.get(connection, known.id)
    response.headers["ETag"] = _etag(schedule)
    return _shown(context, known, schedule)


@router.put(
    "/deployments/{deployment}/schedule",
    operation_id="put_schedule",
    summary="Set when a deployment is recalibrated",
    responses=problem_responses(404, 412),
)
def put_schedule(
    context: Context,
    request: Request,
    deployment: DeploymentName,
    given: models.ScheduleGiven,
    response: Response,
    if_match: IfMatch = None,
) -> models.Schedule:
    """Replace the schedule, or, with ``paused`` alone, pause it and let it go on.

    What was missed under the old one, or while it was paused, is not made up for.
    """
    with context.store.write() as connection:
        known = known_deployment(connection, deployment)
        before = schedules.get(connection, known.id)
        check_match(if_match, _etag(before))
        when = before if given.only_pauses else given
        wanted = Schedule(when.interval_seconds, when.cron, given.paused, since=context.clock.now())
        after = schedules.put(connection, known.id, wanted, revision=before.revision)
    note_change(request, _fields(before), _fields(after))
    response.headers["ETag"] = _etag(after)
    return _shown(context, known, after)


@router.post(
    "/deployments/{deployment}/recalibrate",
    operation_id="recalibrate",
    summary="Recalibrate now",
    status_code=202,
    responses=problem_responses(404, 409),
)
def recalibrate(
    context: Context,
    deployment: DeploymentName,
    response: Response,
    given: Annotated[models.Recalibrate, Body()] = models.Recalibrate(),  # noqa: B008  it cannot be changed
) -> models.RunItem:
    """Queue a run that any service picks up; poll it at Location. One that still waits is given again."""
    with context.store.write() as connection:
        known = known_deployment(connection, deployment)
        if known.frozen and not given.dry_run:
            raise Conflict(f"the deployment {known.name!r} is frozen: release it, or ask for a dry run")
        run = runs.request_run(connection, known.id, runs.MANUAL, given.dry_run)
    response.headers["Location"] = f"/v1/runs/{run.id}"
    return models.RunItem.of(run, known.name)


@router.get("/runs", operation_id="list_runs", summary="Runs, newest first", responses=problem_responses(404))
def list_runs(
    context: Context,
    deployment: Annotated[
        str | None, Query(min_length=1, max_length=128, description="Only of this deployment.")
    ] = None,
    state: Annotated[models.RunState | None, Query(description="Only in this state.")] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Page[models.RunItem]:
    """What was run and what waits, of all deployments or of one."""
    behind = decode_cursor(cursor, int)
    with context.store.read() as connection:
        wanted = None if deployment is None else known_deployment(connection, deployment).id
        rows = runs.recent(
            connection,
            deployment_id=wanted,
            state=state,
            before=None if behind is None else int(behind[0]),
            limit=limit + 1,
        )
        names = {each.id: each.name for each in deployments.every(connection)}
    kept, next_cursor = cut(rows, limit, lambda row: (row.id,))
    items = [models.RunItem.of(row, names[row.deployment_id]) for row in kept]
    return Page(items=items, next_cursor=next_cursor)


@router.get("/runs/{run}", operation_id="get_run", summary="One run", responses=problem_responses(404))
def get_run(
    context: Context, run: Annotated[int, Path(ge=1, lt=2**63, description="Id of the run.")]
) -> models.RunItem:
    """Poll it until its state is done, failed or abandoned."""
    with context.store.read() as connection:
        found = runs.get(connection, run)
        owner = None if found is None else deployments.by_id(connection, found.deployment_id)
    if found is None or owner is None:
        raise NotFound(f"no run {run}")
    return models.RunItem.of(found, owner.name)


@router.get("/jobs", operation_id="list_jobs", summary="Schedules and their latest runs")
def list_jobs(context: Context, limit: Limit = 100, cursor: Cursor = None) -> Page[models.Job]:
    """What is done again and again: one job per deployment, by name."""
    behind = decode_cursor(cursor, str)
    after = "" if behind is None else str(behind[0])
    with context.store.read() as connection:
        # Sorted here: the databases have orders of their own.
        known = sorted(deployments.every(connection), key=lambda each: each.name)
        kept, next_cursor = cut(
            [each for each in known if each.name > after], limit, lambda each: (each.name,)
        )
        given = schedules.every(connection)
        latest = runs.latest(connection, [each.id for each in kept])
    items = [
        models.Job(
            deployment=each.name,
            schedule=_shown(context, each, given.get(each.id, Schedule())),
            last_run=models.RunItem.of(latest[each.id], each.name) if each.id in latest else None,
        )
        for each in kept
    ]
    return Page(items=items, next_cursor=next_cursor)


def _shown(context: ServiceContext, deployment: Deployment, schedule: Schedule) -> models.Schedule:
    plan = Plans({deployment.id: schedule}, {}).schedule_of(
        deployment, context.settings.refresh_seconds, context.clock.now()
    )
    return models.Schedule(deployment=deployment.name, **dataclasses.asdict(plan))


def _fields(schedule: Schedule) -> dict[str, object]:
    return {
        "interval_seconds": schedule.interval_seconds,
        "cron": schedule.cron,
        "paused": schedule.paused,
        "revision": schedule.revision,
    }


def _etag(schedule: Schedule) -> str:
    return etag_of(_fields(schedule))
