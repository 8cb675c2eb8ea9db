"""What OpenAPI says beyond the routes: tags, problem documents, headers of mutations."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from calibrator.service.web.guards import SAFE_METHODS
from calibrator.service.web.mutations import HEADER
from calibrator.service.web.openapi_examples import add_examples
from calibrator.service.web.problems import ProblemDocument, problem_responses

TAGS: list[dict[str, Any]] = [
    {"name": "deployments", "description": "Deployments, their settings, and what holds their parameters."},
    {"name": "calibration", "description": "Calibration error over time, reliability diagrams, drift."},
    {"name": "throughput", "description": "Step times, the throughput ledger, what calibration is worth."},
    {"name": "versions", "description": "Parameter versions: every one that was ever published."},
    {"name": "rollouts", "description": "Versions on their way: shadow, canary, all."},
    {"name": "jobs", "description": "Schedules and runs of recalibration."},
    {"name": "access", "description": "Who asks, and who changed what."},
    {"name": "operations", "description": "Health, metrics, events."},
]


def describe(app: FastAPI) -> None:
    """Give ``app`` its OpenAPI document."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(
                title=app.title,
                version=app.version,
                summary=app.summary,
                routes=app.routes,
                tags=app.openapi_tags,
            )
            _complete(document)
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _complete(document: dict[str, Any]) -> None:
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    described = ProblemDocument.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas.update(described.pop("$defs", {}))
    schemas["ProblemDocument"] = described
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if not isinstance(operation, dict) or not path.startswith("/v1/"):
                continue
            _complete_operation(method.upper(), operation)
    add_examples(document)


def _complete_operation(method: str, operation: dict[str, Any]) -> None:
    responses = operation.setdefault("responses", {})
    more = [401, 403, 422, 429, 503]
    if method not in SAFE_METHODS:
        more += [400, 404, 409, 413, 415]
        names = {(p.get("in"), p.get("name")) for p in operation.get("parameters", [])}
        if ("header", HEADER) not in names:
            operation.setdefault("parameters", []).append(_IDEMPOTENCY_KEY)
    for status, described in problem_responses(*more).items():
        known = responses.get(str(status))
        if known is None or "HTTPValidationError" in str(known):
            responses[str(status)] = described


_IDEMPOTENCY_KEY: dict[str, Any] = {
    "name": HEADER,
    "in": "header",
    "required": False,
    "description": "Repeated with the same request it gives the first answer; with another one it is 422.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
    "example": "0b0f6c2e-5d2f-4f5c-9d43-0d6b6f0a2d11",
}
