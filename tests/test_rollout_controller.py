"""The controller, look by look: rows go in through the pipeline, replicas are what reports say."""

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest

from calibrator.service.publisher import Publisher
from calibrator.service.rollout.controller import RolloutController
from calibrator.service.rollout.operations import Rollouts
from calibrator.store import Store, arm_sums, deployments, leases, parameters, rollouts
from calibrator.store.deployments import Deployment
from calibrator.store.errors import ConflictError
from calibrator.store.rollouts import Rollout
from collectors.options import PipelineOptions
from collectors.pipeline import IngestPipeline
from serving_adapter.canary import place
from serving_adapter.clock import ManualClock
from serving_adapter.contract import (
    ContractError,
    ParameterDocument,
    Rounds,
    Steps,
    VerifyBatch,
    decode_document,
)
from serving_adapter.contract.events import CONTENT_TYPE_HEADER, CONTENT_TYPE_MSGPACK, encode_msgpack
from serving_adapter.parameter_stores.embedded import EmbeddedParameterStore
from serving_adapter.ports import Message, ReplicaReport
from tests.recorded import recorded

RULES = {"mode": "canary", "shadow_rounds": 500, "canary_rounds": 1000, "max_seconds": 1000.0}
EXPIRES = 3600.0


class NoDeadLetters:
    def publish(self, messages: object) -> int:
        raise AssertionError(f"dead letters: {messages}")

    def close(self) -> None: ...


def document(version: int, offset: float = 0.0, **fields: object) -> ParameterDocument:
    body = {
        "deployment": "chat", "fingerprint": "f", "version": version, "gamma": 7, "form": "affine",
        "temperatures": [1.0] * 7, "offsets": [offset] * 7, "created_at": "2026-11-29T10:00:00Z",
    }  # fmt: skip
    return ParameterDocument(**{**body, **fields})


@dataclasses.dataclass
class Place:
    """One deployment with version 1 in force."""

    store: Store
    parameter_store: EmbeddedParameterStore
    publisher: Publisher
    clock: ManualClock
    rollouts: Rollouts
    controller: RolloutController
    offset: int = 0
    rows: int = 0
    steps: int = 0
    messages: list[Message] = dataclasses.field(default_factory=list)

    @property
    def deployment(self) -> Deployment:
        with self.store.read() as connection:
            found = deployments.get(connection, "chat")
        assert found is not None
        return found

    def start(self, offset: float = 0.0, **options: object) -> Rollout:
        sealed = self.publisher.seal(document(2, offset))
        return self.rollouts.start_document(self.deployment, sealed, actor="ada", reason="try", **options)

    def look(self) -> None:
        self.controller.step(self.deployment)

    def now(self, rollout: Rollout) -> Rollout:
        with self.store.read() as connection:
            found = rollouts.get(connection, rollout.id)
        assert found is not None
        return found

    def report(self, replica: str, applied: int = 1, **fields: object) -> None:
        self.parameter_store.report(
            "chat", ReplicaReport(replica, applied=applied, reported_at=self.clock.now(), **fields), EXPIRES
        )

    def ingest(
        self, version: int, rows: int = 2000, first: int = 0, seconds: float | None = None, at: float = 0.0
    ) -> None:
        """Fold recorded rounds as served under a version, with a step of 8 requests for every 8 of them."""
        chosen = recorded("typical").take(slice(first, first + rows))
        chosen = dataclasses.replace(chosen, version=np.full(rows, version, dtype=np.uint32))
        for start in range(0, rows, 500):
            part = chosen.take(slice(start, start + 500))
            steps = Steps.empty() if seconds is None else Steps.build(
                step_seconds=seconds * np.random.default_rng(self.rows).normal(1.0, 0.02, 60),
                batch_tokens=np.full(60, 64), requests=np.full(60, 8),
            )  # fmt: skip
            self.fold(part, steps, at)

    def fold(self, part: Rounds, steps: Steps, at: float) -> None:
        batch = VerifyBatch(
            deployment="chat", fingerprint="f", replica="pod-0", boot="b0", sequence=self.rows, lost=0,
            emitted_at=int((self.clock.now() + at) * 1e9), rounds=part, steps=steps, gamma=7,
            steps_sequence=self.steps,
        )  # fmt: skip
        headers = ((CONTENT_TYPE_HEADER, CONTENT_TYPE_MSGPACK.encode()),)
        message = Message("t", 0, self.offset, b"pod-0", encode_msgpack(batch), headers)
        self.offset, self.rows, self.steps = self.offset + 1, self.rows + len(part), self.steps + len(steps)
        self.messages.append(message)
        IngestPipeline(self.store, NoDeadLetters(), self.clock, PipelineOptions()).ingest([message])


@pytest.fixture(scope="module")
def parameter_server() -> Iterator[EmbeddedParameterStore]:
    store = EmbeddedParameterStore()
    yield store
    store.close()


@pytest.fixture
def chat(tmp_path, parameter_server: EmbeddedParameterStore) -> Iterator[Place]:
    import redis

    redis.Redis.from_url(parameter_server.url).flushall()
    store = Store(f"sqlite:///{tmp_path / 'store.db'}")
    store.migrate()
    clock = ManualClock()
    publisher = Publisher(store, parameter_server, clock)
    parts = (store, parameter_server, publisher, clock)
    first = publisher.seal(document(1))
    with store.write() as connection:
        known = deployments.register(connection, "chat", 7, "f", clock.now())
        deployments.set_settings(connection, known.id, {"rollout": RULES})
        parameters.append(connection, known.id, first, clock.now(), "published")
    assert publisher.put_in_force(first)
    yield Place(*parts, Rollouts(*parts), RolloutController(*parts))
    store.close()


def arms(chat: Place, rollout: Rollout) -> dict[str, float]:
    with chat.store.read() as connection:
        return {arm: sums.total("rounds") for arm, sums in arm_sums.load(connection, rollout.id).items()}


def test_in_shadow_rows_of_every_version_are_scored_from_its_beginning_on(chat: Place) -> None:
    chat.ingest(1, 500)
    rollout = chat.start(stage="shadow")
    chat.ingest(1, 500, at=-5.0)
    assert arms(chat, rollout) == {}
    chat.ingest(1, 500)
    chat.ingest(7, 500)
    assert arms(chat, rollout) == {"shadow": 1000}


def test_in_canary_rows_count_by_version_and_each_once(chat: Place) -> None:
    rollout = chat.start(stage="canary")
    for version in (1, 2, 9, 2):
        chat.ingest(version, 500, seconds=0.1)
    assert arms(chat, rollout) == {"canary": 1000, "control": 500}
    with chat.store.read() as connection:
        before = arm_sums.load(connection, rollout.id)
    assert before["canary"].total("steps") == 120
    again = [dataclasses.replace(m, partition=1) for m in chat.messages]  # delivered twice
    IngestPipeline(chat.store, NoDeadLetters(), chat.clock, PipelineOptions()).ingest(again)
    with chat.store.read() as connection:
        assert arm_sums.load(connection, rollout.id) == before


def test_steps_of_a_message_with_two_versions_count_for_neither(chat: Place) -> None:
    rollout = chat.start(stage="canary")
    mixed = recorded("typical").take(slice(0, 100))
    versions = np.repeat(np.array([1, 2], dtype=np.uint32), 50)
    steps = Steps.build(step_seconds=[0.1] * 5, batch_tokens=[64] * 5, requests=[8] * 5)
    chat.fold(dataclasses.replace(mixed, version=versions), steps, 0.0)
    with chat.store.read() as connection:
        found = arm_sums.load(connection, rollout.id)
    assert {arm: (sums.total("rounds"), sums.total("steps")) for arm, sums in found.items()} == {
        "canary": (50, 0), "control": (50, 0),
    }  # fmt: skip


def test_what_takes_too_long_is_aborted_as_undecided(chat: Place) -> None:
    rollout = chat.start()
    chat.look()
    assert chat.now(rollout).state == "running"
    chat.clock.advance(1001.0)
    chat.look()
    ended = chat.now(rollout)
    assert ended.state == "aborted"
    assert ended.reason == "undecided after 1000 s: 0 of 500 rounds"
    assert decode_document(chat.parameter_store.read("chat")).version == 1  # nobody ran it


def test_with_one_live_replica_the_shadow_alone_decides_and_says_so(chat: Place) -> None:
    chat.report("pod-0")
    rollout = chat.start()
    chat.ingest(1)
    chat.look()
    ended = chat.now(rollout)
    assert (ended.stage, ended.state) == ("all", "done")
    assert "one live replica, so no canary is possible" in ended.reason
    assert decode_document(chat.parameter_store.read("chat")).version == 2


def test_without_live_replicas_the_shadow_waits(chat: Place) -> None:
    rollout = chat.start()
    chat.ingest(1)
    chat.look()
    waiting = chat.now(rollout)
    assert waiting.stage == "shadow"
    assert waiting.evidence["decision"] == {"action": "wait", "reason": "no replica has reported"}


def test_a_canary_without_a_second_replica_goes_back_to_shadow(chat: Place) -> None:
    chat.report("pod-0")
    rollout = chat.start(stage="canary")
    chat.look()
    assert chat.now(rollout).stage == "canary"
    chat.clock.advance(121.0)
    chat.look()
    assert chat.now(rollout).stage == "shadow"
    assert chat.parameter_store.candidate("chat") is None


def test_a_share_that_leaves_a_side_empty_is_moved_and_noted(chat: Place) -> None:
    chat.report("pod-0")
    chat.report("pod-1")
    rollout = chat.start(stage="canary", share=0.001)
    chat.look()
    now = chat.now(rollout)
    low, high = sorted((place("chat", "pod-0"), place("chat", "pod-1")))
    assert low <= now.share < high
    offered = chat.parameter_store.candidate("chat")
    assert offered.share == now.share
    assert decode_document(offered.document).version == 2
    assert now.evidence["replicas"] == {"canary": 1, "control": 1, "applied": 0}
    with chat.store.read() as connection:
        lines = rollouts.history(connection, [rollout.id])[rollout.id]
    assert lines[-1].reason == (
        "0.001 of the replicas was asked for, which is none or all of the 2 live ones: 1 of them, the "
        "nearest possible, takes part"
    )
    assert now.evidence["asked_share"] == 0.001
    assert now.evidence["curve"] is False
    chat.look()
    assert chat.now(rollout).evidence["asked_share"] == 0.001


def test_a_candidate_that_nobody_takes_up_is_aborted(chat: Place) -> None:
    chat.report("pod-0")
    chat.report("pod-1")
    rollout = chat.start(stage="canary", share=0.5)
    chat.look()
    chat.clock.advance(121.0)
    chat.look()
    assert chat.now(rollout).reason == "no replica took it up within 120 s"


def test_rows_alone_do_not_say_that_a_candidate_runs(chat: Place) -> None:
    chat.report("pod-0")
    chat.report("pod-1")
    rollout = chat.start(stage="canary", share=0.5)
    for first in range(0, 8000, 2000):
        chat.ingest(1, first=first, seconds=0.14)
        chat.ingest(2, first=first, seconds=0.10)
    chat.look()
    now = chat.now(rollout)
    assert (now.stage, now.evidence["decision"]["action"]) == ("canary", "wait")
    chat.clock.advance(121.0)
    chat.look()
    assert chat.now(rollout).reason == "no replica took it up within 120 s"


def test_a_candidate_that_an_engine_refuses_is_aborted_with_its_reason(chat: Place) -> None:
    chat.report("pod-0")
    chat.report("pod-1", refused=2, reason="form: got affine")
    rollout = chat.start(stage="canary", share=0.5)
    chat.look()
    assert chat.now(rollout).reason == "refused by pod-1: form: got affine"
    assert decode_document(chat.parameter_store.read("chat")).version == 3


def test_a_candidate_that_slows_steps_down_is_aborted(chat: Place) -> None:
    chat.report("pod-0")
    chat.report("pod-1", applied=2)
    rollout = chat.start(stage="canary", share=0.5)
    for first in range(0, 8000, 2000):
        chat.ingest(1, first=first, seconds=0.10)
        chat.ingest(2, first=first, seconds=0.14)
    chat.look()
    ended = chat.now(rollout)
    assert ended.state == "aborted"
    assert ended.reason.startswith("throughput is worse")
    found = {m["measure"]: m for m in ended.evidence["canary"]}
    assert found["step_time"]["difference"] == pytest.approx(np.log(1.4), abs=0.02)
    assert found["step_time"]["verdict"] == "worse"
    assert found["calibration"]["difference"] == 0.0


def test_a_version_that_comes_into_force_ends_the_rollout(chat: Place) -> None:
    rollout = chat.start(stage="canary")
    other = chat.publisher.seal(document(3, 0.1))
    with chat.store.write() as connection:
        parameters.append(connection, chat.deployment.id, other, chat.clock.now(), "published")
    chat.publisher.reconcile("chat")
    with pytest.raises(ConflictError, match="version 3 came into force"):
        chat.rollouts.promote(rollout.id, actor="ada")
    chat.look()
    ended = chat.now(rollout)
    assert ended.reason == "superseded: version 3 came into force"
    with chat.store.read() as connection:
        assert parameters.latest_number(connection, chat.deployment.id) == 3


def test_a_frozen_deployment_promotes_nothing_and_still_aborts(chat: Place) -> None:
    chat.report("pod-0")
    good = chat.start()
    with chat.store.write() as connection:
        deployments.set_frozen(connection, chat.deployment.id, True)
    chat.ingest(1)
    chat.look()
    assert chat.now(good).evidence["decision"]["reason"] == "the deployment is frozen"
    chat.rollouts.abort(good.id, actor="ada", reason="no")
    with pytest.raises(ConflictError, match="frozen"):
        chat.rollouts.start("chat", 1, actor="ada")


def test_while_another_controller_holds_the_lease_this_one_does_nothing(chat: Place) -> None:
    chat.report("pod-0")
    rollout = chat.start()
    chat.ingest(1)
    lease = f"rollout:{chat.deployment.id}"
    with chat.store.write() as connection:
        assert leases.acquire(connection, lease, "another", 30.0) is not None
    chat.look()
    assert chat.now(rollout).evidence == {}
    with chat.store.write() as connection:
        assert leases.release(connection, lease, "another")
    chat.look()
    assert chat.now(rollout).state == "done"


def test_a_candidate_left_over_is_withdrawn(chat: Place) -> None:
    chat.parameter_store.offer(chat.publisher.seal(document(2)), 0.5)
    chat.look()
    assert chat.parameter_store.candidate("chat") is None


def test_reconciling_never_puts_a_candidate_in_force(chat: Place) -> None:
    chat.start(stage="canary")
    assert chat.publisher.reconcile("chat") == 1
    assert decode_document(chat.parameter_store.read("chat")).version == 1


def test_a_stored_version_is_rolled_out_under_a_new_number(chat: Place) -> None:
    rollout = chat.rollouts.start("chat", 1, actor="ada", share=0.3)
    assert (rollout.version, rollout.control_version, rollout.share) == (2, 1, 0.3)
    with pytest.raises(KeyError):
        chat.rollouts.start("chat", 7, actor="ada")
    with pytest.raises(KeyError):
        chat.rollouts.start("nobody", 1, actor="ada")


def test_stages_and_shares_that_make_no_sense_are_named(chat: Place) -> None:
    with pytest.raises(ContractError, match="share: got 0"):
        chat.start(share=0.0)
    with pytest.raises(ContractError, match="stage: got 'all'"):
        chat.start(stage="all")
    rollout = chat.start(stage="canary")
    with pytest.raises(ContractError, match="stage"):
        chat.rollouts.promote(rollout.id, actor="ada", stage="shadow")
    with pytest.raises(ConflictError, match="is in stage canary already"):
        chat.rollouts.promote(rollout.id, actor="ada", stage="canary")
    with pytest.raises(KeyError):
        chat.rollouts.abort(99, actor="ada")
