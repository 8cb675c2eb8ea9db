import dataclasses
import math

import numpy as np
import pytest

from calibrator.core.ece import expected_calibration_error
from calibrator.core.limits import temperature_limited
from calibrator.core.report import mean_ece, position_report, report_from_windows
from calibrator.core.windows import WindowSums
from serving_adapter.contract import Rounds, prefix_survival, sigmoid
from tests.recorded import recorded, truncate


def survival(rounds):
    return prefix_survival(sigmoid(rounds.logits))


def threshold(rounds, value):
    return (survival(rounds) > value).sum(axis=1)


def test_full_verification_gives_the_plain_figure():
    rounds = recorded("typical")
    a = survival(rounds)
    for report in position_report(a, rounds, 15, "keep"):
        k = report.position - 1
        label = rounds.accepted > k
        assert report.ece == expected_calibration_error(a[:, k], label, 15)
        assert report.gap == pytest.approx(a[:, k].mean() - label.mean(), abs=1e-12)
        assert report.brier == pytest.approx(((a[:, k] - label) ** 2).mean(), abs=1e-12)
        assert (report.n, report.drafted, report.coverage) == (len(rounds), len(rounds), 1.0)
        assert report.n_eff == pytest.approx(len(rounds))
        assert (report.status, report.population, report.supported_mass) == ("ok", "traffic", 1.0)


def test_exploration_brings_back_the_traffic():
    full = recorded("typical")
    a = survival(full)
    truth = position_report(a, full, 15)
    runs = [position_report(a, truncate(full, threshold(full, 0.5), 0.2, seed), 15) for seed in range(8)]
    for k in range(7):
        assert runs[0][k].population == "traffic"
        assert runs[0][k].coverage < 1
        observed = np.mean([run[k].observed for run in runs])
        assert observed == pytest.approx(truth[k].observed, abs=0.02)
        assert np.mean([run[k].gap for run in runs]) == pytest.approx(truth[k].gap, abs=0.02)
        assert np.mean([run[k].ece for run in runs]) == pytest.approx(truth[k].ece, abs=0.03)


def test_without_exploration_the_figure_describes_verified_traffic_and_bounds_the_rest():
    full = recorded("typical")
    a = survival(full)
    rounds = truncate(full, threshold(full, 0.5))
    truth = position_report(a, full, 15)
    for report, whole in zip(position_report(a, rounds, 15), truth, strict=True):
        assert report.population == "verified traffic only"
        assert report.ece_low - 1e-12 <= whole.ece <= report.ece_high + 1e-12
    deep = position_report(a, rounds, 15)[6]
    seen = rounds.verified == 7
    stop = rounds.draft_stop[seen] == 255
    assert deep.n == seen.sum()
    assert stop.all()
    assert deep.observed == pytest.approx((rounds.accepted[seen] == 7).mean())


def test_a_position_never_verified_is_censored_and_has_no_figures():
    full = recorded("hard")
    rounds = truncate(full, np.minimum(threshold(full, 0.5), 2))
    deep = position_report(survival(rounds), rounds)[4]
    assert deep.status == "censored"
    assert (deep.n, deep.n_eff, deep.coverage) == (0, 0.0, 0.0)
    for name in ("ece", "noise_floor", "debiased_squared_error", "gap", "brier", "log_loss", "auroc",
                 "predicted", "observed"):  # fmt: skip
        assert getattr(deep, name) is None


@pytest.mark.parametrize("accepted", [0, 2])
def test_equal_labels_are_degenerate_and_finite(accepted):
    rounds = Rounds.build(np.zeros((400, 2)), np.full(400, accepted))
    for report in position_report(survival(rounds), rounds):
        assert report.status == "degenerate"
        assert report.auroc is None
        assert math.isfinite(report.ece)


def test_few_labels_are_insufficient():
    rounds = Rounds.build(np.zeros((3, 2)), [0, 1, 2])
    assert [r.status for r in position_report(survival(rounds), rounds, 20)] == ["insufficient"] * 2


@pytest.mark.parametrize("rows", [0, 1, 3])
@pytest.mark.parametrize("gamma", [1, 7, 32])
def test_no_figure_is_ever_nan(rows, gamma):
    rounds = Rounds.build(np.zeros((rows, gamma)), np.zeros(rows))
    reports = [
        *position_report(np.full((rows, gamma), 0.5), rounds),
        *report_from_windows(WindowSums.zeros(gamma)),
    ]
    for report in reports:
        for value in dataclasses.asdict(report).values():
            assert not (isinstance(value, float) and not math.isfinite(value))


def test_sample_weights_are_repetitions():
    rounds = recorded("hard").take(slice(0, 900))
    weights = np.where(np.arange(900) < 300, 3.0, 1.0)
    again = rounds.take(np.concatenate([np.arange(900), np.arange(300), np.arange(300)]))
    weighted = position_report(survival(rounds), rounds, 15, sample_weights=weights)
    for one, other in zip(weighted, position_report(survival(again), again, 15), strict=True):
        assert one.ece == pytest.approx(other.ece, abs=1e-12)
        assert one.brier == pytest.approx(other.brier, abs=1e-12)
        assert one.n_eff < other.n_eff


def test_predictions_outside_zero_and_one_are_named():
    rounds = Rounds.build(np.zeros((2, 2)), [0, 1])
    with pytest.raises(ValueError, match=r"row 1, position 2: got 1\.5"):
        position_report([[0.5, 0.5], [0.5, 1.5]], rounds)
    with pytest.raises(ValueError, match="predicted: got shape"):
        position_report([[0.5], [0.5]], rounds)


def test_the_mean_leaves_out_undefined_positions():
    rounds = Rounds.build(np.zeros((4, 2)), [0, 1, 0, 1], verified=[1, 1, 1, 1])
    reports = position_report(survival(rounds), rounds)
    assert mean_ece(reports) == reports[0].ece
    assert mean_ece([]) is None


def test_the_temperature_form_cannot_mend_real_heads():
    limits = temperature_limited(recorded("typical"))
    assert all(limit.limited for limit in limits)
    assert np.mean([limit.temperature for limit in limits]) > 0.5 * np.mean([limit.raw for limit in limits])
    assert np.mean([limit.affine for limit in limits]) < 0.35 * np.mean([limit.raw for limit in limits])


def test_a_temperature_suffices_where_only_a_temperature_is_wrong():
    generator = np.random.default_rng(0)
    z = generator.normal(0.5, 2.0, (12_000, 2))
    accepted = np.minimum.accumulate(generator.random(z.shape) < sigmoid(z / 2), axis=1).sum(axis=1)
    limits = temperature_limited(Rounds.build(z, accepted))
    assert not any(limit.limited for limit in limits)
