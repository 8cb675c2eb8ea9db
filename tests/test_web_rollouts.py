"""Rollouts over the API."""

import pytest

from calibrator.service.access import Role
from tests.web_support import Service

ROLLOUTS = "/v1/deployments/chat/rollouts"


@pytest.fixture
def chat(service: Service) -> Service:
    """A deployment with a version in force."""
    service.fill(4000)
    return service


def start(chat: Service, **body: object) -> dict:
    answer = chat.post(ROLLOUTS, {"version": 1, **body})
    assert answer.status_code == 201, answer.text
    return answer.json()


def test_a_rollout_gives_what_a_version_holds_a_new_number(chat: Service) -> None:
    answer = chat.post(ROLLOUTS, {"version": 1, "share": 0.2, "reason": "try again"})
    assert answer.status_code == 201
    started = answer.json()
    assert answer.headers["Location"] == f"/v1/rollouts/{started['id']}"
    assert (started["version"], started["control_version"], started["share"]) == (2, 1, 0.2)
    assert (started["stage"], started["state"]) == ("shadow", "running")
    empty = {"shadow": None, "canary": [], "decision": None, "replicas": None, "curve": None}
    assert started["evidence"] == empty
    assert started["share_asked"] == 0.2
    (line,) = started["history"]
    assert (line["stage"], line["reason"]) == ("shadow", "try again")
    assert chat.get(f"/v1/rollouts/{started['id']}").json() == started
    assert chat.get("/v1/rollouts?deployment=chat&state=running").json()["items"] == [started]
    versions = chat.get("/v1/deployments/chat/versions").json()["items"]
    assert [(v["version"], v["state"]) for v in versions] == [(2, "shadow"), (1, "published")]
    assert chat.get("/v1/deployments/chat").json()["rollout"] == {"id": started["id"], "stage": "shadow"}


def test_one_rollout_at_a_time(chat: Service) -> None:
    start(chat)
    assert chat.post(ROLLOUTS, {"version": 1}).status_code == 409


def test_a_promoted_candidate_is_in_force(chat: Service) -> None:
    started = start(chat)
    path = f"/v1/rollouts/{started['id']}"
    canary = chat.post(f"{path}/promote", {"stage": "canary"}).json()
    assert (canary["stage"], canary["state"]) == ("canary", "running")
    done = chat.post(f"{path}/promote", {"reason": "looked at it"}).json()
    assert (done["stage"], done["state"], done["reason"]) == ("all", "done", "looked at it")
    assert done["finished_at"] is not None
    assert [line["by"] for line in done["history"]] == [done["history"][0]["by"]] * 3
    assert chat.get("/v1/deployments/chat").json()["version"] == 2
    assert chat.post(f"{path}/promote").status_code == 409
    assert chat.post(f"{path}/abort").status_code == 409


def test_an_aborted_candidate_is_not_and_a_new_rollout_may_begin(chat: Service) -> None:
    started = start(chat)
    ended = chat.post(f"/v1/rollouts/{started['id']}/abort", {"reason": "no"}).json()
    assert (ended["stage"], ended["state"], ended["reason"]) == ("aborted", "aborted", "no")
    assert chat.get("/v1/deployments/chat").json()["version"] == 1
    assert start(chat)["version"] == 3
    listed = chat.get("/v1/rollouts?limit=1").json()
    assert [each["version"] for each in listed["items"]] == [3]
    rest = chat.get("/v1/rollouts", params={"cursor": listed["next_cursor"]}).json()
    assert [each["version"] for each in rest["items"]] == [2]


def test_a_decision_can_name_the_state_that_it_was_made_on(chat: Service) -> None:
    started = start(chat)
    path = f"/v1/rollouts/{started['id']}"
    seen = chat.get(path).headers["ETag"]
    chat.clock.advance(1.0)
    assert chat.post(f"{path}/promote", {"stage": "canary"}).status_code == 200
    assert chat.post(f"{path}/abort", headers={"If-Match": seen}).status_code == 412
    assert chat.get(path).json()["stage"] == "canary"


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (ROLLOUTS, {"version": 9}, 404),
        (ROLLOUTS, {"version": 1, "share": 0}, 422),
        (ROLLOUTS, {"version": 1, "share": 1.5}, 422),
        (ROLLOUTS, {"version": 1, "stage": "all"}, 422),
        (ROLLOUTS, {"version": 1, "colour": "blue"}, 422),
        ("/v1/deployments/nobody/rollouts", {"version": 1}, 404),
        ("/v1/rollouts/99/promote", {}, 404),
        ("/v1/rollouts/99/abort", {}, 404),
        ("/v1/rollouts/0/abort", {}, 422),
    ],
)
def test_what_makes_no_sense_is_a_problem(chat: Service, path: str, body: dict, status: int) -> None:
    answer = chat.post(path, body)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"


def test_a_frozen_deployment_starts_none(chat: Service) -> None:
    assert chat.put("/v1/deployments/chat/frozen", {"frozen": True}).status_code == 200
    assert chat.post(ROLLOUTS, {"version": 1}).status_code == 409


def test_a_viewer_decides_nothing(chat: Service) -> None:
    started = start(chat)
    assert chat.post(ROLLOUTS, {"version": 1}, Role.VIEWER).status_code == 403
    assert chat.post(f"/v1/rollouts/{started['id']}/abort", {}, Role.VIEWER).status_code == 403
    assert chat.get("/v1/rollouts", Role.VIEWER).status_code == 200
