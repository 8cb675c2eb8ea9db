"""A claimed exploration is checked against what rows show."""

import numpy as np
import pytest

from calibrator.core.explored_share import explored_share
from calibrator.core.judge import judge
from calibrator.core.record import figures_of_record
from serving_adapter.contract import Rounds, prefix_survival, sigmoid


def explored(truth, claim, n=4000, per_request=1, seed=0):
    random = np.random.default_rng(seed)
    z = random.normal(size=(n, 3))
    accepted = np.cumprod(random.random(z.shape) < sigmoid(z), axis=1).sum(axis=1)
    owner = np.arange(n) // per_request
    chosen = random.random(n) < truth
    verified = np.where(chosen, 3, 1)
    return Rounds.build(
        z,
        np.minimum(accepted, verified),
        verified=verified,
        scheduled=np.ones(n),
        request=owner,
        explore=np.full(n, claim),
    )


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("e", [0.001, 0.01, 0.2])
def test_a_right_column_is_believed(seed, e):
    assert not explored_share(explored(e, e, per_request=20, seed=seed)).contradicted


@pytest.mark.parametrize(("truth", "claim"), [(0.1, 0.01), (0.01, 0.1), (0.0, 0.05)])
def test_a_wrong_one_is_named_with_both_figures_and_nothing_that_rests_on_it_is_ok(truth, claim):
    rounds = explored(truth, claim)
    share = explored_share(rounds)
    assert share.contradicted
    assert f"{share.claimed:.4g}" in share.note
    assert f"{share.seen:.4g}" in share.note
    survival = prefix_survival(sigmoid(rounds.logits))
    figures = figures_of_record(survival, rounds)
    assert [f.status != "ok" for f in figures] == [False, True, True]
    judged = judge(rounds, survival, survival**2, weights=np.ones(len(rounds)))
    assert judged.ece_difference is None
    assert judged.log_loss_difference > 0


def test_nothing_claimed_is_nothing_contradicted():
    assert not explored_share(explored(0.1, 0.0)).contradicted
    assert not explored_share(explored(0.1, 0.0, n=0)).contradicted


def test_a_figure_that_rests_on_exploration_needs_three_hundred_explored_rounds():
    for n, word in ((1500, "insufficient"), (4500, "ok")):
        rounds = explored(0.1, 0.1, n=n)
        figures = figures_of_record(prefix_survival(sigmoid(rounds.logits)), rounds)
        assert figures[0].status == "ok"
        assert figures[1].n_eff > 100
        assert {f.status for f in figures[1:]} == {word}
        assert (figures[1].enough >= 1.0) == (word == "ok")


def test_partly_trimmed_traffic_without_exploration_is_censored():
    rounds = explored(0.5, 0.0)
    figures = figures_of_record(prefix_survival(sigmoid(rounds.logits)), rounds)
    assert [f.status for f in figures] == ["ok", "censored", "censored"]
