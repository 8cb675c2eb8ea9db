import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrator.core.sample import inclusion_probability, keep_smallest, priority_key, row_uniform


def test_uniform_numbers_are_uniform_deterministic_and_differ_between_boots():
    u = row_uniform("prod", "pod-1", "boot-1", np.arange(100_000))
    assert ((u > 0) & (u < 1)).all()
    assert u.mean() == pytest.approx(0.5, abs=0.005)
    assert np.histogram(u, 10, (0, 1))[0].min() > 9500
    assert abs(np.corrcoef(u[1:], u[:-1])[0, 1]) < 0.02
    other = row_uniform("prod", "pod-1", "boot-2", np.arange(100_000))
    assert abs(np.corrcoef(u, other)[0, 1]) < 0.02
    assert np.array_equal(u[500:700], row_uniform("prod", "pod-1", "boot-1", np.arange(500, 700)))


def test_fields_of_the_identity_do_not_run_together():
    assert row_uniform("a", "bc", "d", [0]) != row_uniform("ab", "c", "d", [0])


def test_row_numbers_use_all_64_bits():
    u = row_uniform("d", "r", "b", np.array([0, 2**32, 2**63, 2**64 - 1], dtype=np.uint64))
    assert len(set(u.tolist())) == 4


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=0, max_size=60, unique=True), st.integers(1, 20), st.data())
def test_merging_in_any_order_is_sampling_the_union(keys, k, data):
    values = np.array(keys)
    parts = [
        values[np.array(data.draw(st.lists(st.booleans(), min_size=len(keys), max_size=len(keys))), bool)]
    ]
    parts.append(np.setdiff1d(values, parts[0]))
    thresholds, kept = [], []
    for part in parts:
        index, threshold = keep_smallest(part, k)
        kept.append(part[index])
        thresholds.append(threshold)
    for order in (kept, kept[::-1]):
        merged = np.concatenate(order)
        index, threshold = keep_smallest(merged, k)
        whole, whole_threshold = keep_smallest(values, k)
        assert merged[index].tolist() == values[whole].tolist()
        assert min(threshold, *thresholds) == whole_threshold


def test_totals_are_unbiased_under_forgetting():
    generator = np.random.default_rng(0)
    n, k, half_life = 2000, 200, 600.0
    arrival = np.sort(generator.uniform(0, 3600, n)) + 1.8e9
    value = 1 + np.sin(arrival / 500) + generator.random(n)
    recent = arrival > 1.8e9 + 3000
    estimates, recent_estimates, counts = [], [], []
    for seed in range(400):
        u = row_uniform("d", "r", str(seed), np.arange(n))
        keys = priority_key(u, arrival, half_life)
        index, threshold = keep_smallest(keys, k)
        weight = 1 / inclusion_probability(threshold, arrival[index], half_life)
        estimates.append((value[index] * weight).sum())
        recent_estimates.append((value[index] * weight * recent[index]).sum())
        counts.append(weight.sum())
    for drawn, truth in (
        (estimates, value.sum()),
        (recent_estimates, value[recent].sum()),
        (counts, n),
    ):
        standard_error = np.std(drawn) / math.sqrt(len(drawn))
        assert abs(np.mean(drawn) - truth) < 4 * standard_error
        assert standard_error < 0.02 * truth


def test_newer_rows_are_likelier():
    probability = inclusion_probability(-1.8e9 * math.log(2) / 600, [1.8e9 - 6000, 1.8e9 - 600, 1.8e9], 600.0)
    assert probability[2] == pytest.approx(1 - math.exp(-1), rel=1e-5)
    assert probability[1] == pytest.approx(1 - math.exp(-0.5), rel=1e-5)
    assert probability[0] == pytest.approx(1 - math.exp(-(2.0**-10)), rel=1e-5)


def test_a_sample_that_holds_everything_has_probability_one():
    index, threshold = keep_smallest([0.3, 0.1], 5)
    assert index.tolist() == [1, 0]
    assert inclusion_probability(threshold, [0.0, 1.8e9], 60.0).tolist() == [1.0, 1.0]


def test_wrong_options_are_named():
    with pytest.raises(ValueError, match="half_life_seconds: got 0"):
        priority_key([0.5], [0.0], 0)
    with pytest.raises(ValueError, match="k: got 0"):
        keep_smallest([1.0], 0)
