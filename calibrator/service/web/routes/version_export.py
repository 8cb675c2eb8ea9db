"""A version as a file that an engine loads."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from calibrator.core.candidate import ProposalOptions
from calibrator.service.export import ExportFormat, export_version
from calibrator.service.temperature_export import ExportRefusedError
from calibrator.service.web.context import Context
from calibrator.service.web.lookup import known_deployment
from calibrator.service.web.models.base import DeploymentName
from calibrator.service.web.problems import Conflict, NotFound, problem_responses
from calibrator.service.web.routes.versions import VersionNumber

router = APIRouter(tags=["versions"])

NOTE = "Export-Note"


@router.get(
    "/deployments/{deployment}/versions/{version}/export",
    operation_id="export_version",
    summary="One version as a file",
    response_class=Response,
    responses={
        200: {
            "description": "The file; Content-Disposition names it.",
            "content": {"application/json": {"schema": {"type": "object"}}},
            "headers": {
                NOTE: {
                    "description": "What a reader must know, such as a refit.",
                    "schema": {"type": "string"},
                }
            },
        },
        **problem_responses(404, 409),
    },
)
def export(
    context: Context,
    deployment: DeploymentName,
    version: VersionNumber,
    file_format: Annotated[
        ExportFormat, Query(alias="format", description="Whose loader it is for.", examples=["sglang"])
    ] = "document",
) -> Response:
    """Give the document itself, temperatures for SGLang or TensorRT-LLM, or the cost curve for an engine.

    Temperatures of an affine version are a fit of their own, made with the version, or at its first export
    where no refresh made it, and kept: the same bytes every time. 409 when there are too few rows, or no
    curve.
    """
    with context.store.read() as connection:
        known_deployment(connection, deployment)
    settings = context.settings
    try:
        made = export_version(
            context.store,
            deployment,
            version,
            file_format,
            now=context.clock.now(),
            options=ProposalOptions(bins=settings.bins),
            half_life_seconds=settings.half_life_seconds,
        )
    except KeyError as error:
        raise NotFound(f"no version {version} of {deployment!r}") from error
    except ExportRefusedError as error:
        raise Conflict(str(error)) from error
    headers = {"Content-Disposition": f'attachment; filename="{made.filename}"'}
    if made.notes:
        # A header holds one printable line.
        text = "; ".join(made.notes).encode("ascii", "replace").decode()
        headers[NOTE] = "".join(c if c.isprintable() else " " for c in text)[:1000]
    return Response(made.content, media_type=made.media_type, headers=headers)
