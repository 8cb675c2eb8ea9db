"""Curves: monotone staircases, honest about what was measured."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrator.core.cost import CostCells, CurveRules, fit_additive, fit_curve
from calibrator.core.cost.monotone import fit_monotone
from serving_adapter.contract import Steps
from serving_adapter.engines.replay.cost import load_cost_samples
from serving_adapter.step_cost import StepCost

TIERS = np.array([1, 2, 4, 8, 16, 32, 64, 128])


def cells_of(seconds, batch_tokens, epoch=0, **columns):
    columns.setdefault("requests", np.maximum(np.asarray(batch_tokens) // 4, 1))
    return CostCells.fold(Steps.build(step_seconds=seconds, batch_tokens=batch_tokens, **columns), epoch)


def noise(count, spread=0.1, seed=0):
    return np.exp(np.random.default_rng(seed).normal(0, spread, count))


def graphs(count=40_000, seed=0):
    """Sizes 1 to 200: padded to a captured graph up to 128, eager and slower beyond."""
    tokens = np.random.default_rng(seed).integers(1, 201, count)
    padded = np.where(tokens <= 128, TIERS[np.minimum(np.searchsorted(TIERS, tokens), 7)], 0)
    true = np.where(padded > 0, 0.010 + 0.0002 * padded, 0.05 + 0.0005 * tokens)
    return tokens, padded, true


def test_inside_a_padding_bucket_more_tokens_cost_nothing():
    tokens, padded, true = graphs()
    fit = fit_curve(cells_of(true * noise(len(true)), tokens, graph_tokens=padded))
    assert fit.publishable
    for low, high in ((3, 4), (5, 8), (9, 16), (33, 64), (65, 128)):
        inside = fit.at(np.arange(low, high + 1))
        assert np.ptp(inside) == 0
        assert inside[0] == pytest.approx(0.010 + 0.0002 * high, rel=0.02)
    assert fit.at(65) > 1.3 * fit.at(64)


def test_where_nothing_pads_the_curve_goes_straight_from_size_to_size():
    tokens, padded, true = graphs()
    fit = fit_curve(cells_of(true * noise(len(true)), tokens, graph_tokens=padded))
    assert fit.at([140, 160, 180]) == pytest.approx([0.12, 0.13, 0.14], rel=0.01)
    assert np.diff(fit.at(np.arange(130, 198))).min() > 0


def test_captured_sizes_that_the_engine_tells_close_gaps_between_seen_sizes():
    tokens = np.repeat([30, 32, 60, 64], 50)
    graph = np.where(tokens <= 32, 32, 64)
    cells = cells_of(np.where(graph == 32, 0.01, 0.02), tokens, graph_tokens=graph)
    assert fit_curve(cells).at(40) < 0.0199  # a captured 48 could hide here
    assert fit_curve(cells, graph_sizes=[32, 64]).at(33) == pytest.approx(0.02, rel=0.01)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 25))
def test_a_fit_never_falls_with_size_whatever_the_samples(seed, count):
    random = np.random.default_rng(seed)
    sizes = np.sort(random.choice(np.arange(1, 600), count, replace=False))
    tokens = np.repeat(sizes, random.integers(1, 30, count))
    fit = fit_curve(cells_of(random.lognormal(-3, random.uniform(0, 1.5), len(tokens)), tokens))
    assert (np.diff(fit.sizes) > 0).all()
    assert (np.diff(fit.seconds) >= 0).all()
    assert (fit.seconds > 0).all()
    assert fit.to_contract() is not None


def test_without_a_prior_the_fit_is_isotonic_regression():
    from sklearn.isotonic import IsotonicRegression

    random = np.random.default_rng(3)
    sizes, errors = np.arange(1.0, 30.0), random.uniform(0.5, 2, 29)
    seconds = np.sqrt(sizes) + random.normal(0, 1, 29) + 5
    expected = IsotonicRegression().fit_transform(sizes, seconds, sample_weight=errors**-2.0)
    assert fit_monotone(sizes, seconds, errors) == pytest.approx(expected, rel=1e-8)


def test_one_step_in_two_hundred_at_fifty_times_the_time_does_not_bend_the_curve():
    random = np.random.default_rng(1)
    tokens = random.choice([1, 4, 16, 64, 256], 8000)
    true = 0.03 + 0.001 * tokens
    seconds = true * noise(8000) * np.where(np.arange(8000) % 200 == 0, 50, 1)
    fit = fit_curve(cells_of(seconds, tokens))
    assert fit.publishable
    assert fit.outliers == pytest.approx(1 / 200, rel=0.1)
    assert fit.at([1, 16, 256]) == pytest.approx([0.031, 0.046, 0.286], rel=0.02)


def test_a_size_seen_only_while_it_was_compiled_has_no_support_and_no_say():
    tokens = np.concatenate([np.repeat([1, 8, 32, 128], 60), [64, 64, 64]])
    seconds = np.where(tokens == 64, 4.0, 0.03 + 0.001 * tokens)
    fit = fit_curve(cells_of(seconds, tokens))
    assert dict(zip(fit.sizes.tolist(), fit.statuses, strict=True))[64] == "unsupported"
    assert fit.at(64) == pytest.approx(0.094, rel=0.02)
    assert StepCost.from_curve(fit.to_contract()).batch_tokens.tolist() == [1, 8, 32, 128]
    assert fit.publishable  # three steps of 243


def test_traffic_at_sizes_without_support_forbids_to_publish():
    tokens = np.concatenate([np.repeat([1, 8, 32], 60), np.arange(40, 100)])
    fit = fit_curve(cells_of(0.03 + 0.001 * tokens, tokens))
    assert not fit.publishable
    assert "25% of steps are at sizes without support" in fit.reasons[0]


def test_a_flat_curve_is_no_knowledge():
    tokens = np.repeat([1, 8, 32, 128], 60)
    fit = fit_curve(cells_of(np.full(240, 0.03), tokens))
    assert set(fit.statuses) == {"flat"}
    assert fit.reasons[0].startswith("flat")
    assert StepCost.from_curve(fit.to_contract()) is None


def test_one_size_is_no_curve():
    fit = fit_curve(cells_of(np.full(60, 0.03), np.full(60, 32)))
    assert fit.reasons == ("1 sizes measured, needs 3",)
    assert len(fit.sizes) == 1


def test_no_steps_no_curve():
    fit = fit_curve(CostCells.empty())
    assert not fit.publishable
    assert fit.to_contract() is None
    assert np.isnan(fit.at(5))


def test_sizes_that_get_cheaper_are_pooled_and_too_many_of_them_refused():
    tokens = np.repeat([1, 8, 32, 128], 60)
    fit = fit_curve(
        cells_of(np.array([0.02, 0.09, 0.03, 0.1])[np.searchsorted([1, 8, 32, 128], tokens)], tokens)
    )
    assert fit.at(8) == pytest.approx(fit.at(32), rel=1e-6)
    assert "not monotone" in fit.reasons[0]


def test_old_samples_are_stale_and_do_not_bend_the_curve():
    fresh = np.repeat([1, 8, 32], 60)
    cells = cells_of(0.03 + 0.001 * fresh, fresh, epoch=100)
    cells = cells + cells_of(np.full(60, 0.5), np.full(60, 16), epoch=1)
    fit = fit_curve(cells, now=100, half_life=10.0)
    assert dict(zip(fit.sizes.tolist(), fit.statuses, strict=True))[16] == "stale"
    assert fit.at([8, 32]) == pytest.approx([0.038, 0.062], rel=0.02)
    everything = fit_curve(cells, now=1000, half_life=10.0)
    assert set(everything.statuses) == {"stale"}
    assert any(reason.startswith("stale") for reason in everything.reasons)


def test_beyond_what_was_measured_the_curve_says_so():
    tokens = np.repeat([1, 8, 32], 60)
    fit = fit_curve(cells_of(0.03 + 0.001 * tokens, tokens), largest=512)
    assert (fit.sizes[-1], fit.statuses[-1]) == (512, "extrapolated")
    assert fit.seconds[-1] == pytest.approx(0.542, rel=0.05)
    assert StepCost.from_curve(fit.to_contract()).measured_to == 32


def test_dead_spots_are_ranges_that_no_step_ever_had():
    tokens = np.repeat([4, 5, 6, 40], 60)
    assert fit_curve(cells_of(0.03 + 0.001 * tokens, tokens)).dead_spots == ((7, 39),)


def test_a_curve_of_one_context_bucket_holds_its_steps_only():
    tokens = np.tile(np.repeat([1, 8, 32], 60), 2)
    context = np.repeat([1000, 9000], 180)
    cells = cells_of(
        (0.03 + 0.001 * tokens) * np.where(context > 5000, 1.5, 1), tokens, context_tokens=context
    )
    assert cells.contexts() == [512, 8192]
    assert fit_curve(cells, context=8192).at(8) == pytest.approx(0.057, rel=0.02)
    assert fit_curve(cells, context=512).at(8) == pytest.approx(0.038, rel=0.02)


def test_draft_time_by_requests_and_verify_time_by_tokens():
    requests = np.repeat([1, 4, 16], 60)
    cells = cells_of(
        np.full(180, 0.1),
        requests * 5,
        requests=requests,
        draft_seconds=0.002 + 0.0001 * requests,
        verify_seconds=0.03 + 0.001 * requests * 5,
    )
    draft = fit_curve(cells, quantity="draft", axis="requests")
    verify = fit_curve(cells, quantity="verify")
    assert draft.at([1, 16]) == pytest.approx([0.0021, 0.0036], rel=0.02)
    assert verify.at([5, 80]) == pytest.approx([0.035, 0.11], rel=0.02)


def test_published_form_carries_statuses_and_steps_per_second():
    tokens = np.repeat([1, 8, 32], 60)
    curve = fit_curve(cells_of(0.03 + 0.001 * tokens, tokens)).to_contract()
    assert curve.status == ["measured"] * 3
    assert curve.sps == pytest.approx([1 / s for s in curve.seconds])


def test_rules_can_ask_for_more():
    tokens = np.repeat([1, 8, 32], 60)
    fit = fit_curve(cells_of(0.03 + 0.001 * tokens, tokens), rules=CurveRules(min_n_eff=100))
    assert set(fit.statuses) == {"unsupported"}


def test_recorded_samples_leaving_one_size_out_the_curve_beats_a_table_read_by_floor():
    samples = load_cost_samples()
    sizes = np.unique(samples.batch_tokens)
    curve_errors, floor_errors = [], []
    for left_out in sizes[1:-1]:
        kept = samples.batch_tokens != left_out
        steps = Steps.build(
            step_seconds=samples.seconds[kept],
            batch_tokens=samples.batch_tokens[kept],
            requests=samples.requests[kept],
        )
        truth = np.median(samples.seconds[~kept])
        curve_errors.append(abs(fit_curve(CostCells.fold(steps, 0)).at(left_out) / truth - 1))
        below = sizes[np.searchsorted(sizes, left_out) - 1]
        floor_errors.append(abs(samples.seconds[samples.batch_tokens == below].mean() / truth - 1))
    assert np.mean(curve_errors) < 0.035
    assert np.mean(curve_errors) < np.mean(floor_errors) / 3


def additive_cells(independent=True, seed=0):
    random = np.random.default_rng(seed)
    requests = random.choice([1, 4, 16, 64], 20_000)
    each = random.integers(1, 9, 20_000) if independent else np.full(20_000, 8)
    tokens = requests * each
    true = 0.02 + 0.0003 * requests + 0.0008 * tokens
    return cells_of(true * noise(20_000, seed=seed), tokens, requests=requests)


def test_the_additive_form_separates_requests_from_tokens():
    fit = fit_additive(additive_cells())
    assert fit.publishable
    assert fit.error < 0.02
    for requests, tokens in ((1, 4), (16, 64), (64, 128), (64, 512)):
        expected = 0.02 + 0.0003 * requests + 0.0008 * tokens
        assert fit.cost.seconds(requests, tokens) == pytest.approx(expected, rel=0.03)
    assert fit.cost.at(16).seconds(64) == pytest.approx(fit.cost.seconds(16, 64))


def test_requests_and_tokens_that_only_rise_together_cannot_be_told_apart():
    fit = fit_additive(additive_cells(independent=False))
    assert not fit.publishable
    assert "cannot be told apart" in fit.reasons[0]


def test_the_additive_form_needs_cells():
    assert fit_additive(CostCells.empty()).reasons == ("0 cells measured, needs 4",)


@given(seed=st.integers(0, 2**32 - 1))
def test_sizes_rise_however_small_the_weights_are(seed: int) -> None:
    """Old steps of a sample weigh next to nothing, down to what fixed point rounds away."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(1, 400, size=300)
    steps = Steps.build(step_seconds=0.01 + 0.001 * tokens, batch_tokens=tokens, requests=np.ones(300))
    cells = CostCells.fold(steps, epoch=0, weights=10.0 ** rng.uniform(-8, 1, size=300))
    curve = fit_curve(cells).to_contract()
    assert curve is not None
    assert curve.batch_tokens == sorted(set(curve.batch_tokens))


def test_samples_of_very_long_ago_are_stale_and_not_unmeasured():
    tokens = np.repeat([1, 8, 32], 50)
    cells = CostCells.fold(
        Steps.build(step_seconds=0.001 * tokens, batch_tokens=tokens, requests=tokens), epoch=0
    )
    fit = fit_curve(cells, now=10**7, half_life=1.0)
    assert set(fit.statuses) == {"stale"}
