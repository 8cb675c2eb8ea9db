"""Exploration rests where a label would cost too much, and its propensity stays the one that was used."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving_adapter.exploration_budget import ExplorationBudget
from serving_adapter.parameters import half_precision
from serving_adapter.step_cost import StepCost

FREE = StepCost([1, 4096], [0.03, 0.03])
STEEP = StepCost([1, 4096], [0.0001, 0.4096])


def test_where_tokens_are_free_nothing_is_lowered() -> None:
    assert ExplorationBudget(0.001, 7).probability(0.05, 256, FREE) == half_precision(0.05)


def test_without_a_curve_nothing_is_a_reason_not_to_explore() -> None:
    assert ExplorationBudget(0.001, 7).probability(0.05, 256, None) == half_precision(0.05)


def test_a_tiny_budget_stops_exploration_altogether() -> None:
    assert ExplorationBudget(1e-6, 7).probability(0.01, 256, STEEP) == 0.0


def test_drafts_that_are_verified_in_full_anyway_cost_nothing_to_explore() -> None:
    budget = ExplorationBudget(1e-6, 7)
    for _ in range(400):
        budget.observe(7.0)
    assert budget.probability(0.01, 4, STEEP) == half_precision(0.01)


@given(
    share=st.floats(1e-4, 0.1),
    wanted=st.floats(0.001, 0.2),
    requests=st.integers(1, 512),
    length=st.floats(0, 7),
)
def test_the_expected_extra_time_stays_within_the_budget(share, wanted, requests, length) -> None:
    budget = ExplorationBudget(share, 7)
    for _ in range(300):
        budget.observe(length)
    chosen = budget.probability(wanted, requests, STEEP)
    assert 0.0 <= chosen <= half_precision(wanted) * 1.001
    extra = chosen * requests * (7 - length)
    batch = requests * (1 + length)
    now, then = STEEP.seconds([batch, batch + max(extra, 1e-9)])
    assert then / now - 1.0 <= share * 1.05 + 1e-9 or np.isclose(chosen, 0.0)


def test_a_senseless_share_is_named() -> None:
    with pytest.raises(ValueError, match="share: got 0"):
        ExplorationBudget(0, 7)
