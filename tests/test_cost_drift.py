"""Cost drift: the right alarm, in time, and none without a cause."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrator.core.cost import CostAlarm, CostCells, DriftCells, fit_curve, remedy
from calibrator.core.cost.eprocess import SignTest
from serving_adapter.contract import Steps

EPOCH_STEPS = 50


def served(count, slow=1.0, seed=0, context=None, shape=None):
    """A machine of 30 ms + 1 ms a token under mixed load, with predictions that were true at first."""
    random = np.random.default_rng(seed)
    requests = random.choice([1, 4, 16, 64], count)
    tokens = requests * random.integers(1, 9, count)
    promised = 0.03 + 0.001 * tokens
    factor = np.full(count, slow) if shape is None else shape(requests)
    return Steps.build(
        step_seconds=promised * factor * np.exp(random.normal(0, 0.08, count)),
        batch_tokens=tokens,
        requests=requests,
        context_tokens=np.full(count, 1000) if context is None else context,
        predicted_seconds=promised,
    )


def epochs(steps, start=0):
    return (start + np.arange(len(steps))) // EPOCH_STEPS


def test_a_machine_at_seven_tenths_of_its_speed_is_noticed_within_fifty_steps():
    alarm = CostAlarm().extend(served(5000)).extend(served(500, 1 / 0.7, seed=1))
    (episode,) = alarm.episodes
    assert episode.direction == "slower"
    assert 5000 <= episode.raised < 5050
    assert abs(episode.start - 5000) < 20
    assert episode.ended is None


def test_a_faster_machine_is_noticed_too():
    alarm = CostAlarm().extend(served(1000)).extend(served(200, 0.7, seed=1))
    assert [e.direction for e in alarm.episodes] == ["faster"]


def test_an_episode_ends_when_predictions_are_right_again_and_raises_one_alarm():
    alarm = CostAlarm().extend(served(300)).extend(served(2000, 1.4, seed=1)).extend(served(600, seed=2))
    (episode,) = alarm.episodes
    assert 2300 < episode.ended < 2500
    again = alarm.extend(served(300, 1.4, seed=3))
    assert len(again.episodes) == 2


def test_outliers_alone_raise_nothing():
    steps = served(20_000)
    seconds = steps.step_seconds * np.where(np.arange(20_000) % 200 == 0, 50, 1)
    stalled = Steps.build(
        step_seconds=seconds,
        batch_tokens=steps.batch_tokens,
        requests=steps.requests,
        predicted_seconds=steps.predicted_seconds,
    )
    assert CostAlarm().extend(stalled).episodes == ()


def test_false_alarms_are_as_rare_as_promised():
    # The worst case that is no deviation: half of all steps just beyond the tolerance.
    alarms = 0
    for seed in range(200):
        outcomes = np.random.default_rng(seed).random(1000) < 0.5
        _, evidence, _ = SignTest.start(0).extend(outcomes, 0)
        alarms += bool((evidence >= np.log(2000)).any())
    # Expected steps between alarms at least 2000: in 1000 steps at most about half would have one.
    assert alarms < 60


@settings(max_examples=50, deadline=None)
@given(st.lists(st.booleans(), max_size=80), st.integers(0, 80))
def test_the_test_does_not_depend_on_how_steps_are_cut_into_batches(outcomes, cut):
    values = np.array(outcomes, dtype=bool)
    cut = min(cut, len(values))
    whole, evidence, leading = SignTest.start(0).extend(values, 0)
    half, first, lead_one = SignTest.start(0).extend(values[:cut], 0)
    rest, second, lead_two = half.extend(values[cut:], cut)
    assert rest.log_evidence == pytest.approx(whole.log_evidence, abs=1e-9)
    assert np.concatenate([first, second]) == pytest.approx(evidence, abs=1e-9)
    assert np.concatenate([lead_one, lead_two]).tolist() == leading.tolist()


def test_the_recursion_is_the_one_in_the_books():
    outcomes = np.random.default_rng(1).random(200) < 0.6
    _, evidence, _ = SignTest.start(0).extend(outcomes, 0)
    from calibrator.core.cost.eprocess import BETS

    m = np.ones(len(BETS))
    for i, outcome in enumerate(outcomes):
        m = np.maximum(m, 1) * (1 + BETS * (1 if outcome else -1))
        assert np.exp(evidence[i]) == pytest.approx(m.mean(), rel=1e-9)


def test_figures_say_bias_and_error_per_regime_and_context():
    context = np.where(np.arange(8000) % 2 == 0, 1000, 9000)
    slow = served(8000, context=context)
    steps = Steps.build(
        step_seconds=slow.step_seconds * np.where(context > 5000, 1.3, 1.0),
        batch_tokens=slow.batch_tokens,
        requests=slow.requests,
        context_tokens=context,
        predicted_seconds=slow.predicted_seconds,
    )
    cells = DriftCells.fold(steps, 0)
    by_context = {f.context: f for f in cells.figures(["context"])}
    assert by_context[512].bias == pytest.approx(0.0, abs=0.01)
    assert by_context[512].median_relative_error == pytest.approx(0.054, abs=0.01)
    assert by_context[8192].bias == pytest.approx(0.3, abs=0.02)
    assert {f.regime for f in cells.figures(["regime"])} == {1, 4, 16, 64}
    assert len(cells.figures(["regime", "context"])) == 8
    assert sum(f.weight for f in cells.figures()) == 8000


def test_drift_cells_merge_exactly_and_go_through_a_table():
    one, two = served(300), served(300, 1.2, seed=1)
    parts = DriftCells.fold(one, 0) + DriftCells.fold(two, 1)
    joined = DriftCells.fold(Steps.concatenate([one, two]), np.repeat([0, 1], 300))
    assert parts == joined
    assert DriftCells.from_arrays(parts.keys[::-1], parts.sums[::-1]) == parts
    assert DriftCells.empty().figures() == []


def follow(before, during):
    """What a service does on the alarm: say the remedy, apply it, refit."""
    alarm = CostAlarm().extend(before).extend(during)
    start = alarm.episodes[0].start
    both = Steps.concatenate([before, during])
    epoch = epochs(both)
    first = int(-(-start // EPOCH_STEPS))
    drift = DriftCells.fold(both, epoch)
    kind, _ = remedy(drift.between(before=first), drift.between(first=first))
    return kind, first, CostCells.fold(both, epoch), drift


def test_a_slower_machine_the_curve_follows_within_two_hundred_steps():
    kind, first, cells, drift = follow(served(5000), served(200, 1 / 0.7, seed=1))
    assert kind == "rescale"
    bias = drift.between(first=first).figures()[0].bias
    now = fit_curve(cells.rescaled(before=first, factor=1 + bias))
    assert now.publishable
    sizes = np.array([1, 8, 64, 256, 512])
    assert now.at(sizes) == pytest.approx((0.03 + 0.001 * sizes) / 0.7, rel=0.05)


def test_without_any_alarm_the_half_life_makes_the_curve_follow():
    both = Steps.concatenate([served(5000), served(5000, 1 / 0.7, seed=1)])
    cells = CostCells.fold(both, epochs(both))
    # 2000 steps after the change, with a half-life of 1000: three quarters of the weight is new.
    late = CostCells.fold(both.take(slice(0, 7000)), epochs(both)[:7000])
    sizes = np.array([8, 64, 256])
    true = (0.03 + 0.001 * sizes) / 0.7
    fitted = fit_curve(late, now=140, half_life=20.0).at(sizes)
    assert fitted == pytest.approx(true, rel=0.06)
    assert fit_curve(cells, now=200, half_life=20.0).at(sizes) == pytest.approx(true, rel=0.03)


def test_longer_contexts_are_told_from_a_slower_machine_and_followed():
    long = served(400, 1.35, seed=1, context=np.full(400, 9000))
    kind, _, cells, _ = follow(served(5000), long)
    assert kind == "by_context"
    fit = fit_curve(cells, context=8192)
    sizes = np.array([8, 64, 256])
    assert fit.at(sizes) == pytest.approx(1.35 * (0.03 + 0.001 * sizes), rel=0.06)
    # The curve of the contexts of before is what it was.
    assert fit_curve(cells, context=512).at(sizes) == pytest.approx(0.03 + 0.001 * sizes, rel=0.03)


def test_a_change_under_load_only_asks_for_a_new_profile():
    bent = served(600, seed=1, shape=lambda requests: np.where(requests >= 16, 1.6, 1.0))
    kind, *_ = follow(served(3000), bent)
    assert kind == "profile"


def test_no_deviation_needs_no_remedy():
    cells = DriftCells.fold(served(1000), 0)
    assert remedy(cells, cells)[0] == "none"
    assert remedy(cells, DriftCells.empty())[0] == "none"


def test_steps_without_a_prediction_do_not_count():
    steps = Steps.build(step_seconds=[0.1] * 5, batch_tokens=[8] * 5, requests=[1] * 5)
    assert CostAlarm().extend(steps).steps == 0
    assert CostAlarm().extend(steps, predicted=[0.1] * 5).steps == 5
    with pytest.raises(ValueError, match="predicted"):
        CostAlarm().extend(steps, predicted=[0.1])
