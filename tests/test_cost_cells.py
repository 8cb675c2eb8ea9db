"""Cost cells: robust medians from integer counts that merge exactly."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrator.core.cost import CostCells
from calibrator.core.cost.buckets import (
    TOKEN_BITS,
    bin_seconds,
    context_bucket,
    load_regime,
    size_bucket,
    time_bin,
)
from calibrator.core.cost.cells import KEYS, SUMS
from serving_adapter.contract import Steps


def steps_of(seconds, batch_tokens, **columns):
    columns.setdefault("requests", np.maximum(np.asarray(batch_tokens) // 4, 1))
    return Steps.build(step_seconds=seconds, batch_tokens=batch_tokens, **columns)


def noisy(size, count, seconds=0.05, spread=0.1, seed=0):
    times = seconds * np.exp(np.random.default_rng(seed).normal(0, spread, count))
    return steps_of(times, np.full(count, size))


def median_of(cells, **how):
    summary = cells.only("step").summary(("batch_tokens",), **how)
    return dict(zip(summary.keys[:, 0].tolist(), summary.seconds.tolist(), strict=True))


def test_small_sizes_have_a_bucket_each_and_large_ones_are_at_most_three_per_cent_wide():
    assert size_bucket(np.arange(64)).tolist() == list(range(64))
    sizes = np.arange(64, 20_000)
    edges = np.unique(size_bucket(sizes))
    assert (np.diff(edges) / edges[:-1]).max() <= 2.0**-TOKEN_BITS + 1e-12
    assert (size_bucket(sizes) <= sizes).all()


def test_bins_of_time_are_a_hundredth_wide_and_clamped():
    seconds = np.geomspace(2e-6, 900, 1000)
    low = bin_seconds(time_bin(seconds))
    assert ((low <= seconds * (1 + 1e-12)) & (seconds < low * 1.011)).all()
    assert time_bin([1e-12, 1e9]).tolist() == [0, 1919]


def test_contexts_and_load_regimes_are_powers():
    assert context_bucket([0, 1, 256, 511, 512, 70_000]).tolist() == [0, 256, 256, 256, 512, 65_536]
    assert load_regime([1, 3, 4, 15, 16, 64]).tolist() == [1, 1, 4, 4, 16, 64]


def test_the_median_is_the_median_to_a_hundredth():
    steps = noisy(16, 4001)
    assert median_of(CostCells.fold(steps, 0))[16] == pytest.approx(np.median(steps.step_seconds), rel=0.005)


def test_one_step_in_two_hundred_at_fifty_times_the_time_moves_nothing():
    steps = noisy(16, 4000)
    stalled = np.arange(4000) % 200 == 7
    cells = CostCells.fold(steps_of(np.where(stalled, 50, 1) * steps.step_seconds, steps.batch_tokens), 0)
    summary = cells.only("step").summary(("batch_tokens",))
    assert summary.seconds[0] == pytest.approx(0.05, rel=0.01)
    assert summary.spread[0] == pytest.approx(0.1, rel=0.1)
    assert summary.outliers[0] == pytest.approx(1 / 200)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(0, 60))
def test_folding_parts_and_adding_equals_folding_everything(seed, count, cut):
    random = np.random.default_rng(seed)
    steps = Steps.build(
        step_seconds=random.lognormal(-3, 1, count),
        draft_seconds=random.choice([0.0, 0.01], count),
        batch_tokens=random.integers(1, 300, count),
        requests=random.integers(1, 60, count),
        context_tokens=random.integers(0, 5000, count),
        graph_tokens=random.choice([0, 320, 512], count),
    )
    epoch, weights = random.integers(0, 4, count), random.uniform(0.5, 9, count)
    cut = min(cut, count)
    first, rest = (
        CostCells.fold(steps.take(part), epoch[part], weights[part])
        for part in (slice(0, cut), slice(cut, None))
    )
    assert first + rest == rest + first == CostCells.fold(steps, epoch, weights)


def test_cells_go_through_a_table_of_integers_and_back():
    cells = CostCells.fold(noisy(16, 50), 3) + CostCells.fold(noisy(40, 50, seed=1), 4)
    assert cells.keys.shape[1] == len(KEYS)
    assert cells.sums.shape[1] == len(SUMS)
    shuffled = np.random.default_rng(0).permutation(len(cells))
    rows = [
        (*k, *s) for k, s in zip(cells.keys[shuffled].tolist(), cells.sums[shuffled].tolist(), strict=True)
    ]
    table = np.array(rows)
    assert CostCells.from_arrays(table[:, : len(KEYS)], table[:, len(KEYS) :]) == cells
    assert CostCells.from_arrays([], []) == CostCells.empty()


def test_a_sampled_step_counts_as_many_times_as_it_stands_for():
    steps = steps_of([0.01] * 30 + [0.02] * 10, [8] * 40)
    weights = np.array([1.0] * 30 + [9.0] * 10)
    assert median_of(CostCells.fold(steps, 0, weights))[8] == pytest.approx(0.02, rel=0.02)


def test_old_epochs_weigh_less():
    cells = CostCells.fold(noisy(8, 400, 0.010), 0) + CostCells.fold(noisy(8, 150, 0.020, seed=1), 10)
    assert median_of(cells)[8] == pytest.approx(0.0105, rel=0.1)
    assert median_of(cells, now=10, half_life=4.0)[8] == pytest.approx(0.0195, rel=0.1)
    assert median_of(cells.since(10))[8] == pytest.approx(0.020, rel=0.02)


def test_old_epochs_can_be_brought_to_the_speed_of_today():
    cells = CostCells.fold(noisy(8, 400, 0.010), 0) + CostCells.fold(noisy(64, 400, 0.040, seed=1), 1)
    scaled = cells.rescaled(before=1, factor=1 / 0.7)
    assert median_of(scaled)[8] == pytest.approx(0.010 / 0.7, rel=0.015)
    assert median_of(scaled)[64] == pytest.approx(median_of(cells)[64])
    with pytest.raises(ValueError, match="factor"):
        cells.rescaled(1, 0.0)


def test_steps_without_time_size_or_requests_are_left_out():
    assert len(CostCells.fold(steps_of([0.0], [8]), 0)) == 0
    assert len(CostCells.fold(steps_of([0.1], [0]), 0)) == 0
    assert len(CostCells.fold(Steps.build(step_seconds=[0.1], batch_tokens=[8]), 0)) == 0


def test_draft_and_verify_times_have_cells_of_their_own():
    cells = CostCells.fold(steps_of([0.05], [8], draft_seconds=[0.01], verify_seconds=[0.03]), 0)
    for quantity, seconds in (("step", 0.05), ("draft", 0.01), ("verify", 0.03)):
        assert cells.only(quantity).summary(("requests",)).seconds[0] == pytest.approx(seconds, rel=0.011)


def test_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match="sums: got 0 rows, expected 1"):
        CostCells.from_arrays(np.zeros((1, len(KEYS))), np.zeros((0, len(SUMS))))
    with pytest.raises(ValueError, match="half_life"):
        CostCells.fold(noisy(8, 3), 0).recency(1, 0.0)


@pytest.mark.parametrize("weight", [np.inf, np.nan, 1e18, -1.0])
def test_weights_that_cannot_be_summed_are_named(weight):
    steps = Steps.build(step_seconds=[0.1, 0.1], batch_tokens=[8, 8], requests=[1, 1])
    with pytest.raises(ValueError, match="weights: row 1"):
        CostCells.fold(steps, 0, [1.0, weight])
