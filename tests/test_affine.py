import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from calibrator.core.affine import MAX_OFFSET, MIN_SLOPE, AffineFit, Prior, fit_affine
from calibrator.core.ece import expected_calibration_error
from calibrator.core.labels import at_risk, prefix_labels
from calibrator.core.likelihood import NewtonSums, fit_temperatures_by_likelihood, newton_sums
from serving_adapter.contract import Rounds, conditional_confidence, prefix_survival, sigmoid
from tests.recorded import NAMES, prompts, recorded, truncate


def head(rows, slope, offsets, seed=0):
    """Rounds whose conditional acceptance is ``sigmoid(slope z + offset)``."""
    generator = np.random.default_rng(seed)
    z = generator.normal(1.0, 1.5, size=(rows, len(offsets)))
    accepted = generator.random(z.shape) < sigmoid(slope * z + np.asarray(offsets))
    return Rounds.build(z, np.minimum.accumulate(accepted, axis=1).sum(axis=1))


def fit(rounds, **options) -> AffineFit:
    return fit_affine(rounds.logits, prefix_labels(rounds), at_risk(rounds), **options)


def mean_ece(rounds, temperatures, offsets, bins=15):
    a = prefix_survival(conditional_confidence(rounds.logits, temperatures, offsets))
    labels = prefix_labels(rounds)
    return np.mean([expected_calibration_error(a[:, k], labels[:, k], bins) for k in range(rounds.gamma)])


def scikit_learn(rounds):
    """Slope and offsets of the same design by another solver."""
    seen, labels = at_risk(rounds), prefix_labels(rounds)
    row, k = np.nonzero(seen)
    design = np.column_stack([rounds.logits[row, k], np.eye(rounds.gamma)[k]])
    solver = LogisticRegression(C=np.inf, fit_intercept=False, solver="newton-cholesky", tol=1e-12)
    return solver.fit(design.astype(np.float64), labels[row, k]).coef_[0]


@pytest.mark.parametrize("name", NAMES)
def test_the_optimum_is_that_of_scikit_learn(name):
    rounds = recorded(name)
    ours = fit(rounds, prior=Prior.none())
    assert ours.converged
    assert np.concatenate([[ours.slope], ours.offsets]) == pytest.approx(scikit_learn(rounds), abs=1e-6)


def test_slope_offsets_and_standard_errors():
    truth = np.array([0.5, 0.8, -0.2, 0.4])
    fits = [fit(head(4000, truth[0], truth[1:], seed), prior=Prior.none()) for seed in range(30)]
    estimates = np.array([np.concatenate([[f.slope], f.offsets]) for f in fits])
    reported = np.mean([f.standard_errors for f in fits], axis=0)
    assert estimates.mean(axis=0) == pytest.approx(truth, abs=0.03)
    assert estimates.std(axis=0) == pytest.approx(reported, rel=0.4)
    assert fits[0].temperatures == pytest.approx(np.full(3, 1 / fits[0].slope))
    assert fits[0].statuses == ("ok",) * 3


def test_truncation_by_the_logits_needs_no_weights():
    rounds = head(60_000, 0.5, [0.8, 0.6, 0.4])
    scheduled = (prefix_survival(sigmoid(rounds.logits)) > 0.4).sum(axis=1)
    ours = fit(truncate(rounds, scheduled), prior=Prior.none())
    assert ours.slope == pytest.approx(0.5, abs=0.03)
    assert ours.offsets == pytest.approx([0.8, 0.6, 0.4], abs=0.06)


def test_newton_sums_merge_in_any_order():
    rounds = recorded("typical")
    labels, seen = prefix_labels(rounds), at_risk(rounds)

    def sums(rows):
        return newton_sums(rounds.logits[rows], labels[rows], seen[rows], 0.7, np.linspace(-1, 1, 7))

    whole = sums(slice(None))
    parts = [sums(slice(i, i + 500)) for i in range(0, len(rounds), 500)]
    for order in (parts, parts[::-1], parts[::2] + parts[1::2]):
        merged = sum(order, NewtonSums.zeros(7))
        assert merged.gradient == pytest.approx(whole.gradient, rel=1e-12, abs=1e-9)
        assert merged.hessian == pytest.approx(whole.hessian, rel=1e-12, abs=1e-9)


def test_newton_sums_are_derivatives_of_the_log_likelihood():
    rounds = head(500, 0.5, [0.8, 0.6])
    labels, seen = prefix_labels(rounds), at_risk(rounds)

    def log_likelihood(theta):
        x = theta[0] * rounds.logits + theta[1:]
        return (seen * (labels * x - np.logaddexp(0, x))).sum()

    theta = np.array([0.7, 0.1, -0.3])
    sums = newton_sums(rounds.logits, labels, seen, theta[0], theta[1:])
    for i in range(3):
        step = np.eye(3)[i] * 1e-5
        slope = (log_likelihood(theta + step) - log_likelihood(theta - step)) / 2e-5
        assert sums.gradient[i] == pytest.approx(slope, abs=1e-4)
        up, down = (
            newton_sums(rounds.logits, labels, seen, t[0], t[1:]).gradient
            for t in (theta + step, theta - step)
        )
        assert sums.hessian[i] == pytest.approx(-(up - down) / 2e-5, abs=1e-4)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 200), st.integers(1, 6))
def test_the_fit_does_not_depend_on_row_order_and_is_finite(seed, rows, gamma):
    rounds = head(rows, 0.6, [0.5] * gamma, seed)
    order = np.random.default_rng(seed).permutation(rows)
    one, other = fit(rounds), fit(rounds.take(order))
    assert np.isfinite(one.offsets).all()
    assert one.converged
    assert one.slope == pytest.approx(other.slope, rel=1e-8)
    assert one.offsets == pytest.approx(other.offsets, abs=1e-8)


@pytest.mark.parametrize("prior", [Prior(), Prior.none()])
@pytest.mark.parametrize("accepted", [0, 3])
def test_equal_outcomes_are_degenerate_and_stay_put(accepted, prior):
    rounds = Rounds.build(np.random.default_rng(0).normal(size=(200, 3)), np.full(200, accepted))
    ours = fit(rounds, prior=prior, start=(0.5, [0.1, 0.2, 0.3]))
    assert (ours.slope, ours.offsets.tolist()) == (0.5, [0.1, 0.2, 0.3])
    assert set(ours.statuses) <= {"degenerate", "censored"}


@pytest.mark.parametrize("prior", [Prior(), Prior.none()])
def test_one_position_with_equal_outcomes_does_not_run_away(prior):
    rounds = head(2000, 0.5, [0.8, 0.6, 0.4])
    full = Rounds.build(rounds.logits, np.where(rounds.accepted == 3, 2, rounds.accepted))  # 3: never
    ours = fit(full, prior=prior)
    assert ours.statuses == ("ok", "ok", "degenerate")
    assert ours.converged
    assert np.abs(ours.offsets).max() < 5
    assert ours.slope == pytest.approx(0.5, abs=0.1)


def test_a_position_never_verified_takes_the_pooled_offset():
    rounds = head(5000, 0.5, [0.8, 0.8, 0.8])
    ours = fit(truncate(rounds, np.full(len(rounds), 2)))
    assert ours.statuses == ("ok", "ok", "censored")
    assert ours.n_at_risk[2] == 0
    assert ours.offsets[2] == pytest.approx(0.8, abs=0.1)


def test_a_head_that_ranks_the_wrong_way_round_is_held_at_the_border():
    rounds = head(5000, -0.5, [0.2, 0.2])
    ours = fit(rounds)
    assert ours.converged
    assert ours.slope == MIN_SLOPE
    assert ours.statuses == ("at_grid_edge", "at_grid_edge")
    assert mean_ece(rounds, ours.temperatures, ours.offsets) < mean_ece(rounds, np.ones(2), np.zeros(2))


def test_huge_logits_neither_overflow_nor_warn():
    z = np.array([[1000.0, -1000.0], [-1000.0, 1000.0], [1000.0, 1000.0], [-1000.0, 0.0]])
    rounds = Rounds.build(z, [1, 0, 2, 1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for prior in (Prior(), Prior.none()):
            ours = fit(rounds, prior=prior)
            assert np.isfinite([ours.slope, *ours.offsets]).all()
            assert np.abs(ours.offsets).max() <= MAX_OFFSET


def test_separable_rows_stay_inside_the_box():
    rounds = Rounds.build([[-2.0], [-1.0], [1.0], [2.0]], [0, 0, 1, 1])
    ours = fit(rounds, prior=Prior.none())
    assert 0 < ours.slope <= 100
    assert np.isfinite(ours.offsets).all()


@pytest.mark.parametrize("gamma", [1, 2, 16, 32])
def test_any_number_of_positions(gamma):
    ours = fit(head(500, 0.6, [1.5] * gamma))
    assert ours.offsets.shape == ours.temperatures.shape == (gamma,)
    assert ours.covariance.shape == (1 + gamma, 1 + gamma)
    assert np.isfinite(ours.offsets).all()


def test_no_rows_at_all():
    ours = fit_affine(np.zeros((0, 2)), np.zeros((0, 2)), np.zeros((0, 2)))
    assert (ours.slope, ours.offsets.tolist(), ours.statuses) == (1.0, [0.0, 0.0], ("censored", "censored"))


@pytest.mark.parametrize(("name", "share"), [("typical", 0.27), ("hard", 0.10)])
def test_half_of_the_requests_calibrate_the_other_half(name, share):
    rounds, relative = recorded(name), []
    for seed in range(6):
        request = np.unique(rounds.request)
        chosen = np.random.default_rng(seed).permutation(request)[: len(request) // 2]
        train = np.isin(rounds.request, chosen)
        ours, judge = fit(rounds.take(train)), rounds.take(~train)
        raw = mean_ece(judge, np.ones(7), np.zeros(7))
        relative.append(mean_ece(judge, ours.temperatures, ours.offsets) / raw)
    assert np.mean(relative) <= share


@pytest.mark.parametrize("name", ["typical", "typical-hot", "hard"])
def test_three_hundred_rounds_of_other_prompts_help(name):
    rounds, prompt = recorded(name), prompts(name)
    gain = []
    for seed in range(4):
        some = np.random.default_rng(seed).permutation(np.unique(prompt))
        pool = np.isin(prompt, some[: len(some) // 2])
        few = fit(rounds.take(np.flatnonzero(pool)[:300]))
        judge = rounds.take(~pool)
        raw = mean_ece(judge, np.ones(7), np.zeros(7))
        gain.append(mean_ece(judge, few.temperatures, few.offsets) / raw)
    assert np.mean(gain) < 0.8


def test_the_prior_helps_where_deep_positions_are_thin():
    rounds, with_prior, without = recorded("hard"), [], []
    scheduled = (prefix_survival(sigmoid(rounds.logits)) > 0.5).sum(axis=1)
    seen = truncate(rounds, scheduled)
    for seed in range(4):
        request = np.unique(rounds.request)
        train = np.isin(rounds.request, np.random.default_rng(seed).permutation(request)[: len(request) // 2])
        for prior, errors in ((Prior(), with_prior), (Prior.none(), without)):
            ours = fit(seen.take(train), prior=prior)
            errors.append(mean_ece(rounds.take(~train), ours.temperatures, ours.offsets))
    assert np.mean(with_prior) < 0.75 * np.mean(without)


def test_the_default_prior_is_that_of_a_first_refresh():
    first = Prior.around(np.ones(7), np.zeros(7))
    assert Prior().precision(7) == pytest.approx(first.precision(7))
    assert Prior().mean(7) == pytest.approx(first.mean(7))


def test_temperatures_by_likelihood_under_truncation():
    generator = np.random.default_rng(5)
    z = generator.normal(0.5, 2.0, size=(60_000, 3))
    accepted = generator.random(z.shape) < sigmoid(z / [2.0, 0.5, 1.0])
    rounds = Rounds.build(z, np.minimum.accumulate(accepted, axis=1).sum(axis=1))
    scheduled = (prefix_survival(sigmoid(z)) > 0.3).sum(axis=1)
    seen = truncate(rounds, scheduled)
    ours = fit_temperatures_by_likelihood(seen.logits, prefix_labels(seen), at_risk(seen))
    for k, truth in enumerate((2.0, 0.5, 1.0)):
        assert abs(np.log(ours.temperatures[k] / truth)) < 4 * ours.standard_errors[k]
    assert ours.statuses == ("ok",) * 3


def test_temperatures_by_likelihood_stay_inside_the_grid_and_keep_what_cannot_be_told():
    z = np.full((100, 3), 2.0)
    outcome = np.column_stack([np.arange(100) % 2 == 0, np.ones(100), np.zeros(100)])
    risk = np.column_stack([np.ones(100), np.ones(100), np.zeros(100)])
    ours = fit_temperatures_by_likelihood(z, outcome, risk, current=[1.0, 1.5, 0.7])
    assert ours.temperatures == (10.0, 1.5, 0.7)
    assert ours.statuses == ("at_grid_edge", "degenerate", "censored")
    assert ours.standard_errors == (None, None, None)
