"""Few requests: wider intervals, then none, and never an ``ok``."""

import numpy as np
import pytest

from calibrator.core.bootstrap import ece_interval
from calibrator.core.clusters import labelled_requests, t_quantile, t_widening
from calibrator.core.debiased_ece import debiased_ece
from calibrator.core.judge import judge
from calibrator.core.record import figures_of_record
from calibrator.core.report import position_report
from serving_adapter.contract import Rounds


def rows(requests, each=500, seed=0):
    random = np.random.default_rng(seed)
    n = requests * each
    return Rounds.build(
        np.zeros((n, 1)), random.random(n) < 0.6, request=np.repeat(np.arange(requests), each)
    )


@pytest.mark.parametrize("requests", [1, 2, 9])
def test_below_ten_requests_there_is_no_interval_and_no_ok(requests):
    rounds = rows(requests)
    half = np.full((len(rounds), 1), 0.5)
    (figure,) = figures_of_record(half, rounds)
    assert figure.requests == requests
    assert figure.ece == pytest.approx(0.1, abs=0.04)
    assert (figure.ece_low, figure.ece_high, figure.gap_low, figure.gap_high) == (None,) * 4
    assert figure.status == "insufficient"
    assert position_report(half, rounds)[0].status == "insufficient"
    interval = ece_interval(half, rounds.accepted[:, None] > 0, rounds.request).mean
    assert interval.estimate is not None
    assert (interval.low, interval.high) == (None, None)
    judged = judge(rounds, half, half + 0.1, weights=np.ones(len(rounds)))
    assert judged.log_loss_difference < 0
    assert judged.log_loss_low is None
    assert not judged.better


def test_ten_requests_have_intervals_of_students_t():
    rounds = rows(10)
    (figure,) = figures_of_record(np.full((len(rounds), 1), 0.5), rounds)
    assert figure.status == "ok"
    means = (0.5 - rounds.accepted).reshape(10, 500).mean(axis=1)
    half = t_quantile(0.95, 10) * means.std(ddof=1) / np.sqrt(10)
    assert figure.gap_high - figure.gap == pytest.approx(half)
    assert figure.ece_low < figure.ece < figure.ece_high


def test_where_every_row_is_its_own_request_hardly_anything_changes():
    assert t_widening(0.95, 4000) == pytest.approx(1.0, abs=1e-3)
    with pytest.raises(ValueError, match="requests: got 1"):
        t_quantile(0.95, 1)


def test_requests_count_where_they_bear_labels():
    mask = [[True, False], [True, True], [False, False]]
    assert labelled_requests([4, 4, 5], mask).tolist() == [1, 1]


def test_widening_moves_both_ends_out():
    x, shares, covariance = np.linspace(0.05, 0.95, 10), np.full(10, 0.1), np.eye(10) * 0.02**2
    narrow = debiased_ece(x, shares, np.full(10, 0.1), covariance)
    wide = debiased_ece(x, shares, np.full(10, 0.1), covariance, widening=1.3)
    assert wide.estimate == pytest.approx(narrow.estimate)
    assert wide.low < narrow.low
    assert wide.high > narrow.high
