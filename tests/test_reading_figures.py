"""Figures of many windows at once are those of the core, window by window, with honest intervals."""

import dataclasses

import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss

from calibrator.core.drift import tempering
from calibrator.core.labels import prefix_labels
from calibrator.core.report import report_from_windows
from calibrator.core.survival import survival
from calibrator.core.windows import WindowSums, fold
from calibrator.service.reading.figures import figures_of, numbers
from serving_adapter.contract import Rounds
from tests.recorded import recorded, truncate

SAME = {
    "ece": "ece",
    "noise_floor": "noise_floor",
    "squared_error": "debiased_squared_error",
    "gap": "gap",
    "brier": "brier",
    "log_loss": "log_loss",
    "predicted": "predicted",
    "observed": "observed",
    "n_eff": "n_eff",
    "coverage": "coverage",
    "drafted": "drafted",
    "verified": "n",
}


def sums_of(rounds):
    gamma = rounds.gamma
    return fold(rounds, survival(rounds.logits, np.ones(gamma), np.zeros(gamma)))


def schedule(rounds, seed=0):
    return np.random.default_rng(seed).integers(1, rounds.gamma + 1, len(rounds))


def windows():
    full = recorded("typical").take(slice(0, 4000))
    hard = recorded("hard").take(slice(0, 4000))
    deep = np.minimum(schedule(full), 3)
    return {
        "everything verified": sums_of(full),
        "explored": sums_of(truncate(full, schedule(full), explore=0.1)),
        "not explored": sums_of(truncate(hard, schedule(hard))),
        "never verified behind three": sums_of(truncate(full, deep)),
        "few rows": sums_of(full.take(slice(0, 40))),
        "nothing": WindowSums.zeros(full.gamma),
    }


@pytest.fixture(scope="module")
def stacked():
    named = windows()
    figures = figures_of(
        np.stack([w.scalars for w in named.values()]), np.stack([w.bins for w in named.values()])
    )
    return named, figures


@pytest.mark.parametrize(("ours", "theirs"), SAME.items())
def test_every_figure_is_that_of_the_core(stacked, ours, theirs):
    named, figures = stacked
    for point, (name, sums) in enumerate(named.items()):
        expected = [getattr(r, theirs) for r in report_from_windows(sums)]
        shown = numbers(getattr(figures, ours)[point])
        assert [v is None for v in shown] == [v is None for v in expected], name
        assert [v for v in shown if v is not None] == pytest.approx(
            [v for v in expected if v is not None], abs=1e-12
        ), name


def test_status_and_population_are_those_of_the_core(stacked):
    named, figures = stacked
    for point, sums in enumerate(named.values()):
        expected = report_from_windows(sums)
        assert figures.status[point].tolist() == [r.status for r in expected]
        assert bool(figures.traffic[point]) == (expected[0].population == "traffic")


def test_one_window_may_come_without_a_leading_axis():
    sums = sums_of(recorded("typical").take(slice(0, 2000)))
    alone = figures_of(sums.scalars, sums.bins)
    assert alone.ece.shape == (sums.gamma,)
    assert numbers(alone.ece) == pytest.approx([r.ece for r in report_from_windows(sums)])


def test_bins_are_scikit_learns():
    rounds = recorded("typical").take(slice(0, 5000))
    predicted = survival(rounds.logits, np.ones(rounds.gamma), np.zeros(rounds.gamma))
    labels = prefix_labels(rounds)
    keep = rounds.draft_stop == 255 if not (rounds.draft_stop == 0).all() else np.ones(len(rounds), bool)
    rounds, predicted, labels = rounds.take(keep), predicted[keep], labels[keep]
    figures = figures_of(*dataclasses.astuple(fold(rounds, predicted)))
    for k in range(rounds.gamma):
        observed, mean = calibration_curve(labels[:, k], predicted[:, k], n_bins=20)
        used = figures.bins.n_eff[k] > 0
        assert figures.bins.observed[k][used] == pytest.approx(observed, abs=1e-6)
        assert figures.bins.predicted[k][used] == pytest.approx(mean, abs=1e-6)
        assert figures.brier[k] == pytest.approx(brier_score_loss(labels[:, k], predicted[:, k]), abs=1e-6)


def test_intervals_of_calibrated_predictions_hold_zero_and_those_of_wrong_ones_do_not():
    random = np.random.default_rng(1)
    logits = random.normal(0, 1.5, (20_000, 1))
    chance = 1 / (1 + np.exp(-logits[:, 0]))
    held = 0
    for seed in range(40):
        accepted = np.random.default_rng(seed).random(len(chance)) < chance
        rounds = Rounds.build(logits, accepted.astype(int))
        figures = figures_of(*dataclasses.astuple(fold(rounds, survival(rounds.logits, [1.0], [0.0]))))
        held += figures.ece_low[0] == 0.0 and figures.gap_low[0] < 0 < figures.gap_high[0]
    assert held >= 36
    wrong = figures_of(*dataclasses.astuple(fold(rounds, survival(rounds.logits, [4.0], [0.0]))))
    assert 0 < wrong.ece_low[0] < wrong.ece[0] < wrong.ece_high[0]


def test_intervals_allow_for_the_luck_that_rounds_of_a_request_share():
    held = {"alone": 0, "told": 0}
    request = np.repeat(np.arange(100), 40)
    for seed in range(40):
        random = np.random.default_rng(seed)
        luck = random.uniform(-0.3, 0.3, 100)[request]
        logits = np.zeros((len(request), 1))
        rounds = Rounds.build(logits, random.random(len(request)) < 0.5 + luck, request=request)
        predicted = survival(rounds.logits, [1.0], [0.0])
        sums = dataclasses.astuple(fold(rounds, predicted))
        told = tempering(prefix_labels(rounds) - predicted, np.ones((len(request), 1), bool), request)
        for name, figures in (("alone", figures_of(*sums)), ("told", figures_of(*sums, told))):
            held[name] += bool(figures.gap_low[0] < 0 < figures.gap_high[0])
    assert held["alone"] <= 28
    assert held["told"] >= 37


def test_where_nothing_was_explored_the_interval_holds_what_the_missing_labels_allow():
    full = recorded("hard").take(slice(0, 4000))
    verified_only = figures_of(*dataclasses.astuple(sums_of(truncate(full, schedule(full)))))
    truth = figures_of(*dataclasses.astuple(sums_of(full)))
    assert not bool(verified_only.traffic)
    assert (verified_only.ece_low <= truth.ece).all()
    assert (truth.ece <= verified_only.ece_high).all()
    assert (verified_only.ece_high - verified_only.ece_low)[-1] > 0.3
