"""The peers' own results on the recorded rows."""

import json
from pathlib import Path

import numpy as np
import pytest

from calibrator.core.auroc import auroc
from calibrator.core.ece import reliability
from calibrator.core.report import position_report
from calibrator.core.temperature import fit_temperatures
from serving_adapter.contract import prefix_survival, sigmoid
from tests.recorded import NAMES, recorded

GOLDEN = json.loads((Path(__file__).parent / "data" / "golden.json").read_text())


def labels(rounds):
    return (rounds.accepted[:, None] >= np.arange(1, rounds.gamma + 1)).astype(np.uint8)


@pytest.mark.parametrize("name", NAMES)
def test_temperatures_are_those_of_sglang(name):
    rounds, golden = recorded(name), GOLDEN[f"rounds-{name}.npz"]["sglang_fit"]
    fit = fit_temperatures(rounds.logits, labels(rounds), bins=golden["num_bins"])
    assert fit.temperatures == pytest.approx(golden["temperatures"], rel=1e-6)
    assert fit.ece_before == pytest.approx(golden["ece_before"], abs=1e-9)
    assert fit.ece_after == pytest.approx(golden["ece_after"], abs=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_figures_are_those_of_deepspec(name):
    rounds, golden = recorded(name), GOLDEN[f"rounds-{name}.npz"]["deepspec_metrics"]
    survival = prefix_survival(sigmoid(rounds.logits))
    for report, peer in zip(position_report(survival, rounds, 20, "keep"), golden, strict=True):
        assert report.position == peer["position"] + 1
        assert report.n == peer["total_weight"]
        assert report.ece == pytest.approx(peer["ece"], abs=1e-9)
        assert report.brier == pytest.approx(peer["brier"], abs=1e-9)
        assert report.auroc_binned == pytest.approx(peer["auc"], abs=1e-9)
        assert report.predicted == pytest.approx(peer["pred_mean"], abs=1e-9)
        assert report.observed == pytest.approx(peer["target_mean"], abs=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_reliability_rows_are_those_of_deepspec(name):
    rounds = recorded(name)
    table = reliability(sigmoid(rounds.logits)[:, 0], labels(rounds)[:, 0], bins=20)
    rows = GOLDEN[f"rounds-{name}.npz"]["deepspec_reliability_position_1"]
    assert [row["bin"] for row in rows] == np.flatnonzero(table.weight).tolist()
    for row in rows:
        assert table.weight[row["bin"]] == row["weight"]
        assert table.predicted[row["bin"]] == pytest.approx(row["avg_pred"], abs=1e-9)
        assert table.observed[row["bin"]] == pytest.approx(row["avg_target"], abs=1e-9)


def test_auroc_is_that_of_scikit_learn_with_weights_and_ties():
    from sklearn.metrics import roc_auc_score

    generator = np.random.default_rng(0)
    scores = generator.integers(0, 9, 500) / 9
    outcome, weights = generator.integers(0, 2, 500), generator.random(500)
    assert auroc(scores, outcome, weights) == pytest.approx(
        roc_auc_score(outcome, scores, sample_weight=weights), abs=1e-12
    )
