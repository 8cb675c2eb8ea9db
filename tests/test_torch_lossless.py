"""Sampled output is distributed as the target's, with every scheduler; one that looks ahead fails."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from scipy import stats

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from serving_adapter.adapter import ServingAdapter  # noqa: E402
from serving_adapter.contract import EngineIdentity  # noqa: E402
from serving_adapter.engines.torch.engine import TorchEngine, generate  # noqa: E402
from serving_adapter.engines.torch.profile import StepProfile  # noqa: E402
from serving_adapter.engines.torch.requests import GenerationRequest  # noqa: E402
from serving_adapter.scheduler import GlobalSearch, scheduler_from_name  # noqa: E402
from tests.test_torch_toy import TableDrafter, enumerate_outputs, packed, tiny_llama  # noqa: E402

PROMPT = (3, 4, 5)
OUTPUTS = 6000
LENGTH = 3
GAMMA = 3

# Admitting one or two drafts never pays; admitting three pays if the third is nearly sure to survive.
LOOK_AHEAD_PROFILE = StepProfile((1, 2, 3, 4), (1.0, 2.0, 2.6, 2.61), (1,), (0.0,))
BATCH = 200
# A staircase: an algorithm that stops early trims somewhere in the middle.
BATCH_PROFILE = StepProfile((1, 200, 400, 600, 800), (0.5, 1.0, 1.3, 2.2, 4.0), (1,), (0.0,))


class PerRequest:
    """Lets a scheduler decide about every request by itself, as in batches of one."""

    def __init__(self, scheduler) -> None:
        self.scheduler = scheduler

    def lengths(self, survival, cost):
        return np.concatenate([self.scheduler.lengths(row[None], cost) for row in survival])


@pytest.fixture(scope="module")
def model():
    return tiny_llama()


@pytest.fixture(scope="module")
def expected(model):
    return enumerate_outputs(model, PROMPT, LENGTH, 1.0)


def an_adapter(explore: float) -> ServingAdapter:
    identity = EngineIdentity(target="toy", drafter="table", gamma=GAMMA, engine="torch")
    return ServingAdapter(identity, "toy", "replica", explore=explore)


def p_value(model, expected, scheduler, profile, *, drafter=None, explore=0.0, seed=0) -> float:
    """Chi-square of 3-token outputs against the enumerated distribution; rare outputs are pooled."""
    engine = TorchEngine(
        packed(copy.deepcopy(model), rows=BATCH),
        drafter or TableDrafter.random(GAMMA),
        scheduler,
        an_adapter(explore) if explore else None,
        max_requests=BATCH,
        profile=profile,
    )
    requests = [
        GenerationRequest(request_id=f"{i}", prompt=PROMPT, max_tokens=LENGTH, temperature=1.0, seed=seed + i)
        for i in range(OUTPUTS)
    ]
    outputs = np.array(generate(engine, requests))
    counts = np.zeros(expected.shape)
    np.add.at(counts, tuple(outputs.T), 1)
    wanted = expected.reshape(-1) * OUTPUTS
    counts = counts.reshape(-1)
    common = wanted >= 5
    observed = np.append(counts[common], counts[~common].sum())
    return float(stats.chisquare(observed, np.append(wanted[common], wanted[~common].sum())).pvalue)


SCHEDULERS = ("off", "none", "fixed:1", "fixed:2", "threshold:0.4", "early-stop", "asynchronous")


@pytest.mark.parametrize("explore", [0.0, 0.3])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_sampled_output_is_distributed_as_the_targets(model, expected, name, explore):
    assert p_value(model, expected, scheduler_from_name(name), BATCH_PROFILE, explore=explore) > 1e-3


def look_ahead_drafter() -> TableDrafter:
    """Positions 1 and 2 survive fairly surely, position 3 surely or never, depending on token 2."""
    drafter = TableDrafter.random(GAMMA)
    confidence = np.zeros((GAMMA, 12))
    confidence[0], confidence[1] = np.log(4.0), np.log(9.0)
    confidence[2] = np.where(np.arange(12) % 2 == 0, 12.0, -12.0)
    return TableDrafter(drafter._logits, confidence, drafter._vocabulary)


def test_deciding_per_request_by_early_stopping_is_lossless(model, expected):
    drafter = look_ahead_drafter()
    scheduler = PerRequest(scheduler_from_name("early-stop"))
    assert p_value(model, expected, scheduler, LOOK_AHEAD_PROFILE, drafter=drafter) > 1e-3


def test_a_scheduler_that_looks_ahead_is_found_out(model, expected):
    drafter = look_ahead_drafter()
    assert p_value(model, expected, PerRequest(GlobalSearch()), LOOK_AHEAD_PROFILE, drafter=drafter) < 1e-9


def test_a_drafter_over_the_whole_vocabulary_is_lossless_too(model, expected):
    random = np.random.default_rng(5)
    drafter = TableDrafter(random.normal(0, 1.5, (12, 12)), random.normal(0.5, 2.0, (GAMMA, 12)))
    assert p_value(model, expected, scheduler_from_name("threshold:0.4"), None, drafter=drafter) > 1e-3


def test_without_a_drafter_the_target_is_sampled(model, expected):
    engine = TorchEngine(packed(copy.deepcopy(model)), None, max_requests=64)
    outputs = generate(
        engine,
        [
            GenerationRequest(request_id=f"{i}", prompt=PROMPT, max_tokens=1, temperature=1.0, seed=i)
            for i in range(2000)
        ],
    )
    counts = np.bincount(np.array(outputs)[:, 0], minlength=12)
    wanted = expected.sum(axis=(1, 2)) * 2000
    common = wanted >= 5
    observed = np.append(counts[common], counts[~common].sum())
    assert stats.chisquare(observed, np.append(wanted[common], wanted[~common].sum())).pvalue > 1e-3
