"""Parameter versions: every one that was ever made."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response
from sqlalchemy import Connection

from calibrator.service.reading.differences import changes
from calibrator.service.web.context import Context
from calibrator.service.web.etags import IfNoneMatch, etag_of, still_holds
from calibrator.service.web.lookup import known_deployment
from calibrator.service.web.models import versions as models
from calibrator.service.web.models.base import DeploymentName
from calibrator.service.web.pagination import Cursor, Limit, Page, cut, decode_cursor
from calibrator.service.web.problems import NotFound, problem_responses
from calibrator.store import version_history
from calibrator.store.deployments import Deployment
from calibrator.store.version_history import VersionRow

router = APIRouter(tags=["versions"])

VersionNumber = Annotated[int, Path(ge=1, lt=2**32, description="Parameter version.", examples=[12])]


@router.get(
    "/deployments/{deployment}/versions",
    operation_id="list_versions",
    summary="Versions, highest first",
    responses=problem_responses(404),
)
def list_versions(
    context: Context, deployment: DeploymentName, limit: Limit = 100, cursor: Cursor = None
) -> Page[models.Version]:
    """Each with its parameters, what became of it, and what it rests on."""
    behind = decode_cursor(cursor, int)
    before = None if behind is None else int(behind[0])
    with context.store.read() as connection:
        known = known_deployment(connection, deployment)
        rows = version_history.page(connection, known.id, before=before, limit=limit + 1)
    kept, next_cursor = cut(rows, limit, lambda row: (row.version,))
    return Page(items=[version_model(row) for row in kept], next_cursor=next_cursor)


@router.get(
    "/deployments/{deployment}/versions/{version}",
    operation_id="get_version",
    summary="One version with its document",
    response_model=models.VersionDocument,
    responses={304: {"description": "The caller has it."}, **problem_responses(404)},
)
def get_version(
    context: Context,
    deployment: DeploymentName,
    version: VersionNumber,
    response: Response,
    if_none_match: IfNoneMatch = None,
) -> Any:
    """Give the document as replicas read it."""
    with context.store.read() as connection:
        row = _known_version(connection, known_deployment(connection, deployment), version)
    etag = etag_of(row.document)
    if still_holds(if_none_match, etag):
        return Response(status_code=304, headers={"ETag": etag})
    response.headers["ETag"] = etag
    return models.VersionDocument(
        version=row.version, state=row.state, created_at=row.created_at, document=row.document
    )


@router.get(
    "/deployments/{deployment}/versions/{version}/diff",
    operation_id="diff_versions",
    summary="What two versions differ in",
    responses=problem_responses(404),
)
def diff_versions(
    context: Context,
    deployment: DeploymentName,
    version: VersionNumber,
    against: Annotated[
        int | None,
        Query(ge=1, lt=2**32, description="The other version; the one that it followed when left out."),
    ] = None,
) -> models.VersionDiff:
    """List the changes from ``against`` to ``version``."""
    with context.store.read() as connection:
        known = known_deployment(connection, deployment)
        row = _known_version(connection, known, version)
        number = against if against is not None else int(row.document.get("previous", 0))
        other = None if number == 0 else _known_version(connection, known, number)
    differing = changes(other.document if other else {}, row.document)
    return models.VersionDiff(
        version=version,
        against=number,
        changes=[
            models.Change.model_validate({"path": each.path, "from": each.before, "to": each.after})
            for each in differing
        ],
    )


def version_model(row: VersionRow) -> models.Version:
    """Show a version as lists do."""
    document = row.document
    evidence = document.get("evidence") or {}
    return models.Version(
        version=row.version,
        state=row.state,
        created_at=row.created_at,
        previous=document.get("previous") or 0,
        form=document["form"],
        temperatures=document["temperatures"],
        offsets=document["offsets"],
        explore=document.get("explore") or 0.0,
        reasons=evidence.get("reasons", []),
        n_eff=evidence.get("n_eff", []),
        ece_before=evidence.get("ece_before", []),
        ece_after=evidence.get("ece_after", []),
        noise_floor=evidence.get("noise_floor", []),
        status=evidence.get("status", []),
        segments=len(document.get("segments") or {}),
    )


def _known_version(connection: Connection, deployment: Deployment, version: int) -> VersionRow:
    row = version_history.one(connection, deployment.id, version)
    if row is None:
        raise NotFound(f"no version {version} of {deployment.name!r}")
    return row
