import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrator.core.report import position_report, report_from_windows
from calibrator.core.windows import WINDOW_BINS, WindowSums, fold
from serving_adapter.contract import Rounds, prefix_survival, sigmoid
from tests.recorded import recorded, truncate


def random_rounds(seed, rows, gamma):
    generator = np.random.default_rng(seed)
    verified = generator.integers(0, gamma + 1, rows)
    return Rounds.build(
        generator.normal(0, 3, (rows, gamma)),
        (verified * generator.random(rows)).astype(int),
        verified=verified,
        scheduled=np.minimum(verified, generator.integers(0, gamma + 1, rows)),
        explore=generator.choice([0.0, 0.01, 0.3], rows),
    )


def survival(rounds):
    return prefix_survival(sigmoid(rounds.logits))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.integers(0, 60), st.integers(0, 60), st.sampled_from([1, 2, 7, 32]))
def test_folding_in_parts_is_folding_at_once(seed, rows, more, gamma):
    x, y = random_rounds(seed, rows, gamma), random_rounds(seed + 1, more, gamma)
    both = Rounds.concatenate([x, y])
    assert fold(x, survival(x)) + fold(y, survival(y)) == fold(both, survival(both))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31), st.permutations(range(6)))
def test_merge_order_never_matters(seed, order):
    parts = [random_rounds(seed + i, 20, 3) for i in range(6)]
    sums = [fold(part, survival(part)) for part in parts]
    left = sum((sums[i] for i in order), WindowSums.zeros(3))
    pairs = [sums[order[i]] + sums[order[i + 1]] for i in (0, 2, 4)]
    right = pairs[2] + (pairs[0] + pairs[1])
    assert left == right


def test_zero_is_neutral_and_gamma_must_agree():
    r = random_rounds(0, 30, 4)
    sums = fold(r, survival(r))
    assert sums + WindowSums.zeros(4) == sums
    with pytest.raises(ValueError, match="gamma: got 3, expected 4"):
        _ = sums + WindowSums.zeros(3)


def test_probabilities_of_exactly_zero_and_one_stay_finite():
    rounds = Rounds.build([[1000.0, -1000.0]] * 2, [0, 2])
    sums = fold(rounds, survival(rounds))
    assert sums.bin_sum("drafted")[:, [0, -1]].tolist() == [[0.0, 2.0], [2.0, 0.0]]
    assert all(np.isfinite(r.log_loss) for r in report_from_windows(sums))


FIGURES = ("ece", "noise_floor", "debiased_squared_error", "gap", "brier", "log_loss", "predicted",
           "observed", "n_eff", "coverage", "supported_mass")  # fmt: skip


@pytest.mark.parametrize(("threshold", "explore"), [(0.0, 0.0), (0.4, 0.1), (0.4, 0.0)])
def test_the_report_from_windows_is_the_report_from_rows(threshold, explore):
    full = recorded("typical")
    rounds = truncate(full, (survival(full) > threshold).sum(axis=1), explore)
    a = survival(rounds)
    from_rows = position_report(a, rounds, WINDOW_BINS)
    from_sums = report_from_windows(fold(rounds, a, clip=None))
    for one, other in zip(from_rows, from_sums, strict=True):
        for name in FIGURES:
            assert getattr(other, name) == pytest.approx(getattr(one, name), abs=2e-6, rel=2e-5), name
        assert (one.n, one.drafted, one.status, one.population) == (
            other.n,
            other.drafted,
            other.status,
            other.population,
        )
        assert other.auroc is None
        assert other.auroc_binned == pytest.approx(one.auroc, abs=0.01)
