"""What the recorded machine takes for a step."""

from itertools import pairwise

import numpy as np
import pytest

from serving_adapter.engines.replay import (
    Machine,
    knee_curve,
    load_cost_samples,
    measured_curve,
)
from serving_adapter.step_cost import StepCost


def test_the_measured_curve_is_the_monotone_median_of_the_samples():
    curve, samples = measured_curve(), load_cost_samples()
    assert len(samples) == 630
    assert curve.batch_tokens == sorted(set(samples.batch_tokens.tolist()))
    assert all(a <= b for a, b in pairwise(curve.seconds))
    at_64 = curve.seconds[curve.batch_tokens.index(64)]
    assert at_64 == pytest.approx(np.median(samples.seconds[samples.batch_tokens == 64]))
    assert curve.sps == pytest.approx([1 / s for s in curve.seconds])


def test_medians_that_fall_are_pooled():
    samples = load_cost_samples()
    shape = type(samples)(
        batch_tokens=np.array([1, 2, 2, 2, 3]),
        seconds=np.array([0.1, 0.4, 0.4, 0.4, 0.2]),
        requests=np.ones(5, dtype=int),
        layout=("a",) * 5,
    )
    assert measured_curve(shape).seconds == pytest.approx([0.1, 0.35, 0.35])


def test_the_knee_is_flat_and_then_proportional():
    cost = StepCost.from_curve(knee_curve(128, 0.03))
    assert cost is not None
    assert cost.seconds([1, 64, 128, 256, 512]).tolist() == pytest.approx([0.03, 0.03, 0.03, 0.06, 0.12])
    with pytest.raises(ValueError, match="knee"):
        knee_curve(1)


def test_the_recorded_machine_is_noisy_around_its_curve():
    machine, random = Machine.recorded(), np.random.default_rng(0)
    times = np.array([machine.step_seconds(64, random) for _ in range(400)])
    assert len(set(times.tolist())) > 50
    assert np.median(times) == pytest.approx(float(machine.cost.seconds(64)), rel=0.05)
    assert Machine.with_knee().step_seconds(64, random) == 0.03
