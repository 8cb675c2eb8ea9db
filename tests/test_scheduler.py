"""Verification lengths, against brute force on batches small enough to search."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from serving_adapter.contract import prefix_survival
from serving_adapter.scheduler import (
    Asynchronous,
    Candidates,
    EarlyStop,
    FixedLength,
    GlobalSearch,
    Threshold,
    VerifyAll,
    scheduler_from_name,
)
from serving_adapter.step_cost import StepCost


def paper_counter_example(second_confidence: float):
    """SPS(1) = 1, SPS(2) = 0.5, SPS(3) = 0.45; confidences 0.8 and then the one given."""
    cost = StepCost([1, 2, 3], [1.0, 1 / 0.5, 1 / 0.45])
    return prefix_survival([[0.8, second_confidence]]), cost


conditionals = st.tuples(st.integers(1, 3), st.integers(1, 3)).flatmap(
    lambda shape: arrays.arrays(np.float64, shape, elements=st.sampled_from([0.0, 0.2, 0.5, 0.8, 0.9, 1.0]))
)
batches = conditionals.map(prefix_survival)
costs = st.lists(st.floats(0, 2), min_size=12, max_size=12).map(
    lambda rises: StepCost(np.arange(1, 13), 1.0 + np.cumsum(rises))
)
every_scheduler = st.sampled_from(
    [EarlyStop, Asynchronous, GlobalSearch, VerifyAll, lambda: FixedLength(2), lambda: Threshold(0.5)]
)


def tokens_per_second(survival, cost, lengths):
    requests, gamma = survival.shape
    kept = np.arange(gamma) < np.asarray(lengths)[:, None]
    expected = requests + survival[kept].sum()
    return expected / float(cost.seconds(requests + int(np.sum(lengths))))


def algorithm_1(survival, cost):
    """The paper's loop, literally: one candidate after the other."""
    requests, gamma = survival.shape
    waiting = sorted(
        ((r, j) for r in range(requests) for j in range(gamma)), key=lambda c: (-survival[c], c[0], c[1])
    )
    lengths, tau, tokens = [0] * requests, float(requests), requests
    best = tau / float(cost.seconds(tokens))
    for r, j in waiting:
        candidate = (tau + survival[r, j]) / float(cost.seconds(tokens + 1))
        if candidate <= best:
            break
        tau, tokens, best = tau + survival[r, j], tokens + 1, candidate
        lengths[r] += 1
    return lengths


@given(batches, costs)
def test_early_stop_is_the_loop_of_the_paper(survival, cost):
    assert EarlyStop().lengths(survival, cost).tolist() == algorithm_1(survival, cost)


@settings(max_examples=60)
@given(batches, costs)
def test_global_search_finds_what_trying_all_lengths_finds(survival, cost):
    requests, gamma = survival.shape
    best = max(
        tokens_per_second(survival, cost, lengths)
        for lengths in itertools.product(range(gamma + 1), repeat=requests)
    )
    found = tokens_per_second(survival, cost, GlobalSearch().lengths(survival, cost))
    assert found == pytest.approx(best, rel=1e-12)


@given(batches, costs, every_scheduler)
def test_lengths_are_whole_numbers_between_nothing_and_the_draft(survival, cost, make):
    scheduler = make()
    for _ in range(4):
        lengths = scheduler.lengths(survival, cost)
        assert lengths.dtype == np.int64
        assert lengths.shape == (survival.shape[0],)
        assert ((lengths >= 0) & (lengths <= survival.shape[1])).all()


@given(batches, costs, every_scheduler)
def test_equal_inputs_give_equal_lengths_on_every_rank(survival, cost, make):
    one, other = make(), make()
    for _ in range(4):
        assert np.array_equal(one.lengths(survival, cost), other.lengths(survival.copy(), cost))


@given(batches, costs, st.floats(0, 1), st.data())
def test_early_stop_does_not_look_behind_the_first_position_it_trims(survival, cost, scale, data):
    lengths = EarlyStop().lengths(survival, cost)
    trimmed = [r for r, length in enumerate(lengths) if length + 1 < survival.shape[1]]
    changed = survival.copy()
    for r in trimmed:
        changed[r, lengths[r] + 1 :] *= scale
    assert np.array_equal(EarlyStop().lengths(changed, cost), lengths)


def test_the_papers_counter_example_early_stop_cannot_be_led_by_a_later_token():
    assert [EarlyStop().lengths(*paper_counter_example(c)).tolist() for c in (1.0, 0.0)] == [[0], [0]]


def test_the_papers_counter_example_a_global_search_is_led_by_it():
    assert [GlobalSearch().lengths(*paper_counter_example(c)).tolist() for c in (1.0, 0.0)] == [[2], [0]]


def test_ties_go_by_request_and_then_by_position():
    survival = np.full((3, 2), 0.5)
    ranked = Candidates.rank(survival, StepCost([1], [1.0]))
    assert ranked.order.tolist() == [0, 1, 2, 3, 4, 5]
    assert ranked.lengths(3).tolist() == [2, 1, 0]


def test_the_bonus_token_of_every_request_counts():
    ranked = Candidates.rank([[0.5, 0.25]], StepCost([1, 2, 3], [1.0, 1.0, 1.0]))
    assert ranked.tau.tolist() == [1.0, 1.5, 1.75]


def test_without_a_curve_nothing_is_a_reason_to_trim():
    survival = np.full((2, 3), 0.01)
    for scheduler in (EarlyStop(), Asynchronous(), GlobalSearch()):
        assert scheduler.lengths(survival, None).tolist() == [3, 3]


def test_a_flat_curve_verifies_everything():
    assert EarlyStop().lengths(np.full((2, 3), 0.01), StepCost([1, 99], [1.0, 1.0])).tolist() == [3, 3]


def test_sizes_that_were_never_measured_are_no_reason_to_trim():
    survival = np.full((4, 3), 0.9)
    rising = StepCost([1, 6], [0.5, 1.0])
    assert Candidates.rank(survival, rising).early_stop() == 12
    assert EarlyStop().lengths(survival, rising).tolist() == [3, 3, 3, 3]
    assert GlobalSearch().lengths(survival, rising).tolist() == [3, 3, 3, 3]
    only_larger_batches = StepCost([1, 2], [0.5, 1.0])
    assert EarlyStop().lengths(survival, only_larger_batches).tolist() == [3, 3, 3, 3]
    assert GlobalSearch().lengths(survival, only_larger_batches).tolist() == [3, 3, 3, 3]


def test_a_measured_loss_trims_although_larger_sizes_are_unknown():
    survival = np.full((4, 3), 0.1)
    steep = StepCost([1, 4, 6], [0.1, 0.1, 5.0])
    for scheduler in (EarlyStop(), GlobalSearch()):
        assert scheduler.lengths(survival, steep).tolist() == [0, 0, 0, 0]


def test_a_staircase_stops_early_stop_and_not_the_capacity_search():
    cost = StepCost([1, 2, 3, 4], [1.0, 2.0, 2.0, 2.0], "floor")
    survival = np.array([[0.9, 0.9, 0.9]])
    assert EarlyStop().lengths(survival, cost).tolist() == [0]
    scheduler = Asynchronous()
    assert [scheduler.lengths(survival, cost).tolist() for _ in range(3)] == [[0], [0], [3]]


def test_the_capacity_is_two_steps_old_and_the_ranking_is_current():
    cost = StepCost([2, 3, 4, 5, 6], [1.0, 1.0, 1.0, 9.0, 9.0])
    high, low = np.array([[0.9, 0.8], [0.1, 0.1]]), np.array([[0.1, 0.1], [0.9, 0.8]])
    steep = StepCost([2, 3, 4, 5, 6], [1.0, 9.0, 9.0, 9.0, 9.0])
    scheduler = Asynchronous()
    scheduler.lengths(high, cost)
    scheduler.lengths(high, cost)
    assert scheduler.lengths(low, cost).tolist() == [0, 2]  # two tokens fit, the best of this step
    assert scheduler.lengths(low, steep).tolist() == [0, 0]


def test_capacity_follows_the_number_of_requests():
    cost = StepCost([1, 64], [1.0, 1.0])
    scheduler = Asynchronous()
    for requests in (4, 4, 2, 6, 1):
        assert scheduler.lengths(np.full((requests, 3), 0.5), cost).tolist() == [3] * requests


def test_current_confidences_do_not_move_the_capacity():
    cost = StepCost([1, 2, 3, 4], [1.0, 1.3, 1.7, 2.5])
    before = np.array([[0.9, 0.5, 0.1]])
    totals = set()
    for now in ([[0.9, 0.9, 0.9]], [[0.1, 0.1, 0.0]]):
        scheduler = Asynchronous()
        scheduler.lengths(before, cost)
        scheduler.lengths(before, cost)
        totals.add(int(scheduler.lengths(np.array(now), cost).sum()))
    assert totals == {1}


@pytest.mark.parametrize("make", [EarlyStop, Asynchronous])
def test_a_gain_below_the_guard_is_not_worth_trimming(make):
    survival = np.array([[0.9, 0.5, 0.01]])
    nearly_flat = StepCost([1, 4], [1.0, 1.02])
    free, guarded = make(), make(min_predicted_gain=0.05)
    assert [free.lengths(survival, nearly_flat).tolist() for _ in range(3)][-1] != [3]
    assert [guarded.lengths(survival, nearly_flat).tolist() for _ in range(3)] == [[3], [3], [3]]


@pytest.mark.parametrize("make", [EarlyStop, Asynchronous])
def test_a_gain_above_the_guard_trims_once_it_was_seen(make):
    survival = np.array([[0.9, 0.1, 0.01]])
    steep = StepCost([1, 2, 4], [1.0, 1.1, 3.0])
    guarded = make(min_predicted_gain=0.05)
    assert [guarded.lengths(survival, steep).tolist() for _ in range(3)] == [[3], [3], [1]]


@given(batches, costs)
def test_a_higher_guard_never_verifies_less(survival, cost):
    verified = []
    for gain in (0.0, 0.05, 0.5, 100.0):
        scheduler = EarlyStop(min_predicted_gain=gain)
        verified.append([int(scheduler.lengths(survival, cost).sum()) for _ in range(3)][-1])
    assert verified == sorted(verified)
    assert verified[-1] == survival.size


def test_threshold_is_on_the_survival_of_the_prefix():
    assert Threshold(0.5).lengths(np.array([[0.9, 0.5, 0.4], [0.4, 0.3, 0.2]]), None).tolist() == [2, 0]
    assert Threshold(0.0).lengths(np.array([[0.0, 0.0]]), None).tolist() == [2]


def test_fixed_lengths_end_at_the_draft():
    survival = np.zeros((2, 3))
    assert FixedLength(1).lengths(survival, None).tolist() == [1, 1]
    assert FixedLength(9).lengths(survival, None).tolist() == [3, 3]


def test_no_requests_no_lengths():
    cost = StepCost([1, 2], [1.0, 2.0])
    for scheduler in (
        EarlyStop(),
        Asynchronous(),
        GlobalSearch(),
        Threshold(0.5),
        FixedLength(1),
        VerifyAll(),
    ):
        assert scheduler.lengths(np.zeros((0, 3)), cost).shape == (0,)


def test_confidences_that_are_no_numbers_are_never_verified():
    survival = np.array([[np.nan, np.nan], [0.9, 0.9]])
    cost = StepCost([1, 2, 3, 4, 5, 6], [1.0, 1.0, 1.1, 1.2, 9.0, 9.0])
    assert EarlyStop().lengths(survival, cost).tolist() == [0, 2]
    assert Threshold(0.5).lengths(survival, None).tolist() == [0, 2]


def test_a_row_that_rises_still_gives_a_prefix():
    survival = np.array([[0.1, 0.9], [0.5, 0.4]])
    ranked = Candidates.rank(survival, StepCost([1], [1.0]))
    assert ranked.lengths(2).tolist() == [0, 2]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("early-stop", EarlyStop),
        ("asynchronous", Asynchronous),
        ("fixed:3", FixedLength),
        ("threshold:0.5", Threshold),
        ("off", VerifyAll),
        ("none", FixedLength),
    ],
)
def test_schedulers_have_names(name, kind):
    assert isinstance(scheduler_from_name(name), kind)


@pytest.mark.parametrize("name", ["", "fixed", "fixed:", "fixed:x", "fixed:-1", "threshold:2", "global"])
def test_an_unknown_name_is_refused_and_shown(name):
    with pytest.raises(ValueError, match="got"):
        scheduler_from_name(name)


@pytest.mark.parametrize("gain", [-0.1, float("nan"), float("inf")])
def test_a_guard_that_is_no_gain_is_refused(gain):
    with pytest.raises(ValueError, match="min_predicted_gain"):
        EarlyStop(min_predicted_gain=gain)
