"""Versions, refreshes, replicas and row accounts over the API."""

import pytest

from calibrator.store import deployments, parameters, rollouts
from serving_adapter.canary import takes_candidate
from serving_adapter.contract import ParameterDocument, decode_document, seal
from serving_adapter.parameter_stores.embedded import EmbeddedParameterStore
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


def test_a_version_is_the_document_that_replicas_read(filled):
    served = decode_document(filled.context.parameter_store.read("chat"))
    found = filled.get("/v1/deployments/chat/versions/1").json()
    assert (found["version"], found["state"]) == (1, "published")
    assert found["document"]["temperatures"] == served.temperatures
    assert found["document"]["digest"] == served.digest
    (item,) = filled.get("/v1/deployments/chat/versions").json()["items"]
    assert item["temperatures"] == served.temperatures
    assert item["ece_after"] == served.evidence.ece_after
    assert item["noise_floor"] == served.evidence.noise_floor
    assert item["n_eff"] == served.evidence.n_eff
    assert item["reasons"]


def test_a_version_that_the_caller_has_is_not_sent_again(filled):
    first = filled.get("/v1/deployments/chat/versions/1")
    again = filled.get("/v1/deployments/chat/versions/1", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("version", ["2", "4294967295"])
def test_a_version_that_was_never_made_is_not_found(filled, version):
    assert filled.get(f"/v1/deployments/chat/versions/{version}").status_code == 404
    assert filled.get("/v1/deployments/chat/versions/1/diff", params={"against": version}).status_code == 404


@pytest.mark.parametrize("version", ["0", "-1", "one", "99999999999999999999"])
def test_what_is_no_version_is_refused(filled, version):
    assert filled.get(f"/v1/deployments/chat/versions/{version}").status_code == 422


def test_a_diff_names_every_value_that_changed(service):
    with service.context.store.write() as connection:
        own = deployments.register(connection, "chat", 7, "f", 0.0)
        for version in (1, 2, 3):
            made = ParameterDocument(
                deployment="chat", fingerprint="f", version=version, previous=version - 1, gamma=7,
                form="temperature", temperatures=[1.0] * 6 + [1.0 + 0.1 * version], offsets=[0.0] * 7,
                created_at="2026-11-29T10:00:00Z",
            )  # fmt: skip
            parameters.append(connection, own.id, seal(made), 10.0 * version, "published")
    found = service.get("/v1/deployments/chat/versions/3/diff").json()
    changed = {c["path"]: (c["from"], c["to"]) for c in found["changes"]}
    assert found["against"] == 2
    assert changed["/temperatures/6"] == (pytest.approx(1.2), pytest.approx(1.3))
    assert "/temperatures/0" not in changed
    assert not {"/digest", "/signature"} & set(changed)
    same = service.get("/v1/deployments/chat/versions/3/diff", params={"against": 3}).json()
    assert same["changes"] == []
    pages = service.get("/v1/deployments/chat/versions", params={"limit": 2}).json()
    rest = service.get("/v1/deployments/chat/versions", params={"limit": 2, "cursor": pages["next_cursor"]})
    assert [v["version"] for v in pages["items"] + rest.json()["items"]] == [3, 2, 1]


def test_refreshes_are_listed_and_one_has_its_evidence(filled):
    (item,) = filled.get("/v1/deployments/chat/refreshes").json()["items"]
    assert (item["outcome"], item["version"]) == ("published", 1)
    assert item["reasons"]
    one = filled.get(f"/v1/deployments/chat/refreshes/{item['id']}").json()
    assert one["evidence"]["rows"] == 6000
    assert len(one["evidence"]["before"]) == 7
    assert filled.get("/v1/deployments/other/refreshes").json()["items"] == []
    # A refresh of another deployment is none of this one's.
    assert filled.get(f"/v1/deployments/other/refreshes/{item['id']}").status_code == 404


def test_without_a_refresh_there_is_no_value_and_it_says_so(filled):
    found = filled.get("/v1/deployments/other/value").json()
    assert (found["refresh"], found["at"], found["values"]) == (None, None, [])
    assert found["reasons"] == ["no refresh has had rows yet"]


def test_rows_are_accounted_for(filled):
    found = filled.get("/v1/deployments/chat/accounting").json()
    rounds = found["rounds"]
    assert (rounds["emitted"], rounds["folded"], rounds["in_flight"], rounds["duplicates"]) == (
        8000,
        8000,
        0,
        0,
    )
    assert (
        rounds["emitted"] == rounds["folded"] + rounds["lost"] + rounds["dead_lettered"] + rounds["in_flight"]
    )
    assert [(b["replica"], b["boot"], b["folded"]) for b in found["boots"]] == [("pod-0", "b0", 8000)]
    assert found["steps"]["folded"] == 600


def test_replicas_are_those_that_report_or_send(service):
    service.ingest(recorded("typical").take(slice(0, 100)), replica="pod-1", boot="old")
    service.clock.advance(5)
    service.ingest(recorded("typical").take(slice(100, 200)), replica="pod-1", boot="new")
    service.report(replica="pod-0", applied=2, refused=3, reason="digest: wrong")
    found = {r["replica"]: r for r in service.get("/v1/deployments/chat/replicas").json()["items"]}
    assert list(found) == ["pod-0", "pod-1"]
    told, seen = found["pod-0"], found["pod-1"]
    assert (told["version"], told["refused_version"], told["reason"]) == (2, 3, "digest: wrong")
    assert (told["boot"], told["last_seen_at"]) == (None, None)
    assert (seen["version"], seen["boot"], seen["forms"]) == (None, "new", [])
    service.clock.advance(7200)
    assert [r["replica"] for r in service.get("/v1/deployments/chat/replicas").json()["items"]] == ["pod-0"]


def test_replicas_of_a_canary_are_on_one_side_or_the_other(service):
    names = [f"pod-{i}" for i in range(12)]
    with service.context.store.write() as connection:
        own = deployments.register(connection, "chat", 7, "f", 0.0)
        rollouts.start(
            connection, own.id, version=2, control_version=1, stage="canary", share=0.4, rules={}, at=1.0,
            reason="r", actor="a",
        )  # fmt: skip
    for name in names:
        service.report(replica=name)
    items = service.get("/v1/deployments/chat/replicas", params={"limit": 5}).json()
    rest = service.get("/v1/deployments/chat/replicas", params={"cursor": items["next_cursor"]}).json()
    arms = {r["replica"]: r["arm"] for r in items["items"] + rest["items"]}
    assert arms == {n: "canary" if takes_candidate("chat", n, 0.4) else "control" for n in names}
    assert set(arms.values()) == {"canary", "control"}
    summary = service.get("/v1/deployments/chat").json()
    assert summary["rollout"]["stage"] == "canary"
