"""What routes share beyond the context, made once per application."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, Request

from calibrator.service.reading.replicas import ReportCache
from calibrator.service.web.context import ServiceContext
from calibrator.service.web.event_hub import EventHub
from calibrator.service.web.health import Health
from calibrator.service.web.metrics import Metrics


class LiveParts:
    """Caches and background work of one application."""

    def __init__(self, context: ServiceContext) -> None:
        self.store = context.store
        self.reports = ReportCache(context.parameter_store, context.clock)
        self.health = Health(context)
        self.metrics = Metrics(context, self.reports)
        self.events = EventHub(context.store)
        self.metrics.clients = lambda: self.events.clients

    def close(self) -> None:
        """End event streams and their poller, at once."""
        self.events.close()


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Close the parts when the application ends."""
    yield
    app.state.live.close()


def live_parts(request: Request) -> LiveParts:
    """Return the parts that :func:`calibrator.service.web.app.create_app` made."""
    parts: LiveParts = request.app.state.live
    return parts


Live = Annotated[LiveParts, Depends(live_parts)]
