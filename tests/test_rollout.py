"""Rollouts end to end: replay engines, sidecars, bus, collector, database, parameter store, controller."""

import threading

import numpy as np
import pytest

from calibrator.store import parameters, rollouts
from calibrator.store.errors import ConflictError
from serving_adapter.contract import ParameterDocument, decode_document
from serving_adapter.engines.replay.engine import replay_identity
from serving_adapter.parameter_stores.embedded import EmbeddedParameterStore
from tests.fleet import NAME, Fleet

# A tolerance that a few thousand rounds can tell.
RULES = {
    "mode": "canary",
    "share": 0.5,
    "shadow_rounds": 500,
    "canary_rounds": 1000,
    "acceptance_tolerance": 0.2,
    "step_time_tolerance": 0.2,
    "calibration_tolerance": 0.02,
}


@pytest.fixture(scope="module")
def parameter_server():
    store = EmbeddedParameterStore()
    yield store
    store.close()


@pytest.fixture
def fleet(tmp_path, parameter_server):
    import redis

    redis.Redis.from_url(parameter_server.url).flushall()
    with Fleet(tmp_path, parameter_server.url, ("pod-0", "pod-1")) as running:
        running.configure(**RULES)
        yield running


def document(version, temperature=1.0, offset=0.0, **fields):
    body = {
        "deployment": NAME,
        "fingerprint": replay_identity().fingerprint(),
        "version": version,
        "gamma": 7,
        "form": "affine",
        "temperatures": [temperature] * 7,
        "offsets": [offset] * 7,
        "created_at": "2026-11-29T10:00:00Z",
        "explore": 0.02,
    }
    return ParameterDocument(**body | fields)


def candidate(fleet, **options):
    return fleet.rollouts.start_document(
        fleet.deployment, fleet.publisher.seal(document(2, **options)), actor="ada", reason="try",
    )  # fmt: skip


def published(fleet, version=1, **options):
    fleet.publish(document(version, **options))
    fleet.serve_until(lambda: set(fleet.versions().values()) == {version})


def history(fleet, rollout):
    with fleet.store.read() as connection:
        return rollouts.history(connection, [rollout.id])[rollout.id]


def test_a_worse_candidate_ends_in_shadow_and_reaches_no_engine(fleet):
    published(fleet)
    rollout = candidate(fleet, offset=4.0)
    seen = set()
    fleet.serve_until(
        lambda: seen.update(fleet.versions().values()) or fleet.rollout(rollout.id).state != "running"
    )
    ended = fleet.rollout(rollout.id)
    assert (ended.stage, ended.state) == ("aborted", "aborted")
    assert "calibration is worse" in ended.reason
    assert ended.evidence["shadow"]["verdict"] == "worse"
    assert seen == {1}
    assert fleet.state_of(2) == "aborted"


def test_a_worse_candidate_in_canary_is_aborted_and_its_engine_goes_back(fleet):
    published(fleet)
    rollout = candidate(fleet, temperature=0.25)
    fleet.rollouts.promote(rollout.id, actor="ada", stage="canary")
    fleet.serve_until(lambda: sorted(fleet.versions().values()) == [1, 2])
    fleet.serve_until(lambda: fleet.rollout(rollout.id).state == "aborted")
    fleet.serve_until(lambda: set(fleet.versions().values()) == {3})
    again = decode_document(fleet.parameter_store.read(NAME))
    assert (again.version, again.previous, again.temperatures) == (3, 2, [1.0] * 7)
    assert fleet.parameter_store.candidate(NAME) is None
    assert fleet.state_of(2) == "aborted"
    measures = {m["measure"]: m for m in fleet.rollout(rollout.id).evidence["canary"]}
    assert measures["calibration"]["verdict"] == "worse"
    assert measures["calibration"]["n_canary"] > 500


def test_a_candidate_before_any_version_goes_back_to_the_identity(fleet):
    first = fleet.publisher.seal(document(1, temperature=0.25))
    rollout = fleet.rollouts.start_document(
        fleet.deployment, first, actor="ada", reason="try", stage="canary"
    )
    assert rollout.control_version == 0
    fleet.serve_until(lambda: sorted(fleet.versions().values()) == [0, 1])
    fleet.serve_until(lambda: fleet.rollout(rollout.id).state == "aborted")
    fleet.serve_until(lambda: set(fleet.versions().values()) == {2})
    again = decode_document(fleet.parameter_store.read(NAME))
    assert (again.form, again.temperatures, again.offsets) == ("temperature", [1.0] * 7, [0.0] * 7)


def test_a_good_candidate_goes_through_canary_to_everybody(fleet):
    published(fleet, offset=4.0)
    rollout = candidate(fleet)
    stages = []
    fleet.serve_until(lambda: stages.append(fleet.rollout(rollout.id).stage) or stages[-1] == "all")
    fleet.serve_until(lambda: set(fleet.versions().values()) == {2})
    ended = fleet.rollout(rollout.id)
    assert (ended.state, fleet.state_of(2)) == ("done", "published")
    assert "canary" in stages
    assert ended.evidence["shadow"]["verdict"] == "better"
    assert fleet.parameter_store.candidate(NAME) is None
    assert [line.stage for line in history(fleet, rollout)] == ["shadow", "canary", "all"]
    assert {line.actor for line in history(fleet, rollout)[1:]} == {"controller"}


def test_an_equal_candidate_is_not_aborted(fleet):
    published(fleet)
    rollout = candidate(fleet)
    fleet.serve_until(lambda: fleet.rollout(rollout.id).state != "running")
    assert fleet.rollout(rollout.id).stage == "all"
    assert "no difference that matters" in fleet.rollout(rollout.id).reason


def test_another_controller_goes_on_where_the_first_one_stopped(fleet):
    published(fleet, offset=4.0)
    rollout = candidate(fleet)
    fleet.serve_until(lambda: fleet.rollout(rollout.id).stage == "canary")
    second = fleet.another_controller()
    fleet.serve_until(lambda: fleet.rollout(rollout.id).state == "done", second)
    fleet.serve_until(lambda: set(fleet.versions().values()) == {2}, second)


def test_a_crash_between_decision_and_parameter_store_is_made_up_for(fleet):
    published(fleet)
    rollout = candidate(fleet, temperature=0.25)
    fleet.rollouts.promote(rollout.id, actor="ada", stage="canary")
    fleet.serve_until(lambda: sorted(fleet.versions().values()) == [1, 2])
    with fleet.store.write() as connection:  # as an abort writes it, and then nothing more
        rollouts.move(connection, fleet.rollout(rollout.id), "aborted", "aborted", 0.0, "worse", "controller")
        parameters.set_state(connection, fleet.deployment.id, 2, parameters.ABORTED)
        restored = fleet.publisher.seal(document(3, previous=2))
        parameters.append(connection, fleet.deployment.id, restored, 0.0, "published")
    fleet.publisher.reconcile(NAME)
    fleet.serve_until(lambda: set(fleet.versions().values()) == {3}, fleet.another_controller())
    assert fleet.parameter_store.candidate(NAME) is None


def test_of_promote_and_abort_at_once_one_wins(fleet):
    published(fleet)
    rollout = candidate(fleet)
    fleet.rollouts.promote(rollout.id, actor="ada", stage="canary")
    read = fleet.rollout(rollout.id)
    together, outcomes = threading.Barrier(2), []

    def attempt(what):
        together.wait()
        try:
            outcomes.append(what().stage)
        except ConflictError:
            outcomes.append("conflict")

    threads = [
        threading.Thread(target=attempt, args=(what,))
        for what in (
            lambda: fleet.rollouts.advance(read, "all", actor="ada", reason="go"),
            lambda: fleet.rollouts.give_up(read, actor="bob", reason="stop"),
        )
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) in (["aborted", "conflict"], ["all", "conflict"])
    assert fleet.rollout(rollout.id).stage in outcomes


def test_a_rollback_reaches_every_engine_and_ends_the_rollout(fleet):
    published(fleet, offset=0.5)
    rollout = candidate(fleet)
    fleet.rollouts.promote(rollout.id, actor="ada", stage="canary")
    fleet.serve_until(lambda: sorted(fleet.versions().values()) == [1, 2])
    back = fleet.rollouts.rollback(NAME, 1, actor="ada", reason="incident 7")
    assert (back.version, back.offsets) == (3, [0.5] * 7)
    fleet.serve_until(lambda: set(fleet.versions().values()) == {3})
    ended = fleet.rollout(rollout.id)
    assert ended.state == "aborted"
    assert "incident 7" in ended.reason
    assert np.array_equal(fleet.engines["pod-0"].parameters.offsets, [0.5] * 7)


def test_a_refresh_of_a_canary_deployment_starts_a_rollout_and_not_a_second_one(fleet):
    fleet.configure(**RULES)
    fleet.serve_until(lambda: fleet.engines["pod-0"].ledger.rounds > 4000)
    outcome = fleet.refresher.refresh(NAME)
    assert outcome.outcome == "rolled_out"
    assert fleet.parameter_store.read(NAME) is None
    with fleet.store.read() as connection:
        running = rollouts.running(connection, fleet.deployment.id)
    assert (running.version, running.stage, running.control_version) == (1, "shadow", 0)
    again = fleet.refresher.refresh(NAME)
    assert again.outcome == "unchanged"
    assert any("is running" in reason for reason in again.reasons)
