"""Greedy output equals the target's own greedy output, token for token, whatever drafts and schedules.

Here on a small random Llama for the whole matrix and on SmolLM2 for a corner of it; ``python -m
benchmarks.engine greedy`` runs the whole matrix on SmolLM2.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from serving_adapter.engines.torch.engine import TorchEngine  # noqa: E402
from serving_adapter.engines.torch.profile import StepProfile  # noqa: E402
from serving_adapter.engines.torch.requests import GenerationRequest  # noqa: E402
from serving_adapter.engines.torch.self_draft import SelfDrafter, rounded_copy  # noqa: E402
from serving_adapter.scheduler import scheduler_from_name  # noqa: E402
from tests.test_torch_toy import DEVICES, TableDrafter, greedy_output, packed, tiny_llama  # noqa: E402

VOCABULARY, PROMPTS = 64, 50
SCHEDULERS = ("off", "none", "fixed:1", "fixed:3", "threshold:0.5", "early-stop", "asynchronous")
STOP = frozenset({7})


def a_profile(batch: int) -> StepProfile:
    """Costs at which schedulers trim, but not everything."""
    return StepProfile((1, 2 * batch, 4 * batch, 8 * batch), (1.0, 1.4, 2.4, 5.0), (1,), (0.2,))


@pytest.fixture(scope="module")
def model():
    return tiny_llama(VOCABULARY, layers=2, seed=4)


@pytest.fixture(scope="module")
def requests():
    random = np.random.default_rng(0)
    return [
        GenerationRequest(
            request_id=f"{i}",
            prompt=tuple(random.integers(0, VOCABULARY, random.integers(1, 9)).tolist()),
            max_tokens=int(random.integers(1, 16)),
            stop_tokens=STOP,
        )
        for i in range(PROMPTS)
    ]


@pytest.fixture(scope="module")
def expected(model, requests):
    return [greedy_output(model, r.prompt, r.max_tokens, STOP) for r in requests]


def outputs_joining_and_leaving(engine: TorchEngine, requests) -> list[list[int]]:
    """Requests arrive a few at a time while others run and end."""
    waiting, running = list(requests), []
    while waiting or not engine.idle:
        running.extend(engine.submit(request) for request in waiting[:2])
        waiting = waiting[2:]
        engine.step()
    return [r.output for r in running]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("batch", [1, 4, 16])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_self_drafted_output_is_the_targets_own(model, requests, expected, name, batch, device):
    target = packed(copy.deepcopy(model).to(device), rows=batch)
    drafter = SelfDrafter(rounded_copy(target, rows=batch, limit=256), None, gamma=5)
    scheduler = scheduler_from_name(name)
    engine = TorchEngine(target, drafter, scheduler, max_requests=batch, profile=a_profile(batch))
    assert outputs_joining_and_leaving(engine, requests) == expected


@pytest.mark.parametrize("batch", [1, 16])
def test_output_drafted_from_a_poor_table_is_the_targets_own(model, requests, expected, batch):
    drafter = TableDrafter.random(4, VOCABULARY, 40)
    engine = TorchEngine(packed(copy.deepcopy(model), rows=batch), drafter, max_requests=batch)
    assert outputs_joining_and_leaving(engine, requests) == expected


def test_without_a_drafter_the_output_is_the_targets_own(model, requests, expected):
    engine = TorchEngine(packed(copy.deepcopy(model), rows=8), None, max_requests=8)
    assert outputs_joining_and_leaving(engine, requests) == expected


def test_greedy_and_sampled_requests_share_a_batch(model, requests, expected):
    target = packed(copy.deepcopy(model), rows=16)
    drafter = SelfDrafter(rounded_copy(target, rows=16, limit=256), None, gamma=5)
    engine = TorchEngine(target, drafter, max_requests=16)
    mixed = []
    for request in requests:
        noisy = GenerationRequest(
            request_id=f"noisy-{request.request_id}",
            prompt=request.prompt,
            max_tokens=9,
            temperature=1.0,
            seed=1,
        )
        mixed += [request, noisy]
    assert outputs_joining_and_leaving(engine, mixed)[::2] == expected


def test_the_self_draft_of_unrounded_weights_is_accepted_whole(model, requests):
    target = packed(copy.deepcopy(model), rows=4)
    drafter = SelfDrafter(rounded_copy(target, rows=4, limit=256, levels=2**20), None, gamma=5)
    engine = TorchEngine(target, drafter, max_requests=4)
    running = engine.submit(GenerationRequest(request_id="a", prompt=(1, 2, 3), max_tokens=24))
    engine.run()
    assert running.rounds == 4  # 24 tokens, six a round


def test_in_bfloat16_outputs_part_only_at_near_ties(model, requests):
    """Where the two best logits are within rounding of each other, the order of a sum decides."""
    coarse = copy.deepcopy(model).to(torch.bfloat16)
    target = packed(copy.deepcopy(coarse), rows=4)
    drafter = SelfDrafter(rounded_copy(target, rows=4, limit=256), None, gamma=5)
    engine = TorchEngine(target, drafter, max_requests=4)
    outputs = outputs_joining_and_leaving(engine, requests)
    parted = 0
    for request, output in zip(requests, outputs, strict=True):
        own = greedy_output(coarse, request.prompt, request.max_tokens, STOP)
        at = next((i for i, (a, b) in enumerate(zip(output, own, strict=False)) if a != b), None)
        if at is None:
            assert output == own
            continue
        parted += 1
        with torch.no_grad():
            logits = coarse(torch.tensor([[*request.prompt, *own[:at]]])).logits[0, -1].float()
        gap = float(logits[own[at]] - logits[output[at]])
        assert gap <= 4 * 2**-8 * float(logits.abs().max())
    assert parted < PROMPTS / 2
