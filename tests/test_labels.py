import numpy as np
import pytest

from calibrator.core.labels import at_risk, drafted, included, prefix_labels
from calibrator.core.likelihood import newton_sums
from calibrator.core.report import position_report
from calibrator.core.temperature import fit_temperatures
from serving_adapter.contract import Rounds


def one(accepted, **columns):
    return Rounds.build([[0.5] * 5], [accepted], **{name: [value] for name, value in columns.items()})


def test_two_verified_of_five_teach_nothing_about_the_rest():
    rounds = one(1, verified=2)
    assert included(rounds).tolist() == [[True, True, False, False, False]]
    assert prefix_labels(rounds)[0, :2].tolist() == [1, 0]
    assert at_risk(rounds).tolist() == [[True, True, False, False, False]]


@pytest.mark.parametrize("accepted", [0, 1, 2])
def test_what_is_behind_verified_reaches_no_figure(accepted):
    short = one(accepted, verified=2)
    for k, report in enumerate(position_report([[0.9, 0.8, 0.7, 0.6, 0.5]], short)):
        assert report.n == (1 if k < 2 else 0)
        assert (report.ece is None) == (k >= 2)
    fit = fit_temperatures(short.logits, prefix_labels(short), included(short))
    assert fit.statuses[2:] == ("censored",) * 3
    sums = newton_sums(short.logits, prefix_labels(short), at_risk(short), 1.0, np.zeros(5))
    assert sums.gradient[3:].tolist() == [0.0, 0.0, 0.0]


def test_a_position_is_at_risk_while_everything_before_it_was_accepted():
    assert at_risk(one(2)).tolist() == [[True, True, True, False, False]]
    assert at_risk(one(0)).tolist() == [[True, False, False, False, False]]
    assert at_risk(one(5)).all()


def test_a_stop_in_the_draft_ends_the_traffic_whatever_the_outcome():
    for accepted in (0, 3, 5):
        rounds = one(accepted, draft_stop=2)  # the third token
        assert drafted(rounds).tolist() == [[True, True, True, False, False]]
        assert drafted(rounds, "keep").all()


def test_the_biased_rule_of_the_peer_depends_on_the_outcome():
    assert drafted(one(2, draft_stop=2), "accepted_stop").all()
    assert drafted(one(3, draft_stop=2), "accepted_stop").tolist() == [[True, True, True, False, False]]


def test_an_unknown_rule_is_named():
    with pytest.raises(ValueError, match="end_of_sequence: got 'never'"):
        drafted(one(1), "never")


def test_free_labels_count_for_the_likelihood_and_not_for_the_figure():
    rounds = one(2, verified=2, scheduled=2, resolved=4, resolved_accepted=3)
    assert included(rounds).tolist() == [[True, True, False, False, False]]
    assert at_risk(rounds).tolist() == [[True, True, True, True, False]]
    assert prefix_labels(rounds)[0, :4].tolist() == [1, 1, 1, 0]
