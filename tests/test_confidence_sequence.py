"""Intervals that may be watched for ever."""

import numpy as np
import pytest

from calibrator.core.confidence_sequence import Interval, half_width, interval


def ever_missed(rng, alpha, scale, looks):
    """One sequence of normal draws, looked at after each; was the mean ever outside?"""
    draws = rng.standard_normal(looks)
    n = np.arange(1, looks + 1)
    means = np.cumsum(draws) / n
    return any(
        abs(mean) > half_width(1.0 / count, alpha, scale) for mean, count in zip(means, n, strict=True)
    )


def test_the_truth_is_missed_at_any_look_no_more_often_than_alpha():
    rng = np.random.default_rng(0)
    missed = sum(ever_missed(rng, 0.1, 0.1, 1000) for _ in range(400))
    assert missed <= 40 + 3 * np.sqrt(400 * 0.1 * 0.9)


def test_an_ordinary_interval_misses_far_more_often():
    rng = np.random.default_rng(0)
    n = np.arange(1, 1001)
    means = np.cumsum(rng.standard_normal((400, 1000)), axis=1) / n
    assert (np.abs(means) > 1.645 / np.sqrt(n)).any(axis=1).mean() > 0.5


def test_it_narrows_with_the_variance_and_widens_with_confidence_and_few_degrees_of_freedom():
    widths = [half_width(v, 0.05, 0.03) for v in (1e-3, 1e-4, 1e-5)]
    assert widths == sorted(widths, reverse=True)
    assert half_width(1e-4, 0.01, 0.03) > half_width(1e-4, 0.05, 0.03)
    assert half_width(1e-4, 0.05, 0.03, freedom=20) > half_width(1e-4, 0.05, 0.03, freedom=200)
    assert half_width(1e-4, 0.05, 0.03, freedom=1e9) == pytest.approx(half_width(1e-4, 0.05, 0.03), rel=1e-6)


def test_it_is_tightest_relative_to_the_standard_error_near_its_scale():
    variances = np.geomspace(1e-7, 1e-1, 200)
    relative = [half_width(v, 0.05, 0.03) / np.sqrt(v) for v in variances]
    best = variances[int(np.argmin(relative))]
    assert half_width(best, 0.05, 0.03) == pytest.approx(0.03, rel=0.35)


def test_no_variance_no_width():
    assert interval(0.5, 0.0, 0.05, 0.1) == Interval(0.5, 0.5, 0.5)


def test_negation_turns_the_ends_around():
    assert -Interval(1.0, 0.5, 2.0) == Interval(-1.0, -2.0, -0.5)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((1.0, 0.0, 1.0), "alpha"),
        ((1.0, 1.0, 1.0), "alpha"),
        ((1.0, 0.05, 0.0), "scale"),
        ((-1.0, 0.05, 1.0), "variance"),
        ((float("nan"), 0.05, 1.0), "variance"),
    ],
)
def test_what_makes_no_sense_is_named(arguments, named):
    with pytest.raises(ValueError, match=named):
        half_width(*arguments)
