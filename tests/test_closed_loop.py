"""Refit on what the last fit let through, ten times: naive labels spiral, ours do not."""

import numpy as np
import pytest

from calibrator.core.affine import fit_affine
from calibrator.core.labels import at_risk, prefix_labels
from calibrator.core.propensity import inclusion_weights
from calibrator.core.temperature import fit_temperatures
from serving_adapter.contract import conditional_confidence, prefix_survival
from tests.recorded import recorded, truncate

REFRESHES = 10


def trimmed_is_rejected(rounds):
    return fit_temperatures(rounds.logits, prefix_labels(rounds)).temperatures, np.zeros(7)


def verified_and_weighted(rounds):
    fit = fit_temperatures(rounds.logits, prefix_labels(rounds), weights=inclusion_weights(rounds))
    return fit.temperatures, np.zeros(7)


def affine(rounds):
    fit = fit_affine(rounds.logits, prefix_labels(rounds), at_risk(rounds))
    return fit.temperatures, fit.offsets


def accepted_per_round(name, refit, threshold, explore=0.0):
    """Accepted drafts a round before the first refresh and after each; verified while a_k > threshold."""
    full = recorded(name)
    temperatures, offsets, accepted = np.ones(7), np.zeros(7), []
    for refresh in range(REFRESHES + 1):
        survival = prefix_survival(conditional_confidence(full.logits, temperatures, offsets))
        scheduled = (survival > threshold).sum(axis=1)
        accepted.append(np.minimum(full.accepted, scheduled).mean())
        temperatures, offsets = refit(truncate(full, scheduled, explore, seed=refresh))
    return accepted


@pytest.mark.parametrize(("name", "left"), [("dspark", 0.75), ("typical", 0.85)])
def test_trimmed_counted_as_rejected_spirals(name, left):
    accepted = accepted_per_round(name, trimmed_is_rejected, 0.3)
    assert accepted[-1] < left * accepted[0]
    assert accepted[2] < accepted[1] < accepted[0]


@pytest.mark.parametrize("name", ["dspark", "typical"])
def test_verified_positions_with_exploration_do_not(name):
    accepted = accepted_per_round(name, verified_and_weighted, 0.3, explore=0.05)
    assert min(accepted) > 0.9 * accepted[0]
    assert np.mean(accepted[6:]) > 0.97 * np.mean(accepted[1:6])


@pytest.mark.parametrize("name", ["dspark", "typical"])
def test_the_affine_form_settles_at_once_even_without_exploration(name):
    accepted = accepted_per_round(name, affine, 0.3)
    assert accepted[1:] == pytest.approx([accepted[1]] * REFRESHES, rel=0.02)


def test_the_affine_form_gains_where_the_head_is_wrong():
    accepted = accepted_per_round("typical", affine, 0.3)
    assert accepted[-1] > 1.03 * accepted[0]
