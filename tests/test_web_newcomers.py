"""What a newcomer stumbled over: answers that must not surprise."""

from pathlib import Path

import pytest

from calibrator.service.access import Role
from calibrator.store import runs
from serving_adapter.contract import decode_document
from serving_adapter.ports import TransportError
from tests.web_support import Service

GIVEN = {"name": "chat", "gamma": 7, "fingerprint": "f"}
CHAT = "/v1/deployments/chat"


@pytest.fixture
def chat(service: Service) -> Service:
    assert service.post("/v1/deployments", GIVEN).status_code == 201
    return service


def imported(service: Service, value: float):
    content = {"temperatures": [value] * 7}
    return service.post(f"{CHAT}/versions", {"format": "tensorrt", "content": content})


@pytest.mark.parametrize(
    "wrong", [{"name": "."}, {"name": ".."}, {"gamma": 33}, {"gamma": "7"}, {"gamma": True}]
)
def test_what_no_engine_can_be_is_not_registered(service: Service, wrong: dict[str, object]) -> None:
    assert service.post("/v1/deployments", {**GIVEN, **wrong}).status_code == 422


def test_a_mistyped_deployment_can_go_with_the_runs_that_found_no_rows(chat: Service) -> None:
    chat.put(f"{CHAT}/schedule", {"cron": "0 3 * * *"})
    with chat.context.store.write() as connection:
        runs.request_run(connection, 1, runs.MANUAL, False)
    assert chat._ask("DELETE", CHAT, Role.VIEWER).status_code == 403
    assert chat._ask("DELETE", CHAT, Role.OPERATOR).status_code == 204
    assert chat.get(CHAT).status_code == 404
    assert chat.post("/v1/deployments", GIVEN).status_code == 201


def test_a_deployment_with_versions_stays(chat: Service) -> None:
    imported(chat, 1.5)
    refused = chat._ask("DELETE", CHAT, Role.OPERATOR)
    assert refused.status_code == 409
    assert "versions" in refused.json()["detail"]


def test_pausing_a_schedule_keeps_it_and_so_does_going_on(chat: Service) -> None:
    chat.put(f"{CHAT}/schedule", {"cron": "0 3 * * *"})
    for paused in (True, False):
        answer = chat.put(f"{CHAT}/schedule", {"paused": paused}).json()
        assert (answer["cron"], answer["paused"]) == ("0 3 * * *", paused)


def test_a_change_without_the_parameter_store_is_kept_and_follows(chat: Service, monkeypatch) -> None:
    imported(chat, 1.5)
    imported(chat, 2.5)

    def away(*_: object) -> None:
        raise TransportError("no route")

    with monkeypatch.context() as patch:
        patch.setattr(chat.context.parameter_store, "read", away)
        patch.setattr(chat.context.parameter_store, "publish", away)
        third = imported(chat, 3.5)
        fourth = chat.post(f"{CHAT}/rollback", {"version": 1})
    for answer, version in ((third, 3), (fourth, 4)):
        assert (answer.status_code, answer.json()["version"]) == (201, version)
        assert "parameter store is away" in answer.json()["note"]
    chat.context.publisher.reconcile("chat")
    assert decode_document(chat.context.parameter_store.read("chat")).version == 4


def test_a_version_that_is_in_force_is_not_rolled_back_to(chat: Service) -> None:
    imported(chat, 1.5)
    assert chat.post(f"{CHAT}/rollback", {"version": 1}).status_code == 409


def test_query_parameters_that_nobody_reads_are_refused(chat: Service) -> None:
    refused = chat.get(f"{CHAT}/calibration?form=now")
    assert refused.status_code == 422
    assert "'form'" in refused.json()["detail"]
    assert chat.get(f"{CHAT}/calibration?step=5m").json()["step"] == 300.0


def test_head_is_get_without_a_body(chat: Service) -> None:
    for path in (CHAT, "/v1/deployments", "/healthz"):
        answer = chat._ask("HEAD", path, Role.VIEWER)
        assert (answer.status_code, answer.content) == (200, b"")


def test_a_database_file_that_was_deleted_is_noticed(service: Service) -> None:
    if service.context.store.dialect != "sqlite":
        pytest.skip("files are SQLite's")
    Path(str(service.context.store.engine.url.database)).unlink()
    answer = service.client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["database"] == "file deleted or replaced"
