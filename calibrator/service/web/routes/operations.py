"""Health, metrics and events."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

from anyio.to_thread import run_sync
from fastapi import APIRouter, Header, Query, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import Field
from starlette.responses import StreamingResponse

from calibrator.service.web.event_hub import TooManyClientsError, stream
from calibrator.service.web.live import Live
from calibrator.service.web.lookup import known_deployment
from calibrator.service.web.models.base import Shown
from calibrator.service.web.problems import Unavailable, problem_responses
from calibrator.store.store import Store

router = APIRouter(tags=["operations"])
events_router = APIRouter(tags=["operations"])

EVENT_STREAM = "text/event-stream"
EVENT_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class Alive(Shown):
    """The process answers."""

    status: Literal["ok"] = "ok"


class Ready(Shown):
    """What the service needs, part by part."""

    status: Literal["ok", "not ready"]
    database: str = Field(description="ok, unreachable, or file deleted or replaced (SQLite).")
    schema_: str = Field(alias="schema", description="ok, not migrated or unknown.")
    parameter_store: str = Field(description="ok or unreachable.")


@router.get("/healthz", operation_id="healthz", summary="Is the process alive")
async def healthz() -> Alive:
    """Answer without asking anybody."""
    return Alive()


@router.get(
    "/readyz",
    operation_id="readyz",
    summary="Can the service do its work",
    responses={503: {"model": Ready, "description": "Something is missing; the answer says what."}},
)
def readyz(live: Live, response: Response) -> Ready:
    """Look at database, tables and parameter store, at most once a second."""
    found = live.health.readiness()
    if not found.ready:
        response.status_code = 503
    return Ready(status="ok" if found.ready else "not ready", **dataclasses.asdict(found))


@router.get(
    "/metrics",
    operation_id="metrics",
    summary="Prometheus metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
def metrics(live: Live) -> Response:
    """Give everything of docs/metrics.md; with the database away, dspark_calibrator_up 0 and the process."""
    return Response(live.metrics.render(), media_type=CONTENT_TYPE_LATEST)


@events_router.head("/events", include_in_schema=False)
@events_router.get(
    "/events",
    operation_id="events",
    summary="What changes, as it happens",
    response_class=StreamingResponse,
    responses={
        200: {"content": {EVENT_STREAM: {"schema": {"type": "string"}}}},
        **problem_responses(404),
    },
)
async def events(
    request: Request,
    live: Live,
    deployment: Annotated[
        str | None, Query(min_length=1, max_length=128, description="Only of this deployment.")
    ] = None,
    last_event_id: Annotated[
        str | None,
        Header(alias="Last-Event-ID", max_length=100, description="Sent by browsers that reconnect."),
    ] = None,
) -> StreamingResponse:
    """Stream ``deployment``, ``refresh``, ``version``, ``episode``, ``run`` and ``rollout``.

    The data say what changed ({deployment, id, ...}), not how it is now: read that. ``reset`` says that
    events were missed.
    """
    if deployment is not None:
        await run_sync(_check_deployment, live.store, deployment)
    try:
        subscription = live.events.subscribe(deployment)
    except TooManyClientsError as error:
        raise Unavailable(str(error)) from error
    if request.method == "HEAD":
        live.events.unsubscribe(subscription)
        return StreamingResponse(iter(()), media_type=EVENT_STREAM, headers=EVENT_HEADERS)
    return StreamingResponse(
        stream(live.events, subscription, last_event_id is not None),
        media_type=EVENT_STREAM,
        headers=EVENT_HEADERS,
    )


def _check_deployment(store: Store, name: str) -> None:
    with store.read() as connection:
        known_deployment(connection, name)
