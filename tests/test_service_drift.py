"""Drift end to end: replay engine, pipeline and evaluator, and the alarm that each change raises."""

import numpy as np
import pytest

from serving_adapter.parameters import Parameters
from tests.drift_support import Served, around, honest, kinds, switch

pytest_plugins = ["tests.refresh_fixtures"]

BEFORE, AFTER = 8, 14
"""Looks of 50 steps of 32 requests: 12 800 rounds before the change, at most 22 400 after it."""


@pytest.fixture(scope="module")
def calm():
    return honest("calm", around(0.8))


def changed(place, calm, other):
    """Serve ``calm`` and then ``other``, both with honest labels; return what was found of the change."""
    served = Served(place, [calm, other], script=switch("calm", other.name, at=BEFORE * 50))
    assert served.serve(BEFORE, steps=50) == []
    return served, served.serve(AFTER, steps=50)


def test_a_steady_deployment_raises_nothing_in_forty_thousand_rounds(place, calm):
    served = Served(place, [calm])
    assert served.serve(looks=25, steps=50) == []
    assert served.engine.ledger.rounds == 40_000


def test_a_head_that_goes_wrong_raises_calibration_alarms(place, calm):
    wrong = honest("wrong", around(0.8), seed=1, bias=0.8)
    _, found = changed(place, calm, wrong)
    alarms = [e for e in found if e.kind == "calibration"]
    assert {e.position for e in alarms} == {1, 2, 3, 4}
    assert {e.direction for e in alarms} == {"below"}
    assert {e.segment for e in alarms} == {"default"}
    assert all(e.gap > 0.05 for e in alarms)
    assert all("overconfident" in e.summary and e.remedy.startswith("refit") for e in alarms)
    # The head is no witness against the drafter, which is accepted as it was.
    assert "acceptance" not in kinds(found)
    assert len({e.key for e in alarms}) == len(alarms)


def test_the_start_of_an_episode_is_when_the_change_came(place, calm):
    change = place.clock.now() + BEFORE * 10.0
    _, found = changed(place, calm, honest("wrong", around(0.8), seed=1, bias=0.8))
    first = min((e for e in found if e.kind == "calibration"), key=lambda e: e.alarmed_at)
    assert abs(first.started_at - change) <= 20.0
    assert first.alarmed_at > first.started_at


def test_a_worse_drafter_with_an_honest_head_raises_acceptance_alarms(place, calm):
    worse = honest("worse", around(0.65), seed=2)
    _, found = changed(place, calm, worse)
    assert "calibration" not in kinds(found)
    alarms = [e for e in found if e.kind == "acceptance"]
    assert {e.direction for e in alarms} == {"below"}
    assert all("say so" in e.summary and "drafter" in e.remedy for e in alarms)
    assert all(e.gap < -0.05 for e in alarms)


def test_another_mix_raises_one_traffic_alarm(place, calm):
    def easy_and_hard(random, shape):  # as often accepted as before, at every position
        return np.where(random.random(shape) < 0.5, 0.64, 0.96)

    served, found = changed(place, calm, honest("mixed", easy_and_hard, seed=3))
    (alarm,) = found
    assert (alarm.kind, alarm.segment, alarm.position, alarm.direction) == ("traffic", None, None, None)
    assert "stability index" in alarm.summary
    assert "segment" in alarm.remedy
    assert [e.key for e in served.open()] == [alarm.key]


def test_a_refresh_that_mends_the_calibration_ends_its_episodes(place):
    served = Served(place, [honest("wrong", around(0.8), seed=1, bias=0.8)])
    found = served.serve(looks=6, steps=50)
    assert kinds(found) == {"calibration"}
    place.report()
    outcome = place.refresher.refresh("chat")
    assert outcome.outcome == "published"
    served.adapter.parameters = Parameters.from_document(outcome.document)
    later = served.serve(looks=10, steps=50)
    assert {e.id for e in later} == {e.id for e in found}
    assert all(e.ended_at is not None and e.version is None for e in later)
    assert served.open() == []


def test_a_machine_at_seven_tenths_of_its_speed_is_noticed_within_sixty_steps(place, calm):
    served = Served(place, [calm])
    assert served.serve(looks=10) == []
    slow_from = place.clock.now()
    served.machine.factor = 1 / 0.7
    (alarm,) = served.serve(looks=3)
    assert (alarm.kind, alarm.direction) == ("cost", "slower")
    assert (alarm.load_regime, alarm.context_bucket) == (None, None)
    assert alarm.started_at == slow_from
    assert alarm.gap == pytest.approx(0.43, abs=0.08)
    assert alarm.remedy.startswith("rescale")
    served.machine.factor = 1.0
    (ended,) = served.serve(looks=10)
    assert (ended.id, ended.ended_at is None) == (alarm.id, False)


def test_a_faster_machine_is_noticed_too(place, calm):
    served = Served(place, [calm])
    served.serve(looks=10)
    served.machine.factor = 0.7
    (alarm,) = served.serve(looks=4)
    assert (alarm.kind, alarm.direction) == ("cost", "faster")
    assert alarm.remedy.startswith("rescale")


def test_longer_contexts_are_told_from_a_slower_machine(place, calm):
    served = Served(place, [calm])
    served.serve(looks=10)
    served.context, served.machine.factor = 9000, 1.35
    served.serve(looks=8)
    alarms = [e for e in served.open() if e.kind == "cost"]
    assert {(e.load_regime, e.context_bucket) for e in alarms} == {(None, None), (None, 8192)}
    assert all(e.direction == "slower" and e.remedy.startswith("by_context") for e in alarms)


def test_one_step_in_two_hundred_that_stalls_is_no_drift(place, calm):
    served = Served(place, [calm])
    served.machine.stalls = True
    assert served.serve(looks=12, steps=100) == []
    assert served.machine.steps == 1200
