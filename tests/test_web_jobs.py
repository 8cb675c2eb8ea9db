"""Schedules and runs over the API."""

import pytest

from calibrator.service.access import Role
from calibrator.service.jobs import JobRunner, Recalibration
from calibrator.store import deployments
from tests.web_support import Service

SCHEDULE = "/v1/deployments/chat/schedule"
RECALIBRATE = "/v1/deployments/chat/recalibrate"


@pytest.fixture
def chat(service: Service) -> Service:
    """A service with a deployment that nobody has sent rows for."""
    with service.context.store.write() as connection:
        deployments.register(connection, "chat", 7, "f", service.clock.now())
    return service


def work_off(service: Service) -> None:
    """Do what a runner of the service does in the background."""
    JobRunner(
        service.context.store,
        Recalibration(service.context.store, service.context.refresher),
        default_seconds=1e9,
    ).run_pending()


def test_without_a_schedule_the_interval_of_the_settings_holds(chat: Service) -> None:
    answer = chat.get(SCHEDULE)
    assert answer.status_code == 200
    assert answer.json() == {
        "deployment": "chat",
        "interval_seconds": 300.0,
        "cron": None,
        "paused": False,
        "next_run_at": "2023-11-14T22:20:00.000Z",
        "source": "default",
    }


def test_a_schedule_is_set_and_shown(chat: Service) -> None:
    answer = chat.put(SCHEDULE, {"cron": "*/5 * * * MON-fri"})
    assert answer.status_code == 200
    assert answer.json()["cron"] == "*/5 * * * mon-fri"
    assert answer.json()["interval_seconds"] is None
    assert answer.json()["source"] == "set"
    assert chat.get(SCHEDULE).json() == answer.json()
    answer = chat.put(SCHEDULE, {"interval_seconds": 60, "paused": True})
    assert (answer.json()["interval_seconds"], answer.json()["next_run_at"]) == (60.0, None)
    answer = chat.put(SCHEDULE, {})
    assert (answer.json()["source"], answer.json()["paused"]) == ("default", False)
    assert chat.get("/v1/jobs").json()["items"] == [
        {"deployment": "chat", "kind": "recalibrate", "schedule": answer.json(), "last_run": None}
    ]


@pytest.mark.parametrize(
    ("schedule", "complaint"),
    [
        ({"interval_seconds": 0.5}, "interval_seconds"),
        ({"interval_seconds": 1e9}, "interval_seconds"),
        ({"cron": "61 * * * *"}, "minute: got '61', expected 0 to 59"),
        ({"cron": "0 0 30 2 *"}, "expected a day that exists"),
        ({"cron": "* * * * *", "interval_seconds": 60}, "not both"),
        ({"every": 60}, "every"),
        ({"paused": "perhaps"}, "paused"),
    ],
)
def test_a_schedule_that_cannot_be_used_is_refused_with_the_reason(
    chat: Service, schedule: dict[str, object], complaint: str
) -> None:
    answer = chat.put(SCHEDULE, schedule)
    assert answer.status_code == 422
    assert complaint in answer.text
    assert chat.get(SCHEDULE).json()["source"] == "default"


def test_a_schedule_that_has_changed_since_it_was_read_is_not_overwritten(chat: Service) -> None:
    etag = chat.get(SCHEDULE).headers["ETag"]
    newer = chat.put(SCHEDULE, {"interval_seconds": 60}, headers={"If-Match": etag})
    assert newer.status_code == 200
    assert newer.headers["ETag"] != etag
    assert chat.put(SCHEDULE, {"interval_seconds": 90}, headers={"If-Match": etag}).status_code == 412
    current = {"If-Match": newer.headers["ETag"]}
    assert chat.put(SCHEDULE, {"interval_seconds": 90}, headers=current).status_code == 200


def test_a_run_is_queued_polled_and_found_again(service: Service) -> None:
    service.fill()
    answer = service.post(RECALIBRATE, {"dry_run": True})
    assert answer.status_code == 202
    run = answer.json()
    assert (run["state"], run["trigger"], run["dry_run"], run["deployment"]) == (
        "waiting",
        "manual",
        True,
        "chat",
    )
    assert answer.headers["Location"] == f"/v1/runs/{run['id']}"
    assert service.post(RECALIBRATE, {"dry_run": True}).json()["id"] == run["id"]
    assert service.get("/v1/runs?state=waiting").json()["items"] == [run]
    work_off(service)
    done = service.get(f"/v1/runs/{run['id']}").json()
    assert (done["state"], done["attempt"]) == ("done", 1)
    assert done["outcome"] in ("unchanged", "would_publish")
    assert done["duration_seconds"] >= 0.0
    assert done["rows"] > 0
    assert done["reasons"]
    evidence = service.get(f"/v1/deployments/chat/refreshes/{done['refresh']}").json()
    assert evidence["outcome"] == done["outcome"]
    assert service.get("/v1/jobs").json()["items"][0]["last_run"] == done
    assert service.get("/v1/runs?deployment=chat&state=failed").json() == {"items": [], "next_cursor": None}


def test_runs_are_listed_newest_first_in_pages(chat: Service) -> None:
    for dry_run in (False, True):
        chat.post(RECALIBRATE, {"dry_run": dry_run})
    first = chat.get("/v1/runs?limit=1").json()
    assert [item["dry_run"] for item in first["items"]] == [True]
    second = chat.get(f"/v1/runs?limit=1&cursor={first['next_cursor']}").json()
    assert [item["dry_run"] for item in second["items"]] == [False]
    assert second["next_cursor"] is None


def test_jobs_are_listed_by_name_in_pages(chat: Service) -> None:
    with chat.context.store.write() as connection:
        for name in ("b", "a", "Z"):
            deployments.register(connection, name, 7, "f", chat.clock.now())
    first = chat.get("/v1/jobs?limit=3").json()
    assert [item["deployment"] for item in first["items"]] == ["Z", "a", "b"]
    second = chat.get(f"/v1/jobs?limit=3&cursor={first['next_cursor']}").json()
    assert [item["deployment"] for item in second["items"]] == ["chat"]


def test_a_frozen_deployment_is_only_tried(chat: Service) -> None:
    with chat.context.store.write() as connection:
        known = deployments.get(connection, "chat")
        assert known is not None
        deployments.set_frozen(connection, known.id, True)
    assert chat.post(RECALIBRATE, {}).status_code == 409
    assert chat.post(RECALIBRATE, {"dry_run": True}).status_code == 202


def test_what_is_not_there_is_not_found(chat: Service) -> None:
    assert chat.get("/v1/runs/12345").status_code == 404
    assert chat.get("/v1/runs?deployment=nobody").status_code == 404
    assert chat.get("/v1/deployments/nobody/schedule").status_code == 404
    assert chat.put("/v1/deployments/nobody/schedule", {}).status_code == 404
    assert chat.post("/v1/deployments/nobody/recalibrate", {}).status_code == 404
    assert chat.get("/v1/runs/0").status_code == 422
    assert chat.get("/v1/runs?state=lost").status_code == 422


def test_viewers_look_and_change_nothing(chat: Service) -> None:
    assert chat.put(SCHEDULE, {}, role=Role.VIEWER).status_code == 403
    assert chat.post(RECALIBRATE, {}, role=Role.VIEWER).status_code == 403
    assert chat.get("/v1/runs", role=Role.VIEWER).json()["items"] == []
