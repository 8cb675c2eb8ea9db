"""Sums of a rollout's arms: exact, per random group, in pairs."""

import numpy as np
import pytest

from calibrator.core.arms import GROUPS, ArmSums, fold_rounds, fold_steps, group_of, ratio_mean
from calibrator.core.judge import judge
from calibrator.core.parameter_set import ParameterSet
from tests.recorded import recorded, truncate

ROWS = recorded("typical").take(slice(0, 4000))
IDENTITY = ParameterSet.identity(7)
SHARPER = ParameterSet("affine", np.full(7, 0.5), np.full(7, 0.3))


def folded(rounds):
    return fold_rounds(rounds, IDENTITY.survival(rounds), SHARPER.survival(rounds))


def test_parts_add_up_to_the_whole_in_any_order():
    whole, parts = folded(ROWS), [folded(ROWS.take(slice(i, i + 700))) for i in range(0, 4000, 700)]
    for order in (parts, parts[::-1]):
        total = ArmSums.zeros()
        for part in order:
            total = total + part
        assert total == whole
    assert whole.total("rounds") == 4000
    assert whole.total("accepted") == ROWS.accepted.sum()


def test_a_request_has_one_group_and_requests_are_spread_over_all():
    group = group_of(np.arange(20_000, dtype=np.uint64))
    assert np.array_equal(group, group_of(np.arange(20_000, dtype=np.uint64)))
    counts = np.bincount(group, minlength=GROUPS)
    assert counts.min() > 200
    assert len(counts) == GROUPS


def test_the_loss_is_that_of_positions_at_risk_as_elsewhere():
    rounds = truncate(ROWS, np.full(4000, 3), 0.0, seed=0)
    sums = folded(rounds)
    found = ratio_mean(sums, "candidate_log_loss", "at_risk", less="control_log_loss")
    expected = judge(
        rounds, IDENTITY.survival(rounds), SHARPER.survival(rounds), weights=np.ones(4000), resamples=20
    )
    assert found.value == pytest.approx(expected.log_loss_difference, abs=1e-5)


def test_the_variance_allows_for_dependent_rounds():
    rng = np.random.default_rng(0)
    requests = 3000
    each = rng.binomial(7, rng.beta(2, 2, requests))  # every round of a request accepts alike
    request = np.repeat(np.arange(requests, dtype=np.uint64), 20)
    rows = recorded("typical").take(np.zeros(len(request), dtype=np.int64))
    rows = type(rows).build(rows.logits, np.repeat(each, 20), request=request)
    found = ratio_mean(folded(rows), "accepted", "rounds")
    independent = np.repeat(each, 20).var() / len(request)
    assert found.variance == pytest.approx(20 * independent, rel=0.6)
    assert found.units == 60_000


def test_equal_predictions_differ_by_nothing_without_a_variance():
    same = IDENTITY.survival(ROWS)
    found = ratio_mean(
        fold_rounds(ROWS, same, same), "candidate_log_loss", "at_risk", less="control_log_loss"
    )
    assert (found.value, found.variance) == (0.0, 0.0)


def test_steps_are_logarithms_of_ratios_and_those_without_a_time_are_left_out():
    sums = fold_steps([0.2, 0.1, 0.0], [0.1, 0.1, 0.1], [1, 2, 3])
    assert sums.total("steps") == 2
    assert sums.total("log_step_ratio") == pytest.approx(np.log(2), abs=1e-6)


def test_too_few_groups_give_no_mean():
    one = ROWS.take(ROWS.request == ROWS.request[0])
    assert ratio_mean(folded(one), "accepted", "rounds") is None
    assert ratio_mean(ArmSums.zeros(), "accepted", "rounds") is None


def test_a_certain_prediction_that_is_wrong_costs_much_but_not_everything():
    sure = ParameterSet("affine", np.ones(7), np.full(7, 30.0))
    sums = fold_rounds(ROWS, IDENTITY.survival(ROWS), sure.survival(ROWS))
    assert np.isfinite(sums.total("candidate_log_loss"))
    assert sums.total("candidate_log_loss") > 3 * sums.total("control_log_loss")
