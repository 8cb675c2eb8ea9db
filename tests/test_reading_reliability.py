"""Reliability diagrams: the bins of the core, intervals and bands as a statistics library has them."""

import numpy as np
import pytest
from scipy.stats import binomtest

from calibrator.core.windows import WindowSums
from calibrator.service.reading.reliability import EDGES, consistency_band, diagrams, wilson
from tests.reading_rows import raw_sums
from tests.recorded import recorded


@pytest.mark.parametrize(("count", "total"), [(0, 10), (3, 10), (10, 10), (512, 1000)])
def test_the_interval_is_wilsons(count, total):
    low, high = wilson(np.array([count / total]), np.array([float(total)]))
    expected = binomtest(count, total).proportion_ci(method="wilson")
    assert (low[0], high[0]) == pytest.approx((expected.low, expected.high))


def test_bins_without_labels_have_no_interval_and_no_band():
    for low, high in (wilson(np.zeros(1), np.zeros(1)), consistency_band(np.zeros(1), np.zeros(1))):
        assert np.isnan(low).all()
        assert np.isnan(high).all()


def test_the_band_holds_the_observed_rate_of_a_calibrated_predictor_as_often_as_it_says():
    random = np.random.default_rng(0)
    chance, labels = random.random(4000), 80
    observed = random.binomial(labels, chance) / labels
    low, high = consistency_band(chance, np.full(4000, float(labels)))
    assert 0.94 <= ((low <= observed) & (observed <= high)).mean() <= 0.99


def test_real_traffic_lies_outside_of_the_band_where_the_head_is_wrong():
    drawn = diagrams(raw_sums(recorded("typical").take(slice(0, 6000))))
    bins = drawn.figures.bins
    outside = (bins.observed < drawn.band_low) | (bins.observed > drawn.band_high)
    assert outside[0][bins.n_eff[0] > 50].mean() > 0.5
    known = bins.n_eff > 0
    assert (drawn.observed_low[known] <= bins.observed[known] + 1e-12).all()
    assert (bins.observed[known] <= drawn.observed_high[known] + 1e-12).all()
    assert bins.mass.sum(axis=1) == pytest.approx(np.ones(7))


def test_nothing_is_drawn_of_nothing():
    drawn = diagrams(WindowSums.zeros(3))
    assert np.isnan(drawn.figures.ece).all()
    assert drawn.figures.status.tolist() == ["insufficient"] * 3
    assert not drawn.figures.bins.mass.any()


def test_bins_are_twenty_of_equal_width():
    assert EDGES[0] == 0
    assert EDGES[-1] == 1
    assert np.diff(EDGES) == pytest.approx(np.full(20, 0.05))
