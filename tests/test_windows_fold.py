"""The fast fold gives what the definitions give, bit for bit, and merges exactly."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrator.core.labels import drafted, included, prefix_labels
from calibrator.core.propensity import inclusion_weights
from calibrator.core.sums import scalar_unit
from calibrator.core.survival import survival
from calibrator.core.windows import (
    BIN_SUMS,
    LOG_LOSS_FLOOR,
    SCALARS,
    WINDOW_BINS,
    SumsOverflowError,
    WindowSums,
    fold,
    fold_cells,
)
from serving_adapter.contract import Rounds, conditional_confidence, prefix_survival


def some_rounds(count, gamma, seed, dtype=np.float16):
    random = np.random.default_rng(seed)
    verified = random.integers(0, gamma + 1, count)
    accepted = np.minimum(random.geometric(0.3, count) - 1, verified)
    return Rounds.build(
        random.normal(0, 3, (count, gamma)).astype(dtype),
        accepted,
        verified=verified,
        scheduled=random.integers(0, gamma + 1, count),
        explore=random.choice([0, 0.05, 1e-4], count).astype(np.float16),
        draft_stop=np.where(random.random(count) < 0.1, random.integers(0, gamma, count), 255),
    )


def plain_fold(rounds, predicted, rule, clip):
    """The definitions, one line each."""
    inside, labelled = drafted(rounds, rule), included(rounds, rule)
    labels = prefix_labels(rounds).astype(np.float64)
    w = inclusion_weights(rounds, rule, clip)
    p = np.clip(predicted, LOG_LOSS_FLOOR, 1 - LOG_LOSS_FLOOR)
    loss = -np.where(labels > 0, np.log(p), np.log1p(-p))
    fixed = {
        "drafted": inside, "verified": labelled, "accepted": labelled & (labels > 0),
        "predicted": predicted * labelled, "weight": w, "weight_squared": w**2,
        "weight_predicted": w * predicted, "weight_accepted": w * labels,
        "brier": w * (predicted - labels) ** 2, "log_loss": w * loss,
    }  # fmt: skip
    counts = ("drafted", "verified", "accepted")
    exact = {
        name: term.astype(np.int64) if name in counts else np.rint(term * scalar_unit(name)).astype(np.int64)
        for name, term in fixed.items()
    }
    sums = WindowSums.zeros(rounds.gamma)
    for i, name in enumerate(SCALARS):
        sums.scalars[:, i] = exact[name].sum(axis=0)
    bins = np.minimum((predicted * WINDOW_BINS).astype(int), WINDOW_BINS - 1)
    names = ("drafted", "weight", "weight_squared", "weight_predicted", "weight_accepted")
    assert len(names) == len(BIN_SUMS)
    for i, name in enumerate(names):
        for k in range(rounds.gamma):
            np.add.at(sums.bins[k, i], bins[:, k], exact[name][:, k])
    return sums


@pytest.mark.parametrize("clip", [None, 1000.0, 1.0])
@pytest.mark.parametrize("rule", ["draft_stop", "accepted_stop", "keep"])
@pytest.mark.parametrize(("count", "gamma"), [(0, 4), (1, 1), (3, 7), (20_000, 7), (900, 32)])
def test_the_fold_follows_the_definitions_to_the_bit(count, gamma, rule, clip):
    rounds = some_rounds(count, gamma, count + gamma)
    predicted = survival(rounds.logits, np.full(gamma, 1.3), np.full(gamma, -0.2))
    assert fold(rounds, predicted, rule, clip) == plain_fold(rounds, predicted, rule, clip)


def test_cells_are_folds_of_their_rows():
    rounds = some_rounds(9_000, 5, 1)
    predicted = survival(rounds.logits, np.ones(5), np.zeros(5))
    cells = np.random.default_rng(2).integers(0, 6, len(rounds))
    for i, sums in enumerate(fold_cells(rounds, predicted, cells, 7)):
        assert sums == fold(rounds.take(cells == i), predicted[cells == i])


@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 6), st.integers(0, 2**32 - 1))
@settings(max_examples=50)
def test_folding_parts_and_adding_is_folding_the_whole(first, second, gamma, seed):
    rounds = some_rounds(first + second, gamma, seed)
    predicted = survival(rounds.logits, np.ones(gamma), np.zeros(gamma))
    x, y = slice(0, first), slice(first, None)
    parts = fold(rounds.take(x), predicted[x]) + fold(rounds.take(y), predicted[y])
    assert parts == fold(rounds, predicted)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_survival_is_the_formula_of_the_contract_to_the_bit(dtype):
    random = np.random.default_rng(0)
    logits = random.normal(0, 10, (10_000, 7)).astype(dtype)
    logits[:4] = [[1000], [-1000], [0], [-0.0]]
    t, b = random.uniform(0.1, 5, 7), random.normal(0, 1, 7)
    expected = prefix_survival(conditional_confidence(logits, t, b))
    assert np.array_equal(survival(logits, t, b), expected)


def test_wrong_shapes_and_clips_are_named():
    rounds = some_rounds(3, 4, 0)
    with pytest.raises(ValueError, match=r"predicted: got shape \(3, 3\)"):
        fold(rounds, np.zeros((3, 3)))
    with pytest.raises(ValueError, match="clip"):
        fold(rounds, np.zeros((3, 4)), clip=0.5)


def explored_rows(count, explore):
    """Nothing was scheduled, everything was verified and accepted."""
    return Rounds.build(
        np.zeros((count, 1), np.float16),
        np.ones(count, np.uint8),
        scheduled=0,
        explore=np.float16(explore),
    )


def test_more_rows_of_the_largest_weight_than_a_finer_unit_would_hold_are_summed_exactly():
    rounds, certain = explored_rows(700_000, 0.0005), np.full((700_000, 1), 0.5)
    sums = fold(rounds, certain)
    assert sums.scalar("weight").tolist() == [700_000 * 1000.0]
    assert sums.scalar("weight_squared").tolist() == [700_000 * 1e6]
    assert sums.bin_sum("weight_squared").sum() == 700_000 * 1e6


def test_weights_beyond_the_integers_are_refused_by_name():
    rounds = explored_rows(100_000, 6e-8)
    with pytest.raises(SumsOverflowError, match=r"explore: got \d+ rows of weights up to 1.6"):
        fold(rounds, np.full((100_000, 1), 0.5), clip=None)


def test_sums_beyond_the_integers_cannot_be_added():
    sums = fold(explored_rows(10, 0.5), np.full((10, 1), 0.5))
    huge = WindowSums(sums.scalars + (2**63 - 1 - sums.scalars), sums.bins)
    with pytest.raises(SumsOverflowError, match="window sums"):
        huge + sums
