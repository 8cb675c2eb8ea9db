"""The overview of deployments, and one in full: status, worst position, versions, value."""

import numpy as np
import pytest
from sqlalchemy import event

from calibrator.core.report import report_from_windows
from calibrator.service.web.models.deployments import DeploymentDetail
from calibrator.store import deployments, episodes
from calibrator.store.episodes import Episode
from serving_adapter.parameter_stores.embedded import EmbeddedParameterStore
from tests.ingest_support import make_rounds
from tests.reading_rows import raw_sums, traffic
from tests.recorded import recorded
from tests.web_support import open_service

pytest_plugins = ["tests.reading_fixtures"]


@pytest.fixture(scope="module")
def parameter_server():
    store = EmbeddedParameterStore()
    yield store
    store.close()


@pytest.fixture
def service(tmp_path, parameter_server):
    with open_service(f"sqlite:///{tmp_path}/store.db", parameter_server, tmp_path) as opened:
        yield opened


def status(service, name="chat"):
    return service.get(f"/v1/deployments/{name}").json()["status"]


def test_the_list_is_by_name_with_what_each_is_at_a_glance(filled):
    items = filled.get("/v1/deployments").json()["items"]
    assert [item["name"] for item in items] == ["chat", "other", "quiet"]
    chat, _, quiet = items
    assert (chat["rounds"], chat["version"], chat["form"]) == (8000, 1, "affine")
    assert chat["replicas"] == {"live": 1, "refusing": 0, "versions": {"1": 1}}
    assert chat["status"] == "ok"
    assert (quiet["status"], quiet["worst"], quiet["version"], quiet["last_seen_at"]) == (
        "no_data",
        None,
        None,
        None,
    )
    assert chat["schedule"]["source"] == "default"
    assert chat["schedule"]["interval_seconds"] == 300.0
    assert chat["rollout"] is None


def test_the_worst_position_is_the_one_that_exceeds_its_noise_the_most(filled):
    worst = filled.get("/v1/deployments/chat").json()["worst"]
    reports = report_from_windows(raw_sums(traffic()))  # the replicas sent rows of version 0
    expected = max(reports, key=lambda r: r.ece - r.noise_floor)
    assert worst["position"] == expected.position
    for ours, theirs in (("ece", "ece"), ("gap", "gap"), ("noise_floor", "noise_floor"), ("n_eff", "n_eff")):
        assert worst[ours] == pytest.approx(getattr(expected, theirs), abs=1e-6)
    assert worst["ece_low"] <= worst["ece"] <= worst["ece_high"]


def test_value_is_that_of_the_newest_refresh(filled):
    value = filled.get("/v1/deployments/chat").json()["value"]
    rows = filled.get("/v1/deployments/chat/value").json()
    (row,) = [r for r in rows["values"] if r["policy"] == "in force"]
    assert value["baseline"] == "identity"
    assert value["tokens_per_second"] == row["tokens_per_second"]["estimate"]
    assert value["relative"] == pytest.approx(row["against_identity"]["estimate"] - 1)
    assert value["low"] <= value["relative"] <= value["high"]
    assert {"verify all", "verify none", "identity", "in force", "candidate"} <= {
        r["policy"] for r in rows["values"]
    }


def test_pages_follow_each_other(filled):
    first = filled.get("/v1/deployments", params={"limit": 2}).json()
    second = filled.get("/v1/deployments", params={"limit": 2, "cursor": first["next_cursor"]}).json()
    assert [item["name"] for item in first["items"] + second["items"]] == ["chat", "other", "quiet"]
    assert second["next_cursor"] is None


def test_one_in_full_says_settings_segments_and_buckets(filled):
    found = filled.get("/v1/deployments/chat").json()
    assert found["segments"] == ["chat", "code", "default"]
    assert set(found["samplings"]) <= {"greedy", "low", "mid", "high"}
    assert found["settings"] == {}
    assert DeploymentDetail.model_validate(found).model_dump(mode="json") == found


def test_an_etag_holds_until_an_operator_changes_something(service):
    service.ingest(recorded("typical").take(slice(0, 500)))
    before = service.get("/v1/deployments/chat").headers["etag"]
    service.ingest(recorded("typical").take(slice(500, 1000)))
    assert service.get("/v1/deployments/chat").headers["etag"] == before
    with service.context.store.write() as connection:
        deployments.set_frozen(connection, deployments.get(connection, "chat").id, True)
    assert service.get("/v1/deployments/chat").headers["etag"] != before


def test_status_says_what_stands_in_the_way(service):
    service.ingest(make_rounds(20, gamma=7), "chat")
    assert status(service) == "insufficient"
    service.ingest(recorded("typical").take(slice(0, 2000)))
    assert status(service) == "ok"
    now = service.clock.now()
    with service.context.store.write() as connection:
        own = deployments.get(connection, "chat")
        drift = Episode(
            kind="calibration", segment=None, position=2, load_regime=None, context_bucket=None,
            direction="below", started_at=now - 60, alarmed_at=now, ended_at=None, gap=0.1, summary="s",
            remedy="r", version=None,
        )  # fmt: skip
        episode = episodes.start(connection, own.id, drift)
    found = service.get("/v1/deployments/chat").json()
    assert (found["status"], found["drift"]) == ("drifting", {"open": 1, "kinds": ["calibration"]})
    listed = service.get("/v1/deployments/chat/drift", params={"state": "open", "kind": "calibration"}).json()
    assert [(e["id"], e["position"], e["direction"], e["ended_at"]) for e in listed["items"]] == [
        (episode, 2, "below", None)
    ]
    assert service.get("/v1/deployments/chat/drift", params={"state": "closed"}).json()["items"] == []
    assert service.get("/v1/deployments/chat/drift", params={"kind": "weather"}).status_code == 422
    service.clock.advance(700)
    assert status(service) == "stale"
    with service.context.store.write() as connection:
        deployments.set_frozen(connection, own.id, True)
    assert status(service) == "frozen"


def test_a_hundred_deployments_take_as_many_queries_as_two(service):
    def queries():
        statements = []
        listener = lambda *args: statements.append(args[2])  # noqa: E731
        event.listen(service.context.store.engine, "before_cursor_execute", listener)
        service.get("/v1/deployments", params={"limit": 500})
        event.remove(service.context.store.engine, "before_cursor_execute", listener)
        return len(statements)

    for name in ("a", "b"):
        service.ingest(make_rounds(5, gamma=7), name)
    queries()  # the token is looked up once
    few = queries()
    with service.context.store.write() as connection:
        for i in range(98):
            deployments.register(connection, f"d-{i}", 7, "f", 0.0)
    assert queries() == few


def test_ten_thousand_segment_names_are_sixty_four_segments(service):
    count = 10_000
    names = [f"user-{i}" for i in range(count)]
    service.ingest(make_rounds(count, gamma=7, segment=np.arange(count), segments=names), spread_seconds=10.0)
    found = service.get("/v1/deployments/chat").json()
    assert len(found["segments"]) == deployments.MAX_SEGMENTS
    assert "other" in found["segments"]
    page = service.get("/metrics").text
    assert "user-" not in page


def test_an_unreachable_parameter_store_leaves_the_list_readable(tmp_path):
    parameter_store = EmbeddedParameterStore()
    with open_service(f"sqlite:///{tmp_path}/store.db", parameter_store, tmp_path) as service:
        service.ingest(recorded("typical").take(slice(0, 500)))
        parameter_store.close()
        answer = service.get("/v1/deployments")
        assert answer.status_code == 200
        assert answer.json()["items"][0]["replicas"] is None
        assert service.get("/v1/deployments/chat/replicas").status_code == 503
        ready = service.client.get("/readyz")
        assert ready.status_code == 503
        assert ready.json()["parameter_store"] == "unreachable"
        assert "dspark_calibrator_parameter_store_up 0.0" in service.get("/metrics").text


@pytest.mark.parametrize(
    "what",
    [
        "",
        "/exploration",
        "/drift",
        "/curve",
        "/ledger",
        "/accounting",
        "/value",
        "/versions",
        "/versions/1",
        "/versions/1/diff",
        "/replicas",
        "/refreshes",
        "/refreshes/1",
    ],
)
def test_of_an_unknown_deployment_there_is_nothing(filled, what):
    assert filled.get(f"/v1/deployments/nobody{what}").status_code == 404
    assert filled.get(f"/v1/deployments/a%00b{what}").status_code == 404
