import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrator.core import gridsearch
from calibrator.core.ece import expected_calibration_error
from calibrator.core.gridsearch import PositionColumns, exact_ece, grid_ece
from calibrator.core.temperature import DEEPSPEC_GRID, PEER_GRID, fit_temperatures, parse_grid
from serving_adapter.contract import sigmoid


def head(rows, gamma, true_temperature=1.0, seed=0):
    """Logits whose conditional acceptance is ``sigmoid(z / true_temperature)``, and prefix labels."""
    generator = np.random.default_rng(seed)
    z = generator.normal(1.0, 1.5, size=(rows, gamma))
    accepted = generator.random((rows, gamma)) < sigmoid(z / true_temperature)
    return z, np.minimum.accumulate(accepted, axis=1).astype(np.uint8)


def test_grids():
    assert len(PEER_GRID) == 41
    assert PEER_GRID[20] == 1.0
    assert PEER_GRID[0] == np.float32(0.1)
    assert len(DEEPSPEC_GRID) == 257
    assert 1.0 in DEEPSPEC_GRID
    assert (DEEPSPEC_GRID.min(), DEEPSPEC_GRID.max()) == pytest.approx((0.05, 20.0))
    assert parse_grid("sglang").tolist() == PEER_GRID.tolist()
    assert parse_grid("0.1:10:3") == pytest.approx([0.1, 1.0, 10.0])


@pytest.mark.parametrize("text", ["", "1:2", "2:1:5", "a:b:c", "0:1:5", "0.1:10:1", "nan:2:3", "1:2:3:4"])
def test_a_wrong_grid_is_refused_by_name(text):
    with pytest.raises(ValueError, match="grid: got"):
        parse_grid(text)


def test_a_head_overconfident_by_factor_two_is_recovered():
    z, y = head(60_000, 3, true_temperature=2.0)
    fit = fit_temperatures(z, y, grid=parse_grid("0.25:8:121"))
    assert fit.temperatures[0] == pytest.approx(2.0, rel=0.05)
    assert fit.ece_after[0] < 0.2 * fit.ece_before[0]
    assert fit.statuses == ("ok", "ok", "ok")


@pytest.mark.parametrize("seed", range(5))
def test_a_calibrated_head_keeps_its_temperatures_under_the_nearest_rule(seed):
    z, y = head(20_000, 4, seed=seed)
    assert fit_temperatures(z, y, ties="nearest").temperatures == (1.0, 1.0, 1.0, 1.0)


def test_the_nearest_rule_stays_at_the_temperature_in_force():
    z, y = head(4000, 1, true_temperature=1.5, seed=3)
    in_force = [1.4637]
    assert fit_temperatures(z, y, ties="nearest", current=in_force).temperatures == (1.4637,)


def test_equal_labels_leave_the_temperature_unchanged():
    z, _ = head(100, 3)
    for label in (0, 1):
        y = np.full(z.shape, label)
        fit = fit_temperatures(z, y, current=[1.5, 0.7, 1.0])
        assert fit.temperatures == (1.5, 0.7, 1.0)
        assert fit.statuses == ("degenerate",) * 3
        assert np.isfinite(fit.ece_before).all()
        assert np.isfinite(fit.ece_after).all()


def test_a_position_never_verified_is_censored():
    z, y = head(100, 2)
    included = np.ones(z.shape, dtype=bool)
    included[:, 1] = False
    fit = fit_temperatures(z, y, included)
    assert fit.statuses[1] == "censored"
    assert fit.temperatures[1] == 1.0
    assert (fit.ece_before[1], fit.ece_after[1], fit.n_eff[1]) == (None, None, 0.0)


def test_the_border_of_the_grid_is_reported():
    z, y = head(20_000, 1, true_temperature=4.0)
    fit = fit_temperatures(z, y, grid=[0.5, 1.0, 2.0])
    assert (fit.temperatures, fit.statuses) == ((2.0,), ("at_grid_edge",))


def test_labels_outside_the_mask_do_not_matter():
    z, y = head(3000, 3, 1.7)
    included = np.random.default_rng(1).random(z.shape) < 0.7
    assert fit_temperatures(z, y, included) == fit_temperatures(z, np.where(included, y, 1 - y), included)


def test_weight_two_is_two_rows():
    z, y = head(800, 2, 1.7)
    doubled = np.arange(len(z)) < 300
    weighted = fit_temperatures(z, y, weights=np.where(doubled, 2.0, 1.0)[:, None] * np.ones(z.shape))
    repeated = fit_temperatures(np.vstack([z, z[doubled]]), np.vstack([y, y[doubled]]))
    assert weighted.temperatures == repeated.temperatures
    assert weighted.ece_after == pytest.approx(repeated.ece_after, abs=1e-12)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 400), st.integers(1, 5))
def test_the_fit_does_not_depend_on_row_order(seed, rows, gamma):
    z, y = head(rows, gamma, 1.5, seed)
    order = np.random.default_rng(seed).permutation(rows)
    one, other = fit_temperatures(z, y), fit_temperatures(z[order], y[order])
    assert one.ece_after[0] == pytest.approx(other.ece_after[0], abs=1e-12)
    # Grid points of equal error may change places in the last bit; nothing else may.
    if one.temperatures == other.temperatures:
        assert one.ece_after == pytest.approx(other.ece_after, abs=1e-12)
    else:
        k = next(k for k in range(gamma) if one.temperatures[k] != other.temperatures[k])
        assert one.ece_after[k] == pytest.approx(other.ece_after[k], abs=1e-12)


@pytest.mark.parametrize("gamma", [1, 2, 16, 32])
def test_any_number_of_positions(gamma):
    z, y = head(300, gamma)
    fit = fit_temperatures(z, y)
    assert len(fit.temperatures) == len(fit.statuses) == gamma
    assert np.isfinite(fit.temperatures).all()


def test_huge_logits_neither_overflow_nor_warn():
    z = np.array([[1000.0, -1000.0], [-1000.0, 1000.0], [1000.0, 1000.0]])
    y = np.array([[1, 0], [0, 0], [1, 1]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit = fit_temperatures(z, y, bins=20)
    assert fit.ece_after[0] == pytest.approx(0.0)


def test_a_logit_that_is_no_number_is_named():
    with pytest.raises(ValueError, match="row 1, position 2"):
        fit_temperatures([[0.0, 0.0], [0.0, np.nan]], [[1, 1], [1, 0]])


def test_the_coarse_search_gives_the_exact_answer(monkeypatch):
    z, y = head(8000, 4, 1.6, seed=9)
    exact = fit_temperatures(z, y)
    weights = np.random.default_rng(2).random(z.shape)
    exact_weighted = fit_temperatures(z, y, weights=weights)
    monkeypatch.setattr(gridsearch, "EXACT_ROWS", 10)
    assert fit_temperatures(z, y) == exact
    assert fit_temperatures(z, y, weights=weights) == exact_weighted


def test_the_coarse_search_visits_few_points(monkeypatch):
    z, y = head(8000, 1, 1.6, seed=9)
    monkeypatch.setattr(gridsearch, "EXACT_ROWS", 10)
    position = PositionColumns(z[:, 0], np.ones(len(z)), y[:, 0].astype(float), None)
    errors = grid_ece(position, PEER_GRID, 15)
    assert np.isfinite(errors).sum() < len(PEER_GRID) / 2
    assert np.nanargmin(errors) == np.argmin([exact_ece(position, t, 15) for t in PEER_GRID])


def test_the_chunked_pass_is_the_plain_figure():
    z, y = head(100_000, 1, 1.6, seed=4)
    position = PositionColumns(z[:, 0], np.full(len(z), 0.9), y[:, 0].astype(float), None)
    assert exact_ece(position, 1.3, 15) == pytest.approx(
        expected_calibration_error(0.9 * sigmoid(z[:, 0] / 1.3), y[:, 0], 15), abs=1e-12
    )
