"""What the routes work with: one object, made by the composition root, reached through the request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from calibrator.service.publisher import Publisher
from calibrator.service.refresh import Refresher
from calibrator.store.store import Store
from serving_adapter.ports import Clock, ParameterStore
from serving_adapter.settings import Settings


@dataclass(frozen=True, slots=True)
class ServiceContext:
    """The parts of a running service."""

    store: Store
    parameter_store: ParameterStore
    publisher: Publisher
    refresher: Refresher
    clock: Clock
    settings: Settings


def context_of(request: Request) -> ServiceContext:
    """Return the context that :func:`calibrator.service.web.app.create_app` was given."""
    context: ServiceContext = request.app.state.context
    return context


Context = Annotated[ServiceContext, Depends(context_of)]
