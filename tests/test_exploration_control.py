"""Exploration: raised while something is not known, lowered when it is, nothing under saturation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrator.core.exploration import (
    ExplorationRules,
    decide_exploration,
    exploration_cost,
    trimmed_tokens,
)
from serving_adapter.contract import Rounds
from serving_adapter.step_cost import StepCost

statuses = st.lists(st.sampled_from(["ok", "insufficient", "censored", "degenerate"]), min_size=1, max_size=8)


@given(st.floats(0, 1), statuses, st.none() | st.floats(0, 1), st.floats(0, 7), st.floats(0, 7))
def test_it_stays_within_its_bounds(current, known, saturation, extra, verified):
    rules = ExplorationRules()
    decision = decide_exploration(
        current, known, saturation=saturation, extra_per_round=extra, verified_per_round=verified, rules=rules
    )
    assert 0.0 <= decision.explore <= rules.ceiling
    assert decision.reason
    if extra > 0 and verified > 0:
        assert decision.explore * extra <= rules.max_extra_share * verified * (1 + 1e-9)


def test_it_is_raised_until_everything_is_known_and_lowered_afterwards():
    explore, path = 0.01, []
    for _ in range(5):
        explore = decide_exploration(explore, ["ok", "insufficient"]).explore
        path.append(explore)
    assert path == [0.02, 0.04, 0.08, 0.1, 0.1]
    for _ in range(5):
        explore = decide_exploration(explore, ["ok", "ok"]).explore
    assert explore == 0.01


def test_saturation_stops_it_and_comes_back_lower():
    decide = decide_exploration
    assert decide(0.04, ["censored"], saturation=0.96).explore == 0.0
    assert decide(0.0, ["censored"], saturation=0.9).explore == 0.0
    assert decide(0.04, ["censored"], saturation=0.9).explore == 0.08
    assert decide(0.0, ["censored"], saturation=0.5, before_saturation=0.04).explore == 0.04
    assert decide(0.0, ["ok"], saturation=0.5).explore == 0.01


def test_the_reason_names_the_positions_and_what_held_it():
    decision = decide_exploration(
        0.05, ["ok", "censored", "insufficient"], extra_per_round=4.0, verified_per_round=2.0
    )
    assert decision.explore == pytest.approx(0.025)
    assert "position 2, 3 are not known" in decision.reason
    assert "budget" in decision.reason


def test_the_cost_is_what_the_curve_says():
    rounds = Rounds.build(np.zeros((4, 5)), [0] * 4, verified=[1, 1, 3, 3])
    survival = np.tile(0.5 ** np.arange(1, 6), (4, 1))
    assert trimmed_tokens(rounds) == (3.0, 2.0)
    flat = exploration_cost(0.1, rounds, survival, requests=8, cost=StepCost([1, 1000], [0.1, 0.1]))
    assert flat.extra_verified == pytest.approx(0.3)
    assert flat.extra_share == pytest.approx(0.15)
    assert flat.tokens_per_second > 0  # nothing dearer, some more accepted
    steep = exploration_cost(0.1, rounds, survival, requests=8, cost=StepCost([1, 1000], [0.001, 1.0]))
    assert steep.relative_speed < 0
    assert exploration_cost(0.1, rounds, survival).tokens_per_second is None
    assert exploration_cost(0.0, rounds, survival, cost=StepCost([1, 9], [0.1, 0.9])).relative_speed == 0.0


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="ceiling"):
        ExplorationRules(floor=0.2, ceiling=0.1)
    with pytest.raises(ValueError, match="step"):
        ExplorationRules(step=1.0)
    with pytest.raises(ValueError, match="explore"):
        exploration_cost(1.5, Rounds.build([[0.0]], [1]), np.ones((1, 1)))


def test_with_a_floor_of_nothing_it_still_rises_from_nothing():
    rules = ExplorationRules(floor=0.0)
    decision = decide_exploration(0.0, ["censored"], rules=rules)
    assert decision.explore == 0.01
    assert decision.reason.startswith("raised")
    held = decide_exploration(0.0, ["censored"], rules=ExplorationRules(floor=0.0, ceiling=0.0))
    assert held.explore == 0.0
    assert "raised" not in held.reason


def test_the_budget_holds_where_nothing_is_verified():
    decision = decide_exploration(0.05, ["censored"], extra_per_round=4.0, verified_per_round=0.0)
    assert decision.explore == 0.0
    assert "budget" in decision.reason


@pytest.mark.parametrize(
    "name", ["current", "extra_per_round", "verified_per_round", "saturation", "before_saturation", "n_eff"]
)
def test_what_is_no_number_is_named(name):
    given = {"current": 0.01, "statuses": ["ok"]}
    given[name] = [float("nan")] if name == "n_eff" else float("nan")
    with pytest.raises(ValueError, match=f"{name}: got nan"):
        decide_exploration(**given)


def test_rounds_that_are_scheduled_in_full_trim_nothing_whatever_rounding_says():
    rounds = Rounds.build(np.zeros((1000, 7)), np.zeros(1000))
    for seed in range(200):
        weights = np.random.default_rng(seed).uniform(0.1, 3.0, 1000)
        assert trimmed_tokens(rounds, weights)[0] >= 0.0
