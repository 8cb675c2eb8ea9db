import numpy as np
import pytest

from calibrator.core.propensity import inclusion_weights, kish, propensities
from serving_adapter.contract import Rounds


def rounds(**columns):
    return Rounds.build([[0.0, 0.0, 0.0]], [0], **{name: [value] for name, value in columns.items()})


def test_what_was_scheduled_is_always_seen_and_the_rest_by_exploration():
    r = rounds(scheduled=1, verified=3, explore=0.25)
    assert propensities(r).tolist() == [[1.0, 0.25, 0.25]]
    assert inclusion_weights(r).tolist() == [[1.0, 4.0, 4.0]]
    assert inclusion_weights(r, clip=2.0).tolist() == [[1.0, 2.0, 2.0]]


def test_without_exploration_only_what_was_scheduled_has_weight():
    assert inclusion_weights(rounds(scheduled=1, verified=3)).tolist() == [[1.0, 0.0, 0.0]]


def test_unverified_positions_have_no_weight():
    assert inclusion_weights(rounds(scheduled=3, verified=1, explore=0.5)).tolist() == [[1.0, 0.0, 0.0]]


def test_kish():
    assert kish(np.ones(7)) == 7
    assert kish(np.array([1.0, 0.0, 0.0])) == 1
    assert kish(np.zeros(3)) == 0
    assert kish(np.array([[1.0, 3.0], [1.0, 1.0]])).tolist() == pytest.approx([2.0, 1.6])


def test_weights_bring_back_the_traffic():
    generator = np.random.default_rng(0)
    n = 200_000
    z = generator.normal(size=(n, 2))
    accepted = (generator.random((n, 2)) < 1 / (1 + np.exp(-z))).astype(int).cumprod(axis=1)
    scheduled = (z[:, 0] > 0.5).astype(int) + 1
    verified = np.where(generator.random(n) < 0.1, 2, scheduled)
    r = Rounds.build(
        z,
        np.minimum(accepted.sum(axis=1), verified),
        scheduled=scheduled,
        verified=verified,
        explore=np.full(n, 0.1),
    )
    w = inclusion_weights(r)[:, 1]
    weighted = (w * accepted[:, 1]).sum() / w.sum()
    naive = accepted[verified == 2, 1].mean()
    assert weighted == pytest.approx(accepted[:, 1].mean(), abs=0.015)
    assert abs(naive - accepted[:, 1].mean()) > 0.05
