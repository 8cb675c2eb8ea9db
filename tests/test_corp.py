"""The isotonic reliability curve against scikit-learn, its band against simulation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression
from sklearn.metrics import brier_score_loss

from calibrator.core.corp import corp_curve


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_the_curve_is_scikit_learns(seed):
    random = np.random.default_rng(seed)
    a = np.round(random.random(200), 2)
    w = random.uniform(0.1, 3.0, 200)
    y = (random.random(200) < a**2).astype(float)
    curve = corp_curve(a, y, w, resamples=2)
    oracle = IsotonicRegression(out_of_bounds="clip").fit(a, y, sample_weight=w)
    assert curve.observed == pytest.approx(oracle.predict(curve.predicted), abs=1e-9)
    assert curve.weight.sum() == pytest.approx(w.sum())


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_the_parts_of_the_brier_score_add_up_and_are_not_negative(seed):
    random = np.random.default_rng(seed)
    a, y = random.random(150), (random.random(150) < 0.5).astype(float)
    curve = corp_curve(a, y, resamples=2)
    assert curve.brier == pytest.approx(brier_score_loss(y, a))
    parts = curve.miscalibration - curve.discrimination + curve.uncertainty
    assert parts == pytest.approx(curve.brier)
    assert curve.miscalibration >= -1e-12
    assert curve.discrimination >= -1e-12
    assert (np.diff(curve.observed) >= -1e-12).all()


def test_the_band_holds_a_calibrated_curve_and_not_a_wrong_one():
    inside = []
    for seed in range(20):
        random = np.random.default_rng(seed)
        a = random.random(1000)
        curve = corp_curve(a, random.random(1000) < a, confidence=0.9, resamples=100)
        inside.append(((curve.low <= curve.observed) & (curve.observed <= curve.high)).mean())
    assert 0.83 < np.mean(inside) < 0.97
    wrong = corp_curve(a, random.random(1000) < 0.5 * a, resamples=100)
    assert ((wrong.low <= wrong.observed) & (wrong.observed <= wrong.high)).mean() < 0.5


def test_many_distinct_predictions_are_gathered_in_cells():
    random = np.random.default_rng(0)
    a = random.random(20_000)
    curve = corp_curve(a, random.random(20_000) < a, resamples=2)
    assert len(curve.predicted) <= 2000
    assert (np.diff(curve.predicted) > 0).all()


def test_without_a_label_there_is_no_curve():
    assert corp_curve([0.5], [1.0], [0.0]) is None
    with pytest.raises(ValueError, match="weights"):
        corp_curve([0.5], [1.0], [1.0, 1.0])
