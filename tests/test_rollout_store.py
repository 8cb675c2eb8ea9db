"""Rollouts in SQL: one at a time, moved by compare-and-set, with their sums and their history."""

import numpy as np
import pytest

from calibrator.core.arms import ArmSums
from calibrator.store import Store, arm_sums, deployments, parameters, rollouts
from calibrator.store.errors import ConflictError
from calibrator.store.retention import DAY, Retention, apply
from calibrator.store.rollouts import ABORTED, ALL, CANARY, DONE, RUNNING, SHADOW
from serving_adapter.contract import ParameterDocument

NOW = 1_700_000_000.0


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.servers)])
def store(request, tmp_path):
    url = (
        f"sqlite:///{tmp_path}/store.db"
        if request.param == "sqlite"
        else request.getfixturevalue("postgres_url")
    )
    opened = Store(url)
    opened.migrate()
    yield opened
    opened.close()


@pytest.fixture
def chat(store):
    with store.write() as connection:
        return deployments.register(connection, "chat", 1, "f", NOW).id


def start(store, chat, version=2, stage=SHADOW):
    with store.write() as connection:
        return rollouts.start(
            connection, chat, version=version, control_version=1, stage=stage, share=0.1,
            rules={"mode": "canary"}, at=NOW, reason="r", actor="ada",
        )  # fmt: skip


def move(store, rollout, stage, state=RUNNING):
    with store.write() as connection:
        rollouts.move(connection, rollout, stage, state, NOW + 1, f"to {stage}", "controller")


def read(store, rollout):
    with store.read() as connection:
        return rollouts.get(connection, rollout.id)


def test_one_rollout_of_a_deployment_runs_at_a_time(store, chat):
    first = start(store, chat)
    with pytest.raises(ConflictError, match="running already"):
        start(store, chat, version=3)
    move(store, first, ABORTED, ABORTED)
    assert start(store, chat, version=3).id > first.id


def test_a_move_from_a_stage_that_is_over_is_a_conflict_and_changes_nothing(store, chat):
    seen = start(store, chat)
    move(store, seen, CANARY)
    with pytest.raises(ConflictError, match="not in stage shadow"):
        move(store, seen, ABORTED, ABORTED)
    now = read(store, seen)
    assert (now.stage, now.state, now.finished_at) == (CANARY, RUNNING, None)
    move(store, now, ALL, DONE)
    ended = read(store, seen)
    assert (ended.stage, ended.state, ended.finished_at, ended.reason) == (ALL, DONE, NOW + 1, "to all")
    with store.read() as connection:
        lines = rollouts.history(connection, [seen.id])[seen.id]
    assert [(line.stage, line.actor) for line in lines] == [
        (SHADOW, "ada"), (CANARY, "controller"), (ALL, "controller"),
    ]  # fmt: skip


def test_lists_go_newest_first_and_on_behind_a_rollout(store, chat):
    made = []
    for version in (2, 3, 4):
        made.append(start(store, chat, version))
        move(store, made[-1], ABORTED, ABORTED)
    with store.read() as connection:
        assert [r.version for r in rollouts.recent(connection, chat, limit=2)] == [4, 3]
        assert [r.version for r in rollouts.recent(connection, before=made[1].id)] == [2]
        assert rollouts.recent(connection, chat, state=RUNNING) == []
        assert rollouts.running(connection, chat) is None


def sums(seed):
    values = np.random.default_rng(seed).integers(-(2**40), 2**40, ArmSums.zeros().values.shape)
    values[seed] = 0
    return ArmSums(values)


def test_sums_add_up_exactly(store, chat):
    rollout = start(store, chat)
    for part in (1, 2):
        with store.write() as connection:
            arm_sums.add(connection, rollout.id, {"canary": sums(part), "control": sums(part + 2)})
    with store.read() as connection:
        arms = arm_sums.load(connection, rollout.id)
    assert arms == {"canary": sums(1) + sums(2), "control": sums(3) + sums(4)}


def test_sums_of_ended_rollouts_are_forgotten(store, chat):
    rollout = start(store, chat)
    with store.write() as connection:
        arm_sums.add(connection, rollout.id, {"shadow": sums(1)})
        assert arm_sums.forget(connection, chat) == 0
    move(store, rollout, ABORTED, ABORTED)
    with store.write() as connection:
        assert arm_sums.forget(connection, chat) > 0
    with store.read() as connection:
        assert arm_sums.load(connection, rollout.id) == {}


def test_candidates_are_not_in_force(store, chat):
    with store.write() as connection:
        for version, state in enumerate(("published", "shadow", "canary", "aborted"), start=1):
            document = ParameterDocument(
                deployment="chat", fingerprint="f", version=version, gamma=1, form="temperature",
                temperatures=[1.0], offsets=[0.0], created_at="2026-11-29T10:00:00Z",
            )  # fmt: skip
            parameters.append(connection, chat, document, NOW, state)
    with store.write() as connection:
        assert parameters.in_force(connection, chat).document.version == 1
        assert parameters.latest(connection, chat).document.version == 4
        assert len(parameters.history(connection, chat, candidates=False)) == 1
        parameters.set_state(connection, chat, 3, "published")
        assert parameters.in_force(connection, chat).document.version == 3


def test_retention_deletes_rollouts_that_ended_long_ago_with_all_that_hangs_on_them(store, chat):
    old = start(store, chat, version=2)
    with store.write() as connection:
        arm_sums.add(connection, old.id, {"shadow": sums(1)})
    move(store, old, ABORTED, ABORTED)
    under_way = start(store, chat, version=3)
    now = NOW + 401 * DAY
    deleted = apply(store, NOW + 100 * DAY)
    assert deleted["rollouts"] == 0
    assert read(store, old) is not None
    deleted = apply(store, now)
    assert deleted["rollouts"] == 1
    with store.read() as connection:
        assert rollouts.recent(connection) == [under_way]
        assert rollouts.history(connection, [old.id]) == {old.id: []}
        assert arm_sums.load(connection, old.id) == {}
        assert len(rollouts.history(connection, [under_way.id])[under_way.id]) == 1
    assert apply(store, now, Retention(rollout_days=1e-3))["rollouts"] == 0  # it runs still
