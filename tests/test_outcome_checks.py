"""Predictions and labels that are none are refused by name."""

import numpy as np
import pytest

from calibrator.core.bootstrap import ece_interval
from calibrator.core.corp import corp_curve
from calibrator.core.smooth_ece import smooth_ece


def interval(predicted, labels):
    n = len(predicted)
    return ece_interval(np.reshape(predicted, (n, 1)), np.reshape(labels, (n, 1)), np.arange(n))


@pytest.mark.parametrize("figure", [interval, corp_curve, smooth_ece])
def test_figures_refuse_what_is_no_probability(figure):
    for wrong in (-0.1, 1.5, float("nan")):
        with pytest.raises(ValueError, match=f"predicted: got {wrong}"):
            figure([0.5, wrong], [0, 1])
    for wrong in (2.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match=f"labels: got {wrong}"):
            figure([0.5, 0.5], [0, wrong])


def test_labels_without_weight_are_not_looked_at():
    assert smooth_ece([0.5, 0.5], [1.0, float("nan")], [1.0, 0.0]).error is not None
