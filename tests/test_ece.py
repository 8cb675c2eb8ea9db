import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrator.core.ece import (
    bin_index,
    ece_bounds,
    expected_calibration_error,
    noise_floor,
    reliability,
)


def test_bins_are_closed_on_the_left_and_one_falls_in_the_last():
    assert bin_index([0.0, 0.05, 0.9499999, 0.95, 1.0], 20).tolist() == [0, 1, 18, 19, 19]


def test_a_prediction_equal_to_the_rate_of_its_bin_has_no_error():
    assert expected_calibration_error([0.5] * 4, [0, 1, 0, 1], bins=20) == 0.0


def test_three_rows_and_twenty_bins():
    table = reliability([0.1, 0.5, 1.0], [0, 1, 1], bins=20)
    assert table.ece == pytest.approx((0.1 + 0.5 + 0.0) / 3)
    assert table.noise_floor == 0.0
    assert np.isnan(table.debiased_squared_error)  # one label a bin says nothing about its own noise


def test_probabilities_of_exactly_zero_and_one():
    assert expected_calibration_error([0.0, 1.0], [0, 1], bins=15) == 0.0
    assert expected_calibration_error([0.0, 1.0], [1, 0], bins=15) == 1.0


def test_rows_of_weight_zero_have_no_label():
    assert expected_calibration_error([0.2, 0.2], [0, 1], 10, weights=[1, 0]) == pytest.approx(0.2)


def test_only_ratios_of_weights_matter():
    generator = np.random.default_rng(0)
    p, y, w = generator.random(300), generator.integers(0, 2, 300), generator.random(300)
    assert expected_calibration_error(p, y, 15, w) == pytest.approx(
        expected_calibration_error(p, y, 15, 7 * w), rel=1e-12
    )


def test_bin_masses_come_from_all_drafted_rows():
    # One of two rows at 0.2 is labelled, and one of one at 0.8.
    error = expected_calibration_error([0.2, 0.2, 0.8], [0, 0, 0], 10, [1, 0, 1], mass=[1, 1, 1])
    assert error == pytest.approx(2 / 3 * 0.2 + 1 / 3 * 0.8)


def test_mass_without_labels_is_said_and_not_made_up():
    table = reliability([0.2, 0.8], [0, 0], 10, weights=[1, 0], mass=[1, 3])
    assert table.supported_mass == pytest.approx(0.25)
    assert table.ece == pytest.approx(0.2)


def test_no_labels_no_figure():
    table = reliability([0.2, 0.8], [0, 0], 10, weights=[0, 0], mass=[1, 1])
    assert np.isnan([table.ece, table.noise_floor, table.debiased_squared_error]).all()
    assert table.supported_mass == 0.0


def test_the_noise_floor_is_what_a_calibrated_predictor_reads():
    generator = np.random.default_rng(1)
    read, floor = [], []
    for _ in range(40):
        p = generator.random(10_000)
        y = generator.random(10_000) < p
        read.append(expected_calibration_error(p, y, 20))
        floor.append(noise_floor(p, y, 20))
    assert np.mean(read) == pytest.approx(np.mean(floor), rel=0.05)
    assert 0.01 < np.mean(read) < 0.02


def test_the_debiased_squared_error_of_a_calibrated_predictor_is_zero_on_average():
    generator = np.random.default_rng(2)
    figures = []
    for _ in range(60):
        p = np.full(200, 0.3)
        figures.append(reliability(p, generator.random(200) < 0.3, 20).debiased_squared_error)
    assert abs(np.mean(figures)) < 3 * np.std(figures) / np.sqrt(len(figures))
    assert min(figures) < 0


def test_the_debiased_squared_error_finds_a_gap():
    generator = np.random.default_rng(3)
    y = generator.random(50_000) < 0.5
    assert reliability(np.full(50_000, 0.6), y, 20).debiased_squared_error == pytest.approx(0.01, rel=0.2)


def test_bounds_hold_every_completion_of_the_labels():
    generator = np.random.default_rng(4)
    p, y, missing = generator.random(400), generator.integers(0, 2, 400), generator.random(400) < 0.3
    least, most = ece_bounds(p, np.where(missing, 0, y), np.where(missing, 1, y), 10)
    for filling in (y, np.zeros(400), np.ones(400), generator.integers(0, 2, 400)):
        complete = np.where(missing, filling, y)
        assert least - 1e-12 <= expected_calibration_error(p, complete, 10) <= most + 1e-12


@given(
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 1), st.floats(0, 5)), min_size=1, max_size=60),
    st.integers(1, 32),
)
def test_figures_lie_in_their_range_and_do_not_depend_on_row_order(rows, bins):
    p, y, w = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    w = np.where(w < 1e-100, 0.0, w)
    table = reliability(p, y, bins, w)
    backwards = reliability(p[::-1], y[::-1], bins, w[::-1])
    if (w > 0).any():
        assert 0 <= table.ece <= 1 + 1e-12
        assert table.noise_floor >= 0
        assert table.ece == pytest.approx(backwards.ece, abs=1e-12)
        assert table.mass.sum() == pytest.approx(1)
    else:
        assert np.isnan(table.ece)


def test_wrong_shapes_are_named():
    with pytest.raises(ValueError, match="labels"):
        expected_calibration_error([0.1, 0.2], [1], 15)
    with pytest.raises(ValueError, match="bins"):
        expected_calibration_error([0.1], [1], 0)
