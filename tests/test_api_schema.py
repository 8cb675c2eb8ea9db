"""The whole OpenAPI document against the real application: whatever is sent, the answer is as described."""

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from calibrator.service.access import Role

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
EXAMPLES = 12
KNOWN = {"deployment": "chat", "version": 1, "refresh": 1, "run": 1, "rollout": 1}
"""What is there, so that not every generated request ends at 404."""


@pytest.fixture(scope="module")
def api_schema(filled_service):
    return schemathesis.openapi.from_asgi("/openapi.json", filled_service.app)


schema = schemathesis.pytest.from_fixture("api_schema")


# An event stream has no end.
@schema.exclude(path="/v1/events").parametrize()
@schema.given(known=st.booleans())
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
def test_every_answer_is_as_described(case, known, filled_service):
    if known:
        for name in set(case.path_parameters or {}) & set(KNOWN):
            case.path_parameters[name] = KNOWN[name]
    case.call_and_validate(checks=CHECKS, headers=filled_service.headers(Role.ADMIN))
