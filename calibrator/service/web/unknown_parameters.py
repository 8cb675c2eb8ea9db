"""A query parameter that a route does not know is a mistake, not something to be left unsaid."""

from __future__ import annotations

from fastapi import Request, params
from fastapi.dependencies.utils import get_flat_params
from fastapi.routing import APIRoute

from calibrator.service.web.problems import Invalid

_SHOWN = 60


def no_unknown_parameters(request: Request) -> None:
    """Let a request through whose query parameters its route knows.

    Raises
    ------
    Invalid
        Naming the first one that it does not know, and those that it does.
    """
    route = request.scope.get("route")
    if not request.query_params or not isinstance(route, APIRoute):
        return
    known = sorted(
        {
            field.alias
            for field in get_flat_params(route.dependant)
            if isinstance(field.field_info, params.Query)
        }
    )
    for name in request.query_params:
        if name not in known:
            expected = f"one of {', '.join(known)}" if known else "no query parameters"
            detail = f"got {name[:_SHOWN]!r}, expected {expected}"
            raise Invalid(
                f"query: {detail}", errors=[{"pointer": f"query/{name[:_SHOWN]}", "detail": detail}]
            )
