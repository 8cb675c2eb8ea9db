"""A service that is killed in the middle of a decision: another one finishes it."""

import signal
import subprocess
import sys
import time

import pytest

from serving_adapter.contract import decode_document
from tests.test_rollout_controller import Place, chat, parameter_server  # noqa: F401

pytestmark = pytest.mark.faults

DEADLINE = 60.0

# A controller whose reach for the parameter store never ends, right after its decision is in SQL.
CONTROLLER = """
import sys, time
from calibrator.service.publisher import Publisher
from calibrator.service.rollout.controller import RolloutController
from calibrator.store import Store, deployments
from serving_adapter.clock import ManualClock
from serving_adapter.parameter_stores.redis import RedisParameterStore

class Hangs(Publisher):
    def put_in_force(self, document):
        print("decided", flush=True)
        time.sleep(3600)

store, parameter_store, clock = Store(sys.argv[1]), RedisParameterStore(sys.argv[2]), ManualClock()
publisher = Hangs(store, parameter_store, clock)
controller = RolloutController(store, parameter_store, publisher, clock, lease_seconds=2.0)
with store.read() as connection:
    deployment = deployments.get(connection, "chat")
controller.step(deployment)
"""


def killed_after_deciding(place: Place) -> None:
    command = [sys.executable, "-c", CONTROLLER, str(place.store.engine.url), place.parameter_store.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "decided\n"
        process.send_signal(signal.SIGKILL)


def looked_until_served(place: Place, version: int) -> None:
    deadline = time.monotonic() + DEADLINE
    while decode_document(place.parameter_store.read("chat")).version != version:
        assert time.monotonic() < deadline
        place.publisher.reconcile("chat")
        place.look()
        time.sleep(0.05)
    while place.parameter_store.candidate("chat") is not None:
        assert time.monotonic() < deadline
        place.look()


def test_a_promotion_is_finished_by_another_controller(chat: Place) -> None:  # noqa: F811
    chat.report("pod-0")
    rollout = chat.start()
    chat.ingest(1)
    killed_after_deciding(chat)
    assert decode_document(chat.parameter_store.read("chat")).version == 1
    looked_until_served(chat, 2)
    assert chat.now(rollout).state == "done"


def test_an_abort_is_finished_by_another_controller(chat: Place) -> None:  # noqa: F811
    chat.report("pod-0")
    chat.report("pod-1")
    rollout = chat.start(offset=4.0, stage="canary", share=0.5)
    chat.look()
    assert chat.parameter_store.candidate("chat") is not None
    chat.report("pod-1", applied=2)
    for first in (0, 2000):
        chat.ingest(1, first=first)
        chat.ingest(2, first=first)
    killed_after_deciding(chat)
    assert chat.now(rollout).state == "aborted"
    looked_until_served(chat, 3)
    assert decode_document(chat.parameter_store.read("chat")).offsets == [0.0] * 7


def test_the_lease_of_a_killed_controller_runs_out(chat: Place) -> None:  # noqa: F811
    chat.report("pod-0")
    first = chat.start()
    chat.ingest(1)
    killed_after_deciding(chat)
    looked_until_served(chat, 2)
    assert chat.now(first).state == "done"
    second = chat.rollouts.start("chat", 1, actor="ada")
    chat.ingest(2)
    deadline = time.monotonic() + DEADLINE
    while chat.now(second).state == "running":
        assert time.monotonic() < deadline
        chat.look()
        time.sleep(0.05)
    assert chat.now(second).stage == "all"
