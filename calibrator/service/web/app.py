"""The FastAPI application: routes put together, nothing decided."""

from __future__ import annotations

from fastapi import FastAPI

from calibrator.service.web.context import ServiceContext


def create_app(context: ServiceContext) -> FastAPI:
    """Build the application around the parts of a running service."""
    app = FastAPI(title="DSpark Calibrator", version="1", docs_url="/docs", redoc_url=None)
    app.state.context = context
    return app
