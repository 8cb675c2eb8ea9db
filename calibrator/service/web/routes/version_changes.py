"""New versions by hand: import, roll back."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from calibrator.service.importing import Importer
from calibrator.service.rollout.operations import Rollouts
from calibrator.service.web.access import CurrentCaller
from calibrator.service.web.context import Context, ServiceContext
from calibrator.service.web.etags import etag_of
from calibrator.service.web.lookup import known_deployment
from calibrator.service.web.models import changes
from calibrator.service.web.models import versions as models
from calibrator.service.web.models.base import DeploymentName
from calibrator.service.web.mutations import note_change
from calibrator.service.web.problems import Conflict, NotFound, problem_responses
from calibrator.service.web.routes.versions import version_model
from calibrator.store import deployments, parameters, version_history
from serving_adapter.contract import ParameterDocument

router = APIRouter(tags=["versions"])

WAITS = "the parameter store is away: the version is kept, and engines get it once it is back"


@router.post(
    "/deployments/{deployment}/versions",
    operation_id="import_version",
    summary="Import parameters",
    status_code=201,
    responses=problem_responses(404, 409),
)
def import_version(
    context: Context,
    caller: CurrentCaller,
    request: Request,
    deployment: DeploymentName,
    given: changes.NewVersion,
    response: Response,
) -> models.Version:
    """Publish a document, or the content of another engine's file, as the next version or on trial."""
    with context.store.read() as connection:
        known = known_deployment(connection, deployment)
        before = parameters.in_force(connection, known.id)
    importer = Importer(
        context.store,
        context.publisher,
        context.clock,
        explore=context.settings.explore,
        share=context.settings.share,
    )
    reason = f"imported by {caller.subject}" + (f": {given.reason}" if given.reason else "")
    if given.document is not None:
        document = importer.of_document(known, given.document, reason)
    else:
        assert given.format is not None
        document = importer.of_foreign(known, given.format, given.content, reason, given.requests)
    if given.rollout:
        _rollouts(context).start_document(known, document, actor=caller.subject, reason=reason)
    else:
        importer.publish(known, document)
    note_change(
        request,
        {"version": before.document.version if before else None},
        {"version": document.version, "rollout": given.rollout, "reason": given.reason},
    )
    return _answer(context, document, response)


@router.post(
    "/deployments/{deployment}/rollback",
    operation_id="roll_back",
    summary="Roll back",
    status_code=201,
    responses=problem_responses(404, 409),
)
def roll_back(
    context: Context,
    caller: CurrentCaller,
    request: Request,
    deployment: DeploymentName,
    given: changes.Rollback,
    response: Response,
) -> models.Version:
    """Put what an earlier version holds in force again, as a new version: numbers only rise.

    The next refresh may find something better again; ``freeze`` keeps it from that.
    """
    with context.store.read() as connection:
        known = known_deployment(connection, deployment)
        before = parameters.in_force(connection, known.id)
        wanted = parameters.get(connection, known.id, given.version)
    if wanted is None:
        raise NotFound(f"deployment {known.name!r} has no version {given.version}")
    if wanted.fingerprint != known.fingerprint:
        raise Conflict(
            f"version {given.version} was made for another engine (fingerprint {wanted.fingerprint!r}, now "
            f"{known.fingerprint!r}): replicas would refuse it"
        )
    if before is not None and before.document.version == given.version:
        raise Conflict(f"version {given.version} is in force already; a rollout under way is aborted instead")
    if given.freeze:
        # First, or a refresh could publish in between.
        with context.store.write() as connection:
            deployments.set_frozen(connection, known.id, True)
    document = _rollouts(context).rollback(
        known.name, given.version, actor=caller.subject, reason=given.reason
    )
    note_change(
        request,
        {"version": before.document.version if before else None, "frozen": known.frozen},
        {
            "version": document.version,
            "content_of": given.version,
            "frozen": known.frozen or given.freeze,
            "reason": given.reason,
        },
    )
    return _answer(context, document, response)


def _rollouts(context: ServiceContext) -> Rollouts:
    return Rollouts(context.store, context.parameter_store, context.publisher, context.clock)


def _answer(context: ServiceContext, document: ParameterDocument, response: Response) -> models.Version:
    with context.store.read() as connection:
        known = known_deployment(connection, document.deployment)
        row = version_history.one(connection, known.id, document.version)
    if row is None:
        raise NotFound(f"version {document.version} is gone")
    name = known.name.replace("/", "%2F")
    response.headers["Location"] = f"/v1/deployments/{name}/versions/{row.version}"
    response.headers["ETag"] = etag_of(row.document)
    model = version_model(row)
    return model.model_copy(update={"note": WAITS}) if context.publisher.waits(document) else model
