"""Temperatures that borrow: found by themselves where rows are ample, taken from the others where not."""

import numpy as np
import pytest
from scipy.optimize import minimize

from calibrator.core.likelihood import fit_temperatures_by_likelihood
from calibrator.core.shared_temperature import TemperaturePrior, fit_shared_temperatures
from serving_adapter.contract import sigmoid

TRUTH = np.array([0.6, 1.0, 2.5, 1.5])


def traffic(truth, rows, seed=0):
    """Logits, outcomes, and who is at risk: the first ``rows[k]`` rows at position k."""
    generator = np.random.default_rng(seed)
    z = generator.normal(0.5, 2.0, size=(max(rows), len(truth)))
    return z, generator.random(z.shape) < sigmoid(z / truth), np.arange(len(z))[:, None] < rows


@pytest.mark.parametrize("in_force", [1.0, 0.25, 8.0])
def test_the_mode_is_that_of_a_general_optimiser(in_force):
    z, outcome, seen = traffic(TRUTH, [900, 300, 60, 8])
    current = in_force * np.array([1.0, 1.2, 0.9, 1.0])
    prior = TemperaturePrior(0.3, 0.7)
    # Of the shifts: independent ones, and one in common.
    covariance = 0.3**2 * np.eye(4) + 0.7**2

    def loss(log_t):
        x = z / np.exp(log_t)
        shift = log_t - np.log(current)
        likelihood = np.where(seen, np.logaddexp(0.0, np.where(outcome, -x, x)), 0.0).sum()
        return likelihood + 0.5 * shift @ np.linalg.solve(covariance, shift)

    best = minimize(loss, np.zeros(4), method="BFGS", options={"gtol": 1e-7})
    ours = fit_shared_temperatures(z, outcome, seen, current=current, prior=prior)
    assert np.log(ours.temperatures) == pytest.approx(best.x, abs=1e-4)


def test_ample_rows_find_temperatures_far_apart():
    z, outcome, seen = traffic(TRUTH, [20_000] * 4)
    ours = fit_shared_temperatures(z, outcome, seen)
    alone = fit_temperatures_by_likelihood(z, outcome, seen)
    deviation = np.abs(np.log(ours.temperatures / TRUTH))
    assert (deviation < 4 * np.array(ours.standard_errors)).all()
    assert ours.temperatures == pytest.approx(alone.temperatures, rel=0.02)
    assert ours.standard_errors == pytest.approx(alone.standard_errors, rel=0.05)
    assert ours.statuses == ("ok",) * 4


def test_a_position_with_few_rows_moves_with_the_others_from_what_is_in_force():
    z, outcome, seen = traffic([2.0, 2.0, 2.0, 2.0], [20_000, 20_000, 3, 0])
    from_identity = fit_shared_temperatures(z, outcome, seen)
    assert from_identity.temperatures == pytest.approx([2.0] * 4, rel=0.2)
    assert from_identity.statuses[3] == "censored"
    # The last two were set apart by a factor: the others have doubled, and so do they.
    apart = fit_shared_temperatures(z, outcome, seen, current=[1.0, 1.0, 1.5, 1.5])
    assert apart.temperatures[3] == pytest.approx(3.0, rel=0.1)
    assert from_identity.standard_errors[3] > 0.25 > from_identity.standard_errors[0]


def test_where_nothing_was_seen_everything_stays():
    z = np.ones((5, 3))
    ours = fit_shared_temperatures(z, z, np.zeros_like(z), current=[1.0, 1.5, 0.7])
    assert ours.temperatures == pytest.approx((1.0, 1.5, 0.7), rel=1e-12)
    assert ours.statuses == ("censored",) * 3


def test_equal_outcomes_and_the_border_are_named():
    z = np.full((4000, 2), 8.0)
    outcome = np.column_stack([np.arange(4000) % 2, np.ones(4000)])
    ours = fit_shared_temperatures(z, outcome, np.ones_like(z))
    assert ours.statuses == ("at_grid_edge", "degenerate")
    assert ours.temperatures[0] == pytest.approx(10.0, rel=1e-12)
    assert 0.1 < ours.temperatures[1] < 10.0  # what outcomes cannot tell the prior holds
    assert ours.standard_errors[0] is None


def test_a_weight_of_two_is_a_row_twice():
    z, outcome, seen = traffic(TRUTH, [300, 200, 100, 30])
    weights = np.where(np.arange(300) < 100, 2.0, 1.0)[:, None] * np.ones(4)
    twice = np.concatenate([np.arange(300), np.arange(100)])
    weighted = fit_shared_temperatures(z, outcome, seen, weights)
    repeated = fit_shared_temperatures(z[twice], outcome[twice], seen[twice])
    assert weighted.temperatures == pytest.approx(repeated.temperatures, rel=1e-8)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"current": [1.0]}, "current: got"),
        ({"current": [1.0, 0.0]}, "current"),
        ({"bounds": (2, 1)}, "bounds"),
    ],
)
def test_what_is_no_temperature_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        fit_shared_temperatures(np.ones((2, 2)), np.ones((2, 2)), np.ones((2, 2)), **settings)


def test_a_prior_without_a_spread_is_refused():
    with pytest.raises(ValueError, match="common_spread: got inf"):
        TemperaturePrior(0.3, np.inf)
