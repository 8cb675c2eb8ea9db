"""Smooth ECE against the definition, computed row by row."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrator.core.smooth_ece import smooth_ece, smooth_ece_at


def directly(a, y, bandwidth, weights=None):
    """``integral |mean of (A - a) K(a, t)| dt`` with the reflected Gaussian as a sum over images."""
    t = (np.arange(4000) + 0.5) / 4000
    w = np.ones_like(a) if weights is None else weights
    kernel = np.zeros((len(a), len(t)))
    for image in range(-6, 7):
        for sign in (1, -1):
            kernel += np.exp(-0.5 * ((t - (sign * a[:, None] + 2 * image)) / bandwidth) ** 2)
    kernel /= bandwidth * np.sqrt(2 * np.pi)
    return float(np.abs((w * (y - a)) @ kernel / w.sum()).mean())


def crossing(a, y):
    low, high = 1e-3, 1.0
    for _ in range(14):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if directly(a, y, middle) > middle else (low, middle)
    return middle


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.02, 0.1, 0.5]))
@settings(max_examples=15, deadline=None)
def test_at_a_bandwidth_it_is_the_definition(seed, bandwidth):
    random = np.random.default_rng(seed)
    a, w = random.random(60), random.uniform(0.5, 2.0, 60)
    a[:2] = 0.0, 1.0
    y = (random.random(60) < a**2).astype(float)
    assert smooth_ece_at(a, y, bandwidth, w) == pytest.approx(directly(a, y, bandwidth, w), abs=2e-4)


def test_the_bandwidth_is_the_error_itself():
    random = np.random.default_rng(1)
    a = random.random(100)
    y = (random.random(100) < 0.6 * a).astype(float)
    found = smooth_ece(a, y)
    assert found.error == pytest.approx(found.bandwidth, abs=1e-4)
    assert found.error == pytest.approx(crossing(a, y), abs=1e-3)


def test_repeating_a_row_is_weighing_it():
    random = np.random.default_rng(2)
    a = random.random(50)
    y = (random.random(50) < a).astype(float)
    times = random.integers(1, 4, 50)
    repeated = smooth_ece(np.repeat(a, times), np.repeat(y, times))
    assert smooth_ece(a, y, times).error == pytest.approx(repeated.error, abs=1e-12)


def test_rows_without_a_label_do_not_count():
    assert smooth_ece([0.2, 0.9], [1.0, 0.0], [1.0, 0.0]).error == smooth_ece([0.2], [1.0]).error
    assert smooth_ece([0.2], [1.0], [0.0]).error is None
    with pytest.raises(ValueError, match="labels"):
        smooth_ece([0.2], [1.0, 0.0])


def test_a_perfect_predictor_has_none():
    assert smooth_ece([0.0, 1.0], [0.0, 1.0]).error == 0.0
