"""Figures of record: unbiased under truncation, honest about their noise, tested against oracles."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrator.core.debiased_ece import debiased_ece
from calibrator.core.doubly_robust import doubly_robust
from calibrator.core.ece import reliability
from calibrator.core.expected_labels import expected_labels, outcome_model
from calibrator.core.imputation import imputed_labels
from calibrator.core.labels import drafted, included, prefix_labels
from calibrator.core.propensity import clipped_mass, inclusion_weights
from calibrator.core.record import figures_of_record
from calibrator.core.soft_labels import soft_outcomes, soft_prefix_labels
from serving_adapter.contract import Rounds, prefix_survival, sigmoid
from tests.recorded import DATA, recorded, truncate


def raw(rounds):
    return prefix_survival(sigmoid(rounds.logits))


def test_on_full_labels_it_is_the_plain_reliability_table():
    rounds = recorded("typical")
    a, inside, labels = raw(rounds), drafted(rounds), prefix_labels(rounds)
    for k, table in enumerate(doubly_robust(a, rounds)):
        mine = inside[:, k]
        plain = reliability(a[mine, k], labels[mine, k], 20)
        assert table.ece == pytest.approx(plain.ece, abs=1e-12)
        assert table.mass == pytest.approx(plain.mass)
        assert table.observed == pytest.approx(plain.observed)
        assert table.corrected == 1.0


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=15, deadline=None)
def test_expected_labels_are_unbiased_over_exploration_whatever_the_model(seed):
    random = np.random.default_rng(seed)
    full = recorded("typical").take(random.integers(0, 13_000, size=40))
    scheduled = random.integers(0, 8, size=40)
    model = random.random((40, 7)).cumprod(axis=1)  # nonsense
    e = 0.25
    mean = np.zeros((40, 7))
    for explored, chance in ((False, 1 - e), (True, e)):
        verified = np.where(explored, 7, scheduled)
        rows = Rounds.build(
            full.logits,
            np.minimum(full.accepted, verified),
            verified=verified,
            scheduled=scheduled,
            explore=np.full(40, e),
        )
        mean += chance * expected_labels(rows, "keep", model=model)
    assert mean == pytest.approx(prefix_labels(full).astype(float), abs=1e-9)


def test_it_is_less_noisy_than_inverse_propensity_and_as_unbiased():
    full = recorded("typical")
    a = raw(full)
    scheduled = (a > 0.5).sum(axis=1)
    true = (a - prefix_labels(full)).mean(axis=0)
    robust, weighted = [], []
    model = None
    for seed in range(40):
        rounds = truncate(full, scheduled, explore=0.02, seed=seed)
        model = outcome_model(rounds) if model is None else model
        robust.append([t.mean_gap for t in doubly_robust(a, rounds, end_of_sequence="keep", model=model)])
        w = inclusion_weights(rounds, "keep")
        weighted.append((w * (a - prefix_labels(rounds))).sum(axis=0) / w.sum(axis=0))
    robust, weighted = np.array(robust), np.array(weighted)
    error = robust.std(axis=0) / np.sqrt(40)
    assert (np.abs(robust.mean(axis=0) - true) < 4 * error).all()
    assert (robust.std(axis=0) < weighted.std(axis=0)).all()


def test_a_right_model_rescues_wrong_propensities():
    random = np.random.default_rng(0)
    c = random.uniform(0.3, 0.9, size=(40_000, 3))
    accepted = np.cumprod(random.random(c.shape) < c, axis=1).sum(axis=1)
    survival = prefix_survival(c)
    full = Rounds.build(np.log(c / (1 - c)), accepted)
    rounds = truncate(full, random.integers(0, 4, size=40_000), explore=0.2)
    lying = Rounds.build(
        rounds.logits,
        rounds.accepted,
        verified=rounds.verified,
        scheduled=rounds.scheduled,
        explore=np.full(40_000, 0.05),
    )
    for table in doubly_robust(survival, lying, model=survival):
        assert abs(table.mean_gap) < 0.03


def test_the_figure_of_record_holds_the_truth_about_as_often_as_it_says():
    full = recorded("dspark")
    a = raw(full)
    truth = [t.ece for t in doubly_robust(a, full)]
    scheduled = (a > 0.3).sum(axis=1)
    held = []
    for seed in range(12):
        random = np.random.default_rng(seed)
        ids = np.unique(full.request)
        chosen = random.choice(ids, size=len(ids))
        index = np.concatenate([np.flatnonzero(full.request == r) for r in chosen])
        owner = np.repeat(np.arange(len(chosen)), [int((full.request == r).sum()) for r in chosen])
        explored = random.random(len(index)) < 0.05
        verified = np.where(explored, 7, scheduled[index])
        rounds = Rounds.build(
            full.logits[index],
            np.minimum(full.accepted[index], verified),
            verified=verified,
            scheduled=scheduled[index],
            request=owner,
            explore=np.full(len(index), 0.05),
            draft_stop=full.draft_stop[index],
        )
        figures = figures_of_record(a[index], rounds)
        held.append([f.ece_low <= t <= f.ece_high for f, t in zip(figures, truth, strict=True)])
    assert 0.85 <= np.mean(held) <= 1.0


def test_without_exploration_only_what_was_never_trimmed_has_a_figure_of_record():
    full = recorded("typical").take(slice(0, 2000))
    rounds = truncate(full, np.full(2000, 2))
    figures = figures_of_record(raw(rounds), rounds)
    assert [f.population for f in figures] == ["traffic"] * 2 + ["verified traffic only"] * 5
    assert [f.ece is None for f in figures] == [f.gap is None for f in figures] == [False] * 2 + [True] * 5
    assert [f.status for f in figures] == ["ok"] * 2 + ["censored"] * 5
    assert figures[6].corrected == 0.0


def test_traffic_that_nobody_could_see_widens_the_interval_and_is_censored_where_it_is_much():
    full = recorded("typical")
    explored, resting = np.full(len(full), 0.05), np.arange(len(full)) % 20
    for share, status in ((2, "censored"), (1, "ok"), (0, "ok")):
        explore = np.where(resting < 2 * share, 0.0, explored)
        seen = np.random.default_rng(0).random(len(full)) < explore
        verified = np.where(seen, 7, 1)
        rounds = Rounds.build(
            full.logits,
            np.minimum(full.accepted, verified),
            verified=verified,
            scheduled=np.ones(len(full)),
            request=full.request,
            explore=explore,
            draft_stop=full.draft_stop,
        )
        third = figures_of_record(raw(full), rounds)[2]
        unseen = 1.0 - third.corrected
        assert unseen == pytest.approx(0.1 * share, abs=0.02)
        assert third.status == (status if unseen <= 0.1 or status == "censored" else "censored")
        assert third.gap_high - third.gap >= unseen
        assert third.ece_high >= min(third.ece + unseen, 1.0)


def test_no_interval_claims_more_error_than_labels_allow():
    for seed in range(6):
        random = np.random.default_rng(seed)
        z = random.normal(2.0, 0.3, size=(2000, 1))
        rounds = Rounds.build(z, random.random(2000) < 0.5)
        (figure,) = figures_of_record(raw(rounds), rounds)
        assert figure.ece_low < 0.377 < figure.ece_high < 0.95  # the truth is .377, the largest gap .95


def test_positions_that_are_nearly_always_rejected_are_not_known_to_the_last_digit():
    held = 0
    for seed in range(40):
        random = np.random.default_rng(seed)
        rounds = Rounds.build(np.full((2000, 1), np.log(0.001 / 0.999)), random.random(2000) < 0.001)
        (figure,) = figures_of_record(raw(rounds), rounds)
        held += figure.gap_low <= 0.0 <= figure.gap_high
    assert held >= 36


def test_long_requests_among_short_ones_count_for_what_they_bear():
    random = np.random.default_rng(0)
    lengths = np.r_[[2000] * 3, [5] * 60]
    rows = int(lengths.sum())
    rounds = Rounds.build(
        np.zeros((rows, 1)), random.random(rows) < 0.5, request=np.repeat(np.arange(63), lengths)
    )
    (figure,) = figures_of_record(raw(rounds), rounds)
    assert figure.requests == 63
    assert figure.status == "insufficient"
    assert figure.gap_low is None


def test_a_calibrated_head_reads_nothing_where_the_plain_ece_reads_its_noise_floor():
    random = np.random.default_rng(2)
    z = random.normal(0, 1.5, size=(3000, 1))
    rounds = Rounds.build(z, random.random(3000) < sigmoid(z)[:, 0])
    (figure,) = figures_of_record(raw(rounds), rounds)
    assert figure.plain_ece > 0.5 * figure.noise_floor
    assert figure.ece < 0.7 * figure.plain_ece
    assert figure.ece_low == pytest.approx(0.0, abs=1e-3)


def test_debiased_ece_of_gaps_far_above_the_noise_is_the_plain_one():
    x, shares = np.linspace(0.05, 0.95, 10), np.full(10, 0.1)
    gaps = 0.3 * np.where(x > 0.5, 1.0, -1.0)
    found = debiased_ece(x, shares, gaps, np.eye(10) * 1e-6)
    assert found.estimate == pytest.approx(0.3, abs=0.003)
    assert found.low < 0.3 < found.high
    assert found.high - found.low < 0.01


def test_debiased_ece_without_a_bin_is_undefined():
    nothing = debiased_ece([0.5], [0.0], [0.0], [[1.0]])
    assert (nothing.estimate, nothing.low, nothing.high) == (None, None, None)


def test_clipping_reports_what_it_takes_away():
    full = recorded("typical")
    rounds = truncate(full, (raw(full) > 0.5).sum(axis=1), explore=0.01)
    assert not clipped_mass(rounds, "draft_stop", None).any()
    assert not clipped_mass(rounds, "draft_stop", 100.1).any()
    some, more = (clipped_mass(rounds, "draft_stop", clip) for clip in (50.0, 10.0))
    assert (some[1:] > 0).all()
    assert (more >= some).all()
    figures = figures_of_record(raw(rounds), rounds, clip=10.0)
    assert [f.clipped for f in figures] == pytest.approx(more.tolist())


def test_what_is_imputed_agrees_with_what_was_seen():
    full = recorded("typical").take(slice(0, 500))
    rounds = truncate(full, np.full(500, 3))
    imputed = imputed_labels(rounds, raw(rounds))
    seen = included(rounds, "keep")
    assert (imputed[seen] == prefix_labels(rounds)[seen]).all()
    assert not imputed[rounds.accepted < 3][:, 3:].any()
    with pytest.raises(ValueError, match="predicted"):
        imputed_labels(rounds, np.zeros((500, 2)))


def soft(name):
    rounds = recorded(name)
    with np.load(DATA / f"rounds-{name}.npz") as file:
        return Rounds.build(
            rounds.logits,
            rounds.accepted,
            request=rounds.request,
            draft_stop=rounds.draft_stop,
            sampling=rounds.sampling,
            accept_probability=file["accept_probability"],
        )


@pytest.mark.parametrize("name", ["typical", "hard", "dspark"])
def test_soft_labels_agree_with_labels_on_average_and_scatter_less(name):
    rounds = soft(name)
    inside, hard_labels, soft_labels = drafted(rounds), prefix_labels(rounds), soft_prefix_labels(rounds)
    for k in range(7):
        mine = inside[:, k]
        difference = (soft_labels - hard_labels)[mine, k]
        _, owner = np.unique(rounds.request[mine], return_inverse=True)
        error = np.sqrt((np.bincount(owner, difference) ** 2).sum()) / mine.sum()
        assert abs(difference.mean()) < 4 * error
        assert soft_labels[mine, k].var() < hard_labels[mine, k].var()


def test_greedy_rounds_keep_their_labels():
    rounds = soft("typical-greedy")
    assert (soft_prefix_labels(rounds) == prefix_labels(rounds)).all()
    outcome, _, weight = soft_outcomes(rounds)
    assert (outcome == prefix_labels(rounds)).all()
    assert (weight == 1.0).all()


def test_an_unknown_probability_leaves_the_row_its_label():
    nan = float("nan")
    rounds = Rounds.build(
        [[0.0, 0.0]] * 3,
        [2, 1, 1],
        verified=[2, 1, 2],
        sampling=[1.0] * 3,
        accept_probability=[[nan, 0.5], [0.5, nan], [0.5, 0.25]],
    )
    assert soft_prefix_labels(rounds)[0].tolist() == [1.0, 1.0]
    assert soft_prefix_labels(rounds)[1, 0] == 0.5
    assert soft_prefix_labels(rounds)[2].tolist() == [0.5, 0.125]
