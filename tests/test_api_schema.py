"""The whole OpenAPI document against the real application: whatever is sent, the answer is as described."""

from collections import Counter

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
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
EXAMPLES = 10
KNOWN = {"deployment": "chat", "version": 1, "refresh": 1, "run": 1, "rollout": 1}
"""What is there, so that not every generated request ends at 404."""
ENDLESS = {"/v1/events"}


def failures_of(operation, headers, statuses):
    """What is not as described, in words; empty when all is well."""

    @given(case=operation.as_strategy(), known=st.booleans())
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def ask(case, known):
        if known:
            for name in set(case.path_parameters or {}) & set(KNOWN):
                case.path_parameters[name] = KNOWN[name]
        answer = case.call(headers=headers)
        statuses[answer.status_code] += 1
        case.validate_response(answer, checks=CHECKS, headers=headers)

    try:
        ask()
    except Exception as error:
        inner = getattr(error, "exceptions", [error])
        return [f"{type(each).__name__}: {each}" for each in inner]
    return []


def test_every_answer_of_every_operation_is_as_described(filled_service):
    api = schemathesis.openapi.from_asgi("/openapi.json", filled_service.app)
    headers = filled_service.headers(Role.ADMIN)
    asked, wrong, statuses = 0, {}, Counter()
    for found in api.get_all_operations():
        operation = found.ok()
        if operation.path in ENDLESS:
            continue
        asked += 1
        if problems := failures_of(operation, headers, statuses):
            wrong[f"{operation.method.upper()} {operation.path}"] = problems
    assert asked > 30
    # Most of what is generated is refused; enough must be taken for the answers to say something.
    assert sum(count for status, count in statuses.items() if status < 300) > 3 * asked, statuses
    assert not wrong, "\n\n".join(f"{name}\n" + "\n".join(told) for name, told in wrong.items())
