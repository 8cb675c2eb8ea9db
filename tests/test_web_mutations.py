"""Changes through the API: done, noted, done once, and only to what was meant."""

import json

import numpy as np
import pytest

from calibrator.service.access import Role
from calibrator.store import audit, deployments, parameters
from serving_adapter.contract import decode_document

GIVEN = {"name": "chat", "gamma": 7, "fingerprint": "f"}
TEMPERATURES = [1.1, 1.1, 1.2, 1.2, 1.3, 1.3, 1.4]


def trail(service):
    return service.get("/v1/audit", Role.ADMIN).json()["items"]


def served(service, name="chat"):
    payload = service.context.parameter_store.read(name)
    return None if payload is None else decode_document(payload)


@pytest.fixture
def registered(service):
    assert service.post("/v1/deployments", GIVEN).status_code == 201
    return service


def test_a_deployment_is_registered_once(service):
    made = service.post("/v1/deployments", {**GIVEN, "settings": {"form": "affine"}})
    assert made.status_code == 201
    assert made.json()["settings"] == {"form": "affine"}
    assert made.json()["status"] == "no_data"
    assert made.headers["etag"]
    again = service.post("/v1/deployments", GIVEN)
    assert again.status_code == 409
    assert "already" in again.json()["detail"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""}, {"name": "a b"}, {"name": "a{b}"}, {"name": "x" * 129}, {"name": "a\nb"}, {"gamma": 0},
        {"gamma": 65}, {"gamma": 1.5}, {"fingerprint": "x" * 129}, {"fingerprint": "a\u0000"},
        {"settings": {"nonsense": 1}}, {"settings": {"explore": {"floor": 2}}}, {"unknown": 1},
    ],
)  # fmt: skip
def test_a_deployment_that_makes_no_sense_is_refused(service, wrong):
    answer = service.post("/v1/deployments", {**GIVEN, **wrong})
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert service.get("/v1/deployments").json()["items"] == []


def test_settings_are_merged(registered):
    first = registered.patch("/v1/deployments/chat", {"settings": {"form": "affine", "share": 0.5}})
    assert first.json()["settings"] == {"form": "affine", "share": 0.5}
    second = registered.patch("/v1/deployments/chat", {"settings": {"share": None, "half_life_seconds": 60}})
    assert second.json()["settings"] == {"form": "affine", "half_life_seconds": 60}
    wrong = registered.patch("/v1/deployments/chat", {"settings": {"share": 7}})
    assert wrong.status_code == 422
    assert "share" in wrong.json()["detail"]
    assert registered.get("/v1/deployments/chat").json()["settings"] == second.json()["settings"]


def test_a_change_of_another_document_than_was_meant_is_refused(registered):
    etag = registered.get("/v1/deployments/chat").headers["etag"]
    changed = registered.patch(
        "/v1/deployments/chat", {"settings": {"share": 0.5}}, headers={"If-Match": etag}
    )
    assert changed.status_code == 200
    assert changed.headers["etag"] != etag
    for method, path, body in (
        ("patch", "/v1/deployments/chat", {"settings": {"share": 0.1}}),
        ("put", "/v1/deployments/chat/frozen", {"frozen": True}),
        ("put", "/v1/deployments/chat/exploration", {"mode": "auto"}),
    ):
        stale = getattr(registered, method)(path, body, headers={"If-Match": etag})
        assert stale.status_code == 412, path
    now = registered.get("/v1/deployments/chat")
    assert now.json()["settings"] == {"share": 0.5}
    assert now.headers["etag"] == changed.headers["etag"]


def test_a_frozen_deployment_is_shown_and_left_alone(registered):
    frozen = registered.put("/v1/deployments/chat/frozen", {"frozen": True, "reason": "load test"})
    assert frozen.json()["frozen"] is True
    assert registered.context.refresher.refresh("chat").outcome == "frozen"
    assert registered.put("/v1/deployments/chat/frozen", {"frozen": False}).json()["frozen"] is False


def test_exploration_is_replaced_as_a_whole(registered):
    registered.patch("/v1/deployments/chat", {"settings": {"share": 0.5}})
    registered.put("/v1/deployments/chat/exploration", {"mode": "fixed", "explore": 0.05})
    answer = registered.put("/v1/deployments/chat/exploration", {"mode": "auto", "floor": 0.01})
    assert answer.json()["settings"] == {"mode": "auto", "floor": 0.01}
    settings = registered.get("/v1/deployments/chat").json()["settings"]
    assert settings == {"share": 0.5, "explore": {"mode": "auto", "floor": 0.01}}
    wrong = registered.put("/v1/deployments/chat/exploration", {"mode": "fixed"})
    assert wrong.status_code == 422


def test_what_is_not_there_cannot_be_changed(service):
    for method, path, body in (
        ("patch", "/v1/deployments/nobody", {"settings": {}}),
        ("put", "/v1/deployments/nobody/frozen", {"frozen": True}),
        ("put", "/v1/deployments/nobody/exploration", {"mode": "auto"}),
        ("post", "/v1/deployments/nobody/versions", {"format": "sglang", "content": {}}),
        ("post", "/v1/deployments/nobody/rollback", {"version": 1}),
    ):
        assert getattr(service, method)(path, body).status_code == 404, path


# --- import


def test_temperatures_of_another_engine_are_imported(registered):
    content = {"temperatures": TEMPERATURES, "dataset": "mt-bench", "num_samples": 10}
    given = {"format": "sglang", "content": content, "reason": "measured offline"}
    answer = registered.post("/v1/deployments/chat/versions", given)
    assert answer.status_code == 201, answer.text
    body = answer.json()
    assert (body["version"], body["form"], body["temperatures"]) == (1, "temperature", TEMPERATURES)
    assert "measured offline" in body["reasons"][0]
    assert answer.headers["location"] == "/v1/deployments/chat/versions/1"
    document = served(registered)
    assert document is not None
    assert document.temperatures == TEMPERATURES
    assert registered.get("/v1/deployments/chat/versions/1").headers["etag"] == answer.headers["etag"]


def test_a_document_is_imported_under_the_next_number(registered):
    content = {"sts_temperatures": TEMPERATURES, "max_draft_len": 7}
    registered.post("/v1/deployments/chat/versions", {"format": "tensorrt-llm", "content": content})
    exported = registered.get("/v1/deployments/chat/versions/1").json()["document"]
    again = registered.post("/v1/deployments/chat/versions", {"document": exported})
    assert again.status_code == 201, again.text
    assert (again.json()["version"], again.json()["previous"]) == (2, 1)
    by_hand = {**exported, "temperatures": [2.0] * 7, "digest": ""}
    assert registered.post("/v1/deployments/chat/versions", {"document": by_hand}).json()["version"] == 3
    tampered = {**exported, "temperatures": [3.0] * 7}
    refused = registered.post("/v1/deployments/chat/versions", {"document": tampered})
    assert refused.status_code == 422
    assert "digest" in refused.json()["detail"]


def test_step_times_are_imported_and_the_parameters_stay(registered):
    content = {"temperatures": TEMPERATURES}
    registered.post("/v1/deployments/chat/versions", {"format": "sglang", "content": content})
    table = {
        "sample_batch_tokens": [1, 64, 256],
        "sample_steps_per_sec": [100.0, 80.0, 40.0],
        "max_batch_tokens": 256,
    }
    answer = registered.post("/v1/deployments/chat/versions", {"format": "cost", "content": table})
    assert answer.status_code == 201, answer.text
    document = served(registered)
    assert document is not None
    assert document.temperatures == TEMPERATURES
    assert document.cost is not None
    assert np.isclose(np.interp(1, document.cost.batch_tokens, document.cost.seconds), 0.01)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"format": "sglang"},
        {"content": {}},
        {"document": {}, "format": "sglang", "content": {}},
        {"format": "elsewhere", "content": {}},
        {"format": "sglang", "content": {}},
        {"format": "sglang", "content": {"temperatures": [1.0] * 6}},
        {"format": "sglang", "content": {"temperatures": [0.0] * 7}},
        {"format": "sglang", "content": {"temperatures": [10**400] * 7}},
        {"format": "sglang", "content": {"temperatures": ["1"] * 7}},
        {"format": "cost", "content": {"sample_batch_tokens": [2, 1], "sample_steps_per_sec": [1, 2]}},
        {"format": "cost", "content": {"batch_tokens": [10**400], "seconds": [1]}},
        {"document": {"schema": "dspark.parameters.v9"}},
        {"document": {"gamma": "seven"}},
    ],
)
def test_what_cannot_be_parameters_is_refused_and_nothing_is_published(registered, wrong):
    answer = registered.post("/v1/deployments/chat/versions", wrong)
    assert answer.status_code == 422, answer.text
    assert answer.json()["detail"]
    assert served(registered) is None


def test_a_document_for_another_engine_is_refused(registered):
    content = {"temperatures": TEMPERATURES}
    registered.post("/v1/deployments/chat/versions", {"format": "sglang", "content": content})
    exported = registered.get("/v1/deployments/chat/versions/1").json()["document"]
    other = {**exported, "fingerprint": "another", "digest": ""}
    refused = registered.post("/v1/deployments/chat/versions", {"document": other})
    assert refused.status_code == 422
    assert "another engine" in refused.json()["detail"]


def test_nothing_is_imported_into_a_frozen_deployment(registered):
    registered.put("/v1/deployments/chat/frozen", {"frozen": True})
    given = {"format": "sglang", "content": {"temperatures": TEMPERATURES}}
    assert registered.post("/v1/deployments/chat/versions", given).status_code == 409
    assert served(registered) is None


def test_an_import_may_begin_a_rollout(registered):
    content = {"temperatures": TEMPERATURES}
    registered.post("/v1/deployments/chat/versions", {"format": "sglang", "content": content})
    trial = {"format": "sglang", "content": {"temperatures": [2.0] * 7}, "rollout": True}
    answer = registered.post("/v1/deployments/chat/versions", trial)
    assert answer.status_code == 201, answer.text
    document = served(registered)
    assert document is not None
    assert document.version == 1
    blocked = registered.post("/v1/deployments/chat/versions", {"format": "sglang", "content": content})
    assert blocked.status_code == 409
    assert "rollout" in blocked.json()["detail"]


# --- export


def test_a_version_leaves_as_a_file_that_can_be_imported_again(registered):
    content = {"temperatures": TEMPERATURES}
    registered.post("/v1/deployments/chat/versions", {"format": "sglang", "content": content})
    path = "/v1/deployments/chat/versions/1/export"
    document = registered.get(path)
    assert document.headers["content-disposition"] == 'attachment; filename="chat-v1.json"'
    stored = registered.get("/v1/deployments/chat/versions/1").json()["document"]
    assert document.json() == {name: value for name, value in stored.items() if name != "segments"}
    for there, back in (("sglang", "sglang"), ("tensorrt", "tensorrt-llm")):
        exported = registered.get(f"{path}?format={there}")
        assert exported.headers["content-type"] == "application/json"
        again = registered.post("/v1/deployments/chat/versions", {"format": back, "content": exported.json()})
        assert again.json()["temperatures"] == TEMPERATURES
    assert registered.get(f"{path}?format=vllm-cost").status_code == 409
    assert registered.get(f"{path}?format=elsewhere").status_code == 422
    assert registered.get("/v1/deployments/chat/versions/9/export").status_code == 404


def test_an_affine_version_says_in_a_header_that_its_temperatures_were_fitted_anew(service):
    service.fill()
    version = service.get("/v1/deployments/chat").json()["version"]
    form = service.get("/v1/deployments/chat").json()["form"]
    exported = service.get(f"/v1/deployments/chat/versions/{version}/export?format=sglang")
    assert exported.status_code == 200, exported.text
    assert len(exported.json()["temperatures"]) == 7
    assert ("refitted" in exported.headers.get("export-note", "")) == (form == "affine")
    cost = service.get(f"/v1/deployments/chat/versions/{version}/export?format=sglang-cost")
    assert cost.json()["sample_batch_tokens"]


# --- roll back


def test_a_rollback_is_a_new_version_with_the_old_content(registered):
    for value in (1.5, 2.5):
        content = {"temperatures": [value] * 7}
        registered.post("/v1/deployments/chat/versions", {"format": "sglang", "content": content})
    answer = registered.post(
        "/v1/deployments/chat/rollback", {"version": 1, "reason": "slower", "freeze": True}
    )
    assert answer.status_code == 201, answer.text
    assert (answer.json()["version"], answer.json()["temperatures"]) == (3, [1.5] * 7)
    document = served(registered)
    assert document is not None
    assert (document.version, document.temperatures) == (3, [1.5] * 7)
    assert registered.get("/v1/deployments/chat").json()["frozen"] is True
    last = trail(registered)[0]
    assert last["before"] == {"version": 2, "frozen": False}
    assert last["after"] == {"version": 3, "content_of": 1, "frozen": True, "reason": "slower"}


def test_a_version_that_is_not_there_cannot_be_rolled_back_to(registered):
    assert registered.post("/v1/deployments/chat/rollback", {"version": 9}).status_code == 404


def test_a_version_of_another_engine_cannot_be_rolled_back_to(registered):
    content = {"temperatures": TEMPERATURES}
    registered.post("/v1/deployments/chat/versions", {"format": "sglang", "content": content})
    with registered.context.store.write() as connection:
        known = deployments.get(connection, "chat")
        deployments.set_fingerprint(connection, known.id, "new drafter")
    refused = registered.post("/v1/deployments/chat/rollback", {"version": 1})
    assert refused.status_code == 409
    assert "another engine" in refused.json()["detail"]


# --- audit


def test_every_change_is_noted_with_who_what_before_and_after(registered):
    registered.put(
        "/v1/deployments/chat/frozen", {"frozen": True, "reason": "test"}, headers={"X-Request-ID": "req-7"}
    )
    last = trail(registered)[0]
    assert last["subject"].startswith("token:")
    assert last["subject"].endswith("(test operator)")
    assert (last["role"], last["method"], last["status"]) == ("operator", "PUT", 200)
    assert last["path"] == "/v1/deployments/chat/frozen"
    assert last["before"] == {"frozen": False}
    assert last["after"] == {"frozen": True, "reason": "test"}
    assert last["request_id"] == "req-7"


def test_attempts_that_failed_are_noted_too(registered):
    registered.patch("/v1/deployments/chat", {"settings": {"share": 7}})
    last = trail(registered)[0]
    assert (last["status"], last["before"], last["after"]) == (422, None, None)


def test_reading_is_not_noted(registered):
    count = len(trail(registered))
    registered.get("/v1/deployments")
    assert len(trail(registered)) == count


def test_the_audit_is_read_page_by_page(registered):
    for frozen in (True, False, True):
        registered.put("/v1/deployments/chat/frozen", {"frozen": frozen})
    seen, path = [], "/v1/audit?limit=2"
    while path:
        page = registered.get(path, Role.ADMIN).json()
        seen += [item["id"] for item in page["items"]]
        path = page["next_cursor"] and f"/v1/audit?limit=2&cursor={page['next_cursor']}"
    assert seen == [4, 3, 2, 1]


def test_a_service_that_dies_on_the_way_leaves_an_entry_without_a_status(registered):
    with registered.context.store.write() as connection:
        audit.begin(
            connection, at=1.0, subject="x", role="operator", method="PUT", path="/v1/x", request_id="r"
        )
    assert trail(registered)[0]["status"] is None


# --- idempotency


def test_the_same_key_is_done_once_and_answered_twice(registered):
    given = {"format": "sglang", "content": {"temperatures": TEMPERATURES}}
    headers = {"Idempotency-Key": "import-1"}
    first = registered.post("/v1/deployments/chat/versions", given, headers=headers)
    second = registered.post("/v1/deployments/chat/versions", given, headers=headers)
    assert second.status_code == first.status_code == 201
    assert second.json() == first.json()
    assert second.headers["etag"] == first.headers["etag"]
    assert second.headers["location"] == first.headers["location"]
    assert second.headers["idempotency-replayed"] == "true"
    with registered.context.store.read() as connection:
        assert parameters.latest_number(connection, deployments.get(connection, "chat").id) == 1


def test_a_key_of_another_request_is_refused(registered):
    headers = {"Idempotency-Key": "k"}
    registered.put("/v1/deployments/chat/frozen", {"frozen": True}, headers=headers)
    other = registered.put("/v1/deployments/chat/frozen", {"frozen": False}, headers=headers)
    assert other.status_code == 422
    assert "another request" in other.json()["detail"]
    assert registered.get("/v1/deployments/chat").json()["frozen"] is True


def test_a_key_belongs_to_its_caller(registered):
    headers = {"Idempotency-Key": "k"}
    registered.put("/v1/deployments/chat/frozen", {"frozen": True}, headers=headers)
    other = registered.put("/v1/deployments/chat/frozen", {"frozen": False}, Role.ADMIN, headers=headers)
    assert other.status_code == 200


def test_a_refusal_is_remembered_and_a_failure_of_ours_is_not(registered, monkeypatch):
    headers = {"Idempotency-Key": "k"}
    path = "/v1/deployments/chat"
    wrong = {"settings": {"share": 7}}
    assert registered.patch(path, wrong, headers=headers).status_code == 422
    assert registered.patch(path, wrong, headers=headers).headers["idempotency-replayed"] == "true"

    headers = {"Idempotency-Key": "k2"}
    with monkeypatch.context() as broken:
        broken.setattr(deployments, "set_settings", lambda *_: 1 / 0)
        assert registered.patch(path, {"settings": {"share": 0.5}}, headers=headers).status_code == 500
    again = registered.patch(path, {"settings": {"share": 0.5}}, headers=headers)
    assert again.status_code == 200
    assert "idempotency-replayed" not in again.headers


def test_a_key_that_cannot_be_one_is_refused(registered):
    for key in ("", "x" * 256):
        answer = registered.put(
            "/v1/deployments/chat/frozen", {"frozen": True}, headers={"Idempotency-Key": key}
        )
        assert answer.status_code == 422


def test_an_old_answer_is_forgotten(registered):
    headers = {"Idempotency-Key": "k"}
    registered.put("/v1/deployments/chat/frozen", {"frozen": True}, headers=headers)
    registered.clock.advance(2 * 86_400.0)
    other = registered.put("/v1/deployments/chat/frozen", {"frozen": False}, headers=headers)
    assert other.status_code == 200
    assert json.loads(other.content)["frozen"] is False
