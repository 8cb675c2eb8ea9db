"""What a rollout is decided by: what is worse goes back, what is not goes on, however often one looks."""

from collections import Counter

import numpy as np
import pytest

from benchmarks.rollout import Difference, canary, traffic
from calibrator.core.arms import ArmSums
from calibrator.core.canary import MIN_ROUNDS, Rules, judge_canary, judge_shadow

LOOSE = Rules(
    shadow_rounds=500, acceptance_tolerance=0.06, step_time_tolerance=0.06, calibration_tolerance=0.004
)
RUNS = 100
FEW = 5 + 3 * np.sqrt(RUNS * 0.05 * 0.95)
"""At most so many of 100 runs go wrong at 95 % confidence, three standard errors allowed."""


def endings(difference, looks=60, seed=0):
    rng = np.random.default_rng(seed)
    return Counter(canary(rng, LOOSE, difference, looks=looks).action for _ in range(RUNS))


def measures(decision):
    return {m.measure: m for m in decision.measures}


def test_an_equal_candidate_is_promoted_and_hardly_ever_aborted():
    found = endings(Difference())
    assert found["abort"] <= FEW
    assert found["promote"] >= 90


@pytest.mark.parametrize(
    "difference",
    [Difference(tokens=-0.06), Difference(seconds=0.0637), Difference(loss=0.004)],
    ids=["tokens", "seconds", "loss"],
)
def test_one_that_is_worse_by_the_tolerance_is_hardly_ever_promoted_nor_aborted(difference):
    found = endings(difference, looks=40)
    assert found["promote"] <= FEW
    assert found["abort"] <= FEW


@pytest.mark.parametrize(
    "difference",
    [Difference(tokens=-0.2), Difference(seconds=0.25), Difference(loss=0.02)],
    ids=["tokens", "seconds", "loss"],
)
def test_one_that_is_much_worse_is_aborted(difference):
    assert endings(difference) == {"abort": RUNS}


def test_one_that_trims_what_does_not_pay_is_promoted():
    assert endings(Difference(tokens=-0.15, seconds=-0.2, loss=-0.004))["promote"] >= 95


def test_without_steps_acceptance_decides():
    rng = np.random.default_rng(1)
    control, candidate = traffic(rng, 2000, Difference()), traffic(rng, 1000, Difference(tokens=-0.2))
    for arm in (control, candidate):
        arm.values[:, -2:] = 0
    decision = judge_canary(control, candidate, LOOSE)
    found = measures(decision)
    assert decision.action == "abort"
    assert set(found) == {"acceptance", "calibration"}
    assert found["acceptance"].decides
    assert found["acceptance"].verdict == "worse"
    assert found["acceptance"].high < 0


def test_with_steps_acceptance_explains_and_throughput_decides():
    rng = np.random.default_rng(1)
    better = Difference(tokens=-0.15, seconds=-0.3)
    decision = judge_canary(traffic(rng, 4000, Difference()), traffic(rng, 2000, better), LOOSE)
    found = measures(decision)
    assert decision.action == "promote"
    assert (found["acceptance"].verdict, found["acceptance"].decides) == ("worse", False)
    assert (found["step_time"].verdict, found["throughput"].verdict) == ("better", "better")
    assert found["throughput"].difference == pytest.approx(np.log(0.85 / 0.7), abs=0.05)


def test_nothing_is_decided_on_a_handful_of_rounds():
    rng = np.random.default_rng(2)
    control, candidate = traffic(rng, 2000, Difference()), traffic(rng, 15, Difference(loss=1.0))
    assert candidate.total("rounds") < MIN_ROUNDS
    assert judge_canary(control, candidate, LOOSE).action == "wait"


def test_arms_without_rows_wait_with_nothing_to_show():
    decision = judge_canary(ArmSums.zeros(), ArmSums.zeros(), LOOSE)
    assert decision.action == "wait"
    assert all(m.difference is None and m.verdict == "undecided" for m in decision.measures)


def test_the_same_parameters_are_known_to_be_equal_in_calibration():
    rng = np.random.default_rng(3)
    shadow = traffic(rng, 200, Difference())
    shadow.values[:, 4] = shadow.values[:, 5]
    decision = judge_shadow(shadow, LOOSE)
    assert decision.action == "promote"
    (found,) = decision.measures
    assert (found.low, found.high, found.bounded) == (0.0, 0.0, True)


def test_a_shadow_waits_for_its_rounds_and_gives_its_reason():
    rng = np.random.default_rng(4)
    shadow = traffic(rng, 10, Difference())
    decision = judge_shadow(shadow, LOOSE)
    assert decision.action == "wait"
    assert f"of {LOOSE.shadow_rounds} rounds" in decision.reason
    worse = judge_shadow(traffic(rng, 400, Difference(loss=0.05)), LOOSE)
    assert worse.action == "abort"
    assert worse.reason.startswith("calibration is worse: +0.05")
