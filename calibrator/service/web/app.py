"""The FastAPI application: middlewares and routes put together, nothing decided."""

from __future__ import annotations

from collections.abc import Collection

from fastapi import APIRouter, Depends, FastAPI

from calibrator.service.access import AccessPolicy
from calibrator.service.access.failure_limit import FailureLimit
from calibrator.service.web import problems
from calibrator.service.web.access import Access, bearer_scheme
from calibrator.service.web.context import ServiceContext
from calibrator.service.web.failures import Failures
from calibrator.service.web.guards import Guard, SecurityHeaders
from calibrator.service.web.head_requests import HeadRequests
from calibrator.service.web.live import LiveParts, lifespan
from calibrator.service.web.mutations import Mutations
from calibrator.service.web.openapi import TAGS, describe
from calibrator.service.web.request_counts import RequestCounts
from calibrator.service.web.request_ids import RequestIds
from calibrator.service.web.request_log import RequestLog
from calibrator.service.web.routes import (
    audit,
    calibration,
    dashboard,
    deployment_changes,
    deployments,
    drift,
    exploration,
    jobs,
    me,
    operations,
    reference,
    refreshes,
    replicas,
    rollouts,
    throughput,
    version_changes,
    version_export,
    versions,
)
from calibrator.service.web.store_patience import StorePatience
from calibrator.service.web.unknown_parameters import no_unknown_parameters

API_ROUTERS: tuple[APIRouter, ...] = (
    me.router,
    audit.router,
    deployments.router,
    calibration.router,
    drift.router,
    exploration.router,
    throughput.router,
    versions.router,
    deployment_changes.router,
    version_changes.router,
    version_export.router,
    replicas.router,
    refreshes.router,
    jobs.router,
    rollouts.router,
    operations.events_router,
)
"""All below /v1; each router names its paths from there: ``/deployments``. One line each, any order."""

OPEN_ROUTERS: tuple[APIRouter, ...] = (operations.router, reference.router, dashboard.router)
"""Health, metrics, and last the dashboard: paths from the root."""


def create_app(context: ServiceContext, access: AccessPolicy, hosts: Collection[str] = ()) -> FastAPI:
    """Build the application around the parts of a running service.

    Parameters
    ----------
    context
        What routes work with.
    access
        Who is let in.
    hosts
        Names that a Host header may have; empty lets any through.
    """
    app = FastAPI(
        title="DSpark Calibrator",
        version="1",
        summary="Keeps DSpark speculative decoding calibrated while it serves.",
        openapi_tags=TAGS,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        telemetry={"metrics": False, "logs": False},
    )
    app.state.context = context
    live = app.state.live = LiveParts(context)
    problems.install(app, missing_page=dashboard.page)
    for router in API_ROUTERS:
        app.include_router(
            router,
            prefix="/v1",
            dependencies=[Depends(bearer_scheme), Depends(no_unknown_parameters)],
            responses=problems.problem_responses(401, 403, 422, 429, 503),
        )
    for router in OPEN_ROUTERS:
        app.include_router(router)
    # The last one added is the outermost.
    app.add_middleware(HeadRequests)
    app.add_middleware(RequestCounts, counter=live.metrics.requests)
    app.add_middleware(Mutations, store=context.store, clock=context.clock)
    app.add_middleware(
        Access, policy=access, limit=FailureLimit(context.clock.monotonic), refused=live.metrics.refused
    )
    app.add_middleware(StorePatience, seconds=context.settings.database_wait_seconds)
    app.add_middleware(Guard, hosts=hosts)
    app.add_middleware(Failures)
    app.add_middleware(RequestLog)
    app.add_middleware(SecurityHeaders)
    app.add_middleware(RequestIds)
    describe(app)
    return app
