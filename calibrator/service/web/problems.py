"""Every error that the API answers with: RFC 9457 problem documents."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response

from calibrator.formats.temperatures import FormatError
from calibrator.store.errors import (
    ConflictError,
    DataRefusedError,
    RangeTooLargeError,
    SchemaError,
    StaleReadError,
    StoreError,
    StoreUnavailableError,
)
from serving_adapter.contract import ContractError
from serving_adapter.ports import TransportError, VersionConflictError

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
RETRY_SECONDS = 1

TITLES = {
    400: "Bad request",
    401: "No valid token",
    403: "Not allowed",
    404: "Not found",
    405: "Method not allowed",
    406: "Not acceptable",
    409: "Conflict",
    412: "Changed meanwhile",
    413: "Body too large",
    415: "Unsupported media type",
    421: "Wrong host",
    422: "Invalid input",
    428: "Precondition required",
    429: "Too many requests",
    500: "Internal error",
    503: "Unavailable",
}


class Problem(Exception):  # noqa: N818 - the word of RFC 9457
    """An answer that is no success.

    Parameters
    ----------
    status
        HTTP status.
    detail
        One sentence for a person, with the value that was found and what was expected.
    errors
        One entry per wrong field: ``{"pointer": "body/gamma", "detail": "..."}``.
    headers
        Further response headers.
    """

    status = 500

    def __init__(
        self,
        detail: str,
        *,
        status: int | None = None,
        errors: Sequence[Mapping[str, str]] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.status = status or self.status
        self.errors = [dict(error) for error in errors]
        self.headers = dict(headers or {})


class Unauthorized(Problem):
    """The caller has not said who it is, or not in a way that holds."""

    status = 401

    def __init__(self, detail: str) -> None:
        super().__init__(detail, headers={"WWW-Authenticate": 'Bearer realm="dspark-calibrator"'})


class Forbidden(Problem):
    """The caller is known and may not do this."""

    status = 403


class NotFound(Problem):
    """There is no such deployment, version, run, ..."""

    status = 404


class Conflict(Problem):
    """The state of things forbids it."""

    status = 409


class PreconditionFailed(Problem):
    """The document is not the one that ``If-Match`` names."""

    status = 412


class Invalid(Problem):
    """Input that can be read and makes no sense."""

    status = 422


class TooManyFailures(Problem):
    """An address has tried too many wrong tokens; ``seconds`` until one more is looked at like any other."""

    status = 429

    def __init__(self, seconds: float) -> None:
        wait = max(1, math.ceil(seconds))
        super().__init__(
            f"too many wrong tokens from this address, expected none for {wait} s; a right one never waits",
            headers={"Retry-After": str(wait)},
        )


class Unavailable(Problem):
    """A store cannot be reached or is busy; the same request may succeed soon."""

    status = 503

    def __init__(self, detail: str) -> None:
        super().__init__(detail, headers={"Retry-After": str(RETRY_SECONDS)})


class FieldError(BaseModel):
    """What is wrong with one field."""

    pointer: str = Field(description="Where: body, query, path or header, then the names down to the field.")
    detail: str


class ProblemDocument(BaseModel):
    """RFC 9457: what went wrong."""

    type: str = Field(description="about:blank: the status says what kind of problem it is.")
    title: str
    status: int
    detail: str
    instance: str = Field(description="Path of the request.")
    errors: list[FieldError] | None = None


_DESCRIPTIONS = {
    400: "The request cannot be understood.",
    401: "No token, or one that is not (or no longer) valid.",
    403: "The role of the caller does not suffice.",
    404: "There is no such thing.",
    409: "The present state forbids it.",
    412: "The document has changed since it was read (If-Match).",
    413: "The body is larger than the service takes.",
    415: "The body is not JSON.",
    421: "The Host header names no host of this service.",
    422: "A parameter or field is not valid; errors says which.",
    429: "Too many wrong tokens from this address; Retry-After says how long. A right one never waits.",
    503: "A store cannot be reached, or all connections are busy; try again after Retry-After seconds.",
}


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe these problems for OpenAPI (``responses=`` of a route)."""
    return {
        status: {
            "description": _DESCRIPTIONS.get(status, TITLES.get(status, "Problem")),
            "content": {
                MEDIA_TYPE: {
                    "schema": {"$ref": "#/components/schemas/ProblemDocument"},
                    "example": {
                        "type": "about:blank",
                        "title": TITLES[status],
                        "status": status,
                        "detail": _DESCRIPTIONS[status],
                        "instance": "/v1/deployments/chat",
                    },
                }
            },
        }
        for status in statuses
    }


def problem_response(path: str, problem: Problem) -> Response:
    """Render a problem."""
    content: dict[str, Any] = {
        "type": "about:blank",
        "title": TITLES.get(problem.status, "Problem"),
        "status": problem.status,
        "detail": problem.detail,
        "instance": path,
    }
    if problem.errors:
        content["errors"] = problem.errors
    # ASCII: a lone surrogate of a hostile path must not break the answer about it.
    body = json.dumps(content, ensure_ascii=True).encode()
    return Response(body, problem.status, headers=problem.headers, media_type=MEDIA_TYPE)


def as_problem(error: Exception) -> Problem:
    """Translate an error of ours; anything else is an internal error that says nothing of the inside."""
    match error:
        case Problem():
            return error
        case HTTPException():
            return Problem(
                str(error.detail), status=error.status_code, headers=error.headers and dict(error.headers)
            )
        case RequestValidationError():
            return _invalid_request(error)
        case StoreUnavailableError():
            return Unavailable(f"the database is not available: {error}")
        case SchemaError():
            return Unavailable("the database does not have the tables of this release")
        case DataRefusedError() | RangeTooLargeError() | ContractError() | FormatError():
            return Invalid(str(error))
        case ConflictError() | VersionConflictError() | StaleReadError():
            return Conflict(str(error))
        case TransportError():
            return Unavailable(f"the parameter store is not available: {error}")
        case StoreError():
            return Unavailable(str(error))
        case _:
            return Problem("the service failed; its log has the reason under the request id")


HANDLED: tuple[type[Exception], ...] = (
    Problem,
    HTTPException,
    RequestValidationError,
    StoreError,
    ContractError,
    FormatError,
    TransportError,
    VersionConflictError,
)


def install(app: FastAPI, missing_page: Callable[[], Response]) -> None:
    """Answer every error of ``app`` with a problem document.

    Only a browser that was led to no page gets ``missing_page``, with the status that says so.
    """

    def handle(request: Request, error: Exception) -> Response:
        problem = as_problem(error)
        if problem.status == 404 and _wants_a_page(request):
            page = missing_page()
            page.status_code = problem.status
            return page
        if problem.status >= 500:
            log.warning(
                "request_failed path=%r status=%d reason=%r", request.url.path, problem.status, str(error)
            )
        return problem_response(request.url.path, problem)

    for kind in HANDLED:
        app.add_exception_handler(kind, handle)


def _wants_a_page(request: Request) -> bool:
    """Whether somebody reads the answer in a browser, and not a program that asked the API for something."""
    ours = request.url.path.startswith(("/v1/", "/static/"))
    return request.method in ("GET", "HEAD") and not ours and "text/html" in request.headers.get("accept", "")


def _invalid_request(error: RequestValidationError) -> Problem:
    errors = []
    for entry in error.errors():
        pointer = "/".join(str(part) for part in entry["loc"])
        errors.append({"pointer": pointer[:200], "detail": str(entry["msg"])[:300]})
    first = errors[0] if errors else {"pointer": "request", "detail": "not valid"}
    return Invalid(f"{first['pointer']}: {first['detail']}", errors=errors[:50])
