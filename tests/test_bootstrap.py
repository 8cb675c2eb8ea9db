import numpy as np
import pytest

from calibrator.core import bootstrap
from calibrator.core.bootstrap import ece_difference, ece_interval, resample_counts, resampled_ece
from calibrator.core.ece import expected_calibration_error
from calibrator.core.split import held_out


def rows(n=3000, seed=0, gamma=2, per_request=10):
    generator = np.random.default_rng(seed)
    a = generator.random((n, gamma))
    return a, generator.random((n, gamma)) < a, np.arange(n) // per_request


def test_the_estimate_is_the_figure_itself():
    a, y, request = rows()
    interval = ece_interval(a**2, y, request, bins=15, resamples=50)
    for k, position in enumerate(interval.positions):
        assert position.estimate == pytest.approx(expected_calibration_error(a[:, k] ** 2, y[:, k], 15))
    assert interval.mean.estimate == pytest.approx(np.mean([p.estimate for p in interval.positions]))


def test_a_resample_is_the_figure_of_the_drawn_requests():
    a, y, request = rows(200, gamma=1)
    counts = resample_counts(20, 5, seed=3)
    drawn = resampled_ece(a, y, request, 15, counts)
    for row, times in zip(drawn, counts, strict=True):
        picked = np.repeat(np.arange(200), times.astype(int)[request])
        assert row[0] == pytest.approx(expected_calibration_error(a[picked, 0], y[picked, 0], 15))


def test_many_requests_take_the_same_road(monkeypatch):
    a, y, request = rows(600, per_request=2)
    weights = np.random.default_rng(1).random(a.shape)
    dense = ece_interval(a, y, request, weights=weights, mass=np.ones(a.shape), seed=5)
    monkeypatch.setattr(bootstrap, "SPARSE_REQUESTS", 10)
    sparse = ece_interval(a, y, request, weights=weights, mass=np.ones(a.shape), seed=5)
    assert dense.mean.low == pytest.approx(sparse.mean.low)
    assert dense.mean.high == pytest.approx(sparse.mean.high)


def test_the_same_seed_gives_the_same_interval():
    a, y, request = rows(500)
    assert ece_interval(a, y, request, seed=7) == ece_interval(a, y, request, seed=7)


def test_a_real_gain_excludes_zero_and_no_gain_does_not():
    a, y, request = rows(6000)
    better = ece_difference(np.sqrt(a), a, y, request)
    assert better.excludes_zero
    assert better.high < 0
    same = ece_difference(a, a, y, request)
    assert (same.estimate, same.low, same.high) == (0.0, 0.0, 0.0)
    assert not same.excludes_zero


def test_two_equally_good_predictions_are_seldom_told_apart():
    told = 0
    for seed in range(60):
        a, y, request = rows(1000, seed=seed, gamma=1)
        wobble = np.random.default_rng(seed + 1000).random(a.shape) * 1e-3
        told += ece_difference(a, np.clip(a + wobble - 5e-4, 0, 1), y, request, resamples=200).excludes_zero
    assert told <= 9  # 5 % wanted


def test_dependent_rows_widen_the_interval():
    generator = np.random.default_rng(0)
    a = np.repeat(generator.random((100, 1)), 20, axis=0)
    y = np.repeat(generator.random((100, 1)), 20, axis=0) < a**2
    by_request = ece_interval(a, y, np.arange(2000) // 20).mean
    by_round = ece_interval(a, y, np.arange(2000)).mean
    assert by_request.high - by_request.low > 2 * (by_round.high - by_round.low)


def test_nothing_labelled_is_undefined():
    a, y, request = rows(50)
    nothing = ece_difference(a, a, y, request, weights=np.zeros(a.shape))
    assert (nothing.estimate, nothing.low, nothing.high) == (None, None, None)
    assert not nothing.excludes_zero
    empty = ece_interval(np.zeros((0, 2)), np.zeros((0, 2)), np.zeros(0)).mean
    assert empty.estimate is None


def test_the_split_keeps_requests_whole_and_is_nested():
    request = np.repeat(np.random.default_rng(0).integers(0, 2**63, 2000, dtype=np.uint64), 4)
    half, third = held_out(request, 0.5), held_out(request, 0.3)
    for mask in (half, third):
        per_request = mask.reshape(-1, 4)
        assert (per_request.all(axis=1) == per_request.any(axis=1)).all()
    assert half.mean() == pytest.approx(0.5, abs=0.04)
    assert (half | ~third).all()
    other = held_out(request, 0.5, salt=1)
    assert (half & other).mean() == pytest.approx(0.25, abs=0.04)
    assert not held_out(request, 0.0).any()
    assert held_out(request, 1.0).all()
    assert held_out(np.array([], dtype=np.uint64)).shape == (0,)
