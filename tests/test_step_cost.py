"""Seconds by batch tokens, as schedulers look them up."""

import numpy as np
import pytest

from serving_adapter.contract import ContractError, CostCurve
from serving_adapter.step_cost import StepCost


def test_linear_interpolation_goes_straight_from_size_to_size():
    cost = StepCost([2, 4, 8], [0.1, 0.2, 0.6])
    assert cost.seconds([2, 3, 4, 6, 8]).tolist() == pytest.approx([0.1, 0.15, 0.2, 0.4, 0.6])


def test_floor_takes_the_time_of_the_size_below():
    cost = StepCost([2, 4, 8], [0.1, 0.2, 0.6], "floor")
    assert cost.seconds([1, 2, 3, 4, 7, 8]).tolist() == [0.1, 0.1, 0.1, 0.2, 0.2, 0.6]


def test_below_the_first_size_the_first_time_holds():
    assert StepCost([8, 16], [0.1, 0.2]).seconds([0, 1, 7]).tolist() == [0.1, 0.1, 0.1]


@pytest.mark.parametrize("interpolation", ["linear", "floor"])
def test_beyond_the_last_size_the_last_marginal_cost_goes_on_and_is_marked(interpolation):
    cost = StepCost([8, 16], [0.1, 0.2], interpolation)
    assert cost.seconds([24, 32]).tolist() == pytest.approx([0.3, 0.4])
    assert cost.measured([1, 16, 17]).tolist() == [True, True, False]
    assert cost.measured_to == 16


def test_a_plateau_at_the_end_does_not_make_further_tokens_free():
    assert StepCost([1, 2, 3], [0.1, 0.2, 0.2]).last_marginal == pytest.approx(0.05)
    assert StepCost([1, 2], [0.1, 0.1]).last_marginal == 0
    assert StepCost([5], [0.1]).seconds([1, 50]).tolist() == [0.1, 0.1]


def test_only_measured_sizes_of_a_curve_are_used():
    curve = CostCurve(
        batch_tokens=[1, 8, 64, 512],
        seconds=[0.1, 0.2, 0.3, 9.0],
        status=["measured", "unsupported", "measured", "extrapolated"],
        interpolation="floor",
    )
    cost = StepCost.from_curve(curve)
    assert cost is not None
    assert cost.batch_tokens.tolist() == [1, 64]
    assert cost.measured_to == 64
    assert cost.interpolation == "floor"


def test_a_curve_without_statuses_was_measured():
    cost = StepCost.from_curve(CostCurve(batch_tokens=[1, 2], seconds=[0.1, 0.2]))
    assert cost is not None
    assert cost.measured_to == 2


@pytest.mark.parametrize("status", ["flat", "stale", "extrapolated", "unsupported"])
def test_a_curve_that_holds_nothing_measured_is_no_curve(status):
    curve = CostCurve(batch_tokens=[1, 2], seconds=[0.1, 0.1], status=[status, status])
    assert StepCost.from_curve(curve) is None
    assert StepCost.from_curve(None) is None


@pytest.mark.parametrize(
    ("sizes", "seconds"),
    [([], []), ([1, 1], [0.1, 0.2]), ([0], [0.1]), ([1, 2], [0.2, 0.1]), ([1], [np.nan])],
)
def test_a_table_that_breaks_the_contract_is_refused(sizes, seconds):
    with pytest.raises(ContractError, match="cost"):
        StepCost(sizes, seconds)
