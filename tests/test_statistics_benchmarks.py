"""The proofs of docs/statistics.md in small: each benchmark's claim on fewer runs, and no clock."""

import numpy as np
import pytest

from benchmarks import drift, drift_requests, estimators, recency
from benchmarks.recency_loop import LoopOptions
from calibrator.core.drift import DriftRules


def test_calibrated_streams_raise_fewer_alarms_than_promised_where_repeated_z_tests_raise_many():
    rules = DriftRules(tolerance=0.0, false_alarm_rounds=10_000 / 0.05)
    source = drift.predictions("typical", 1)
    shares = drift.false_alarms(source, 200, 10_000, rules, adwin_runs=0)
    assert shares["e-process"] <= 0.05
    assert shares["z-test window, 5 % per look"] > 0.3


def test_the_e_process_finds_a_gap_of_ten_points_within_a_few_thousand_rounds():
    rules = DriftRules(false_alarm_rounds=1e6)
    source = drift.predictions("typical", 1)
    matching = {"since start": 4.0, "window": 4.0}
    rows = drift.delays(source, 0.1, 40, 2000, 6000, rules, matching, adwin_runs=0)
    assert rows["e-process"]["missed"] == 0.0
    assert rows["e-process"]["before"] == 0.0
    assert rows["e-process"]["median"] < 1500


def test_whole_requests_seldom_alarm_either():
    rules = DriftRules(false_alarm_rounds=6000 / 0.05)
    shares = [
        max(drift_requests.recorded_alarms("hard", 40, 6000, rules, 1, how)["per position"])
        for how in ("none", "service")
    ]
    assert shares[0] > 0.2
    assert shares[1] <= 0.05


@pytest.mark.parametrize("curve", ["knee at 256, 64 requests"])
def test_the_figure_of_record_is_nearer_the_truth_than_any_other_estimate(curve):
    found = estimators.measure("typical", curve, 0.05, resamples=6, size=1.0)
    bias = {name: abs(value[0]) for name, value in found["ece bias"].items()}
    assert bias["of record"] < 0.5 * bias["inverse propensity"]
    assert bias["of record"] < 0.5 * bias["verified only"]
    assert bias["trimmed is rejected"] == max(bias.values())
    assert abs(found["gap bias"]["of record"][0]) < 0.02
    assert found["coverage"] > 0.8


def test_without_exploration_there_is_nothing_to_record():
    found = estimators.measure("typical", "knee at 256, 64 requests", 0.0, resamples=1, size=0.3)
    assert found["ece bias"]["of record"] is None
    assert "coverage" not in found


def test_the_closed_loop_settles_and_stays():
    found = recency.steady("typical", LoopOptions(half_life=8000.0), 8, seed=0)
    assert found["published"] >= 1
    low, high = found["temperature"]
    assert np.log(high / low) < 0.3
    assert found["worst error"] < 0.03


def test_the_loop_follows_a_change_of_traffic():
    options = LoopOptions(half_life=8000.0, soft=True, forget=True)
    first, second = recency.switching("typical", ["code", "chat"], options, 5, seed=0)
    assert first["at end"] < first["at switch"]
    assert second["at switch"] > 3 * second["targets"]["attainable"]
    assert second["at end"] <= second["targets"]["attainable"] + recency.SLACK


def test_a_set_of_its_own_is_remembered_while_its_traffic_stays_away():
    options = LoopOptions(half_life=8000.0, soft=True, forget=True, segments=True)
    _, away, back = recency.switching("typical", ["code", "chat", "code"], options, 2, seed=0)
    assert away["at end"] < 0.5 * away["at switch"]
    assert back["at switch"] <= back["targets"]["attainable"]
