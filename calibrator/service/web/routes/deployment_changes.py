"""Changes of deployments: register, settings, freeze, exploration."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Request, Response
from sqlalchemy import Connection

from calibrator.service.deployment_settings import merge_settings
from calibrator.service.web.context import Context, ServiceContext
from calibrator.service.web.etags import IfMatch, check_match
from calibrator.service.web.live import Live
from calibrator.service.web.lookup import known_deployment
from calibrator.service.web.models import changes
from calibrator.service.web.models import deployments as models
from calibrator.service.web.models.base import DeploymentName
from calibrator.service.web.mutations import note_change
from calibrator.service.web.problems import Conflict, problem_responses
from calibrator.service.web.routes.deployments import deployment_etag, get_deployment
from calibrator.service.web.routes.exploration import get_exploration
from calibrator.store import deployments, unused
from calibrator.store.deployments import Deployment

router = APIRouter(tags=["deployments"])


@router.post(
    "/deployments",
    operation_id="register_deployment",
    summary="Register a deployment",
    status_code=201,
    responses=problem_responses(409),
)
def register_deployment(
    context: Context, live: Live, request: Request, given: changes.NewDeployment, response: Response
) -> models.DeploymentDetail:
    """Make it known before its first rows come; those of another gamma are refused from then on."""
    settings = merge_settings({}, given.settings)
    with context.store.write() as connection:
        if deployments.get(connection, given.name) is not None:
            raise Conflict(f"there is a deployment {given.name!r} already")
        made = deployments.register(
            connection, given.name, given.gamma, given.fingerprint, context.clock.now()
        )
        if settings:
            deployments.set_settings(connection, made.id, settings)
    note_change(request, None, given.model_dump())
    response.headers["Location"] = f"/v1/deployments/{given.name.replace('/', '%2F')}"
    return get_deployment(context, live, given.name, response)


@router.patch(
    "/deployments/{deployment}",
    operation_id="change_deployment",
    summary="Change settings",
    responses=problem_responses(404, 412),
)
def change_deployment(
    context: Context,
    live: Live,
    request: Request,
    deployment: DeploymentName,
    given: changes.DeploymentChange,
    response: Response,
    if_match: IfMatch = None,
) -> models.DeploymentDetail:
    """Merge into the settings; the next refresh works by them."""

    def merge(connection: Connection, known: Deployment) -> tuple[Any, Any]:
        merged = merge_settings(known.settings, given.settings)
        deployments.set_settings(connection, known.id, merged)
        return known.settings, merged

    note_change(request, *_changed(context, deployment, if_match, merge))
    return get_deployment(context, live, deployment, response)


@router.delete(
    "/deployments/{deployment}",
    operation_id="delete_deployment",
    summary="Delete a deployment that was never used",
    status_code=204,
    responses=problem_responses(404, 409, 412),
)
def delete_deployment(
    context: Context, request: Request, deployment: DeploymentName, if_match: IfMatch = None
) -> None:
    """Take back a registration, say of a mistyped name: where no row ever came and no version was made."""

    def delete(connection: Connection, known: Deployment) -> tuple[Any, Any]:
        kept = unused.delete(connection, known.id)
        if kept:
            raise Conflict(
                f"the deployment {known.name!r} has {' and '.join(kept)}: what was measured or made stays"
            )
        return {"gamma": known.gamma, "fingerprint": known.fingerprint, "settings": known.settings}, None

    note_change(request, *_changed(context, deployment, if_match, delete))


@router.put(
    "/deployments/{deployment}/frozen",
    operation_id="freeze_deployment",
    summary="Freeze or release",
    responses=problem_responses(404, 412),
)
def freeze_deployment(
    context: Context,
    live: Live,
    request: Request,
    deployment: DeploymentName,
    given: changes.Frozen,
    response: Response,
    if_match: IfMatch = None,
) -> models.DeploymentDetail:
    """Hold the parameters in force: a frozen deployment is measured, not refreshed."""

    def freeze(connection: Connection, known: Deployment) -> tuple[Any, Any]:
        deployments.set_frozen(connection, known.id, given.frozen)
        return {"frozen": known.frozen}, given.model_dump()

    note_change(request, *_changed(context, deployment, if_match, freeze))
    return get_deployment(context, live, deployment, response)


@router.put(
    "/deployments/{deployment}/exploration",
    operation_id="set_exploration",
    summary="Set how much is explored",
    responses=problem_responses(404, 412),
)
def set_exploration(
    context: Context,
    request: Request,
    deployment: DeploymentName,
    given: changes.ExplorationSettings,
    response: Response,
    if_match: IfMatch = None,
) -> models.Exploration:
    """Replace the settings of exploration; the next version carries what comes of them."""

    def replace(connection: Connection, known: Deployment) -> tuple[Any, Any]:
        others = {name: value for name, value in known.settings.items() if name != "explore"}
        merged = merge_settings(others, {"explore": given.model_dump(exclude_none=True)})
        deployments.set_settings(connection, known.id, merged)
        response.headers["ETag"] = deployment_etag(dataclasses.replace(known, settings=merged))
        return known.settings.get("explore", {}), merged["explore"]

    note_change(request, *_changed(context, deployment, if_match, replace))
    return get_exploration(context, deployment)


def _changed(
    context: ServiceContext,
    name: str,
    if_match: str | None,
    change: Callable[[Connection, Deployment], tuple[Any, Any]],
) -> tuple[Any, Any]:
    """Read, compare and write in one transaction that nobody else can come between."""
    with context.store.write() as connection:
        deployments.lock(connection, [known_deployment(connection, name).id])
        known = known_deployment(connection, name)
        check_match(if_match, deployment_etag(known))
        return change(connection, known)
