"""Measuring a step profile with the real target and drafter, before any request is served."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from serving_adapter.engines.torch.packed_model import PackedModel
from serving_adapter.engines.torch.packing import PackedBatch
from serving_adapter.engines.torch.profile import StepProfile
from serving_adapter.engines.torch.proposal import Drafter


@torch.inference_mode()
def measure_profile(
    target: PackedModel,
    drafter: Drafter,
    *,
    max_requests: int,
    context: int = 128,
    repetitions: int = 3,
    budget_seconds: float = float("inf"),
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    clock: Callable[[], float] = time.perf_counter,
) -> StepProfile:
    """Measure what verification costs by batch tokens and drafting by requests.

    Cache rows are written over: no request may be running.

    Parameters
    ----------
    target, drafter
        Of the engine to be profiled.
    max_requests
        Most requests of a batch.
    context
        Tokens in front of every draft.
    repetitions
        Timed runs of each size.
    budget_seconds, progress
        See :meth:`StepProfile.measure`.
    clock
        Seconds that never go back.
    """
    device, width, token = target.device, drafter.gamma + 1, target.vocab_size // 2
    context = min(context, target.limit - width)
    prompts = PackedBatch.build([[token] * context] * max_requests, [0] * max_requests, device)
    place = torch.zeros(1, dtype=torch.long, device=device)
    drafter.prefill(prompts, target.forward(prompts, place, feature_layers=drafter.feature_layers).features)

    def verify(tokens: int) -> None:
        # Whole drafts first and one shorter: the layout that as many tokens usually have matters little,
        # since only attention is padded.
        whole, rest = divmod(tokens, width)
        lengths = [width] * whole + ([rest] if rest else [])
        batch = PackedBatch.build([[token] * n for n in lengths], [context] * len(lengths), device)
        output = target.forward(batch, feature_layers=drafter.feature_layers)
        output.logits.argmax(dim=-1).cpu()

    def draft(requests: int) -> None:
        zeros = torch.zeros((requests, drafter.gamma), dtype=torch.float64, device=device)
        drafter.propose([[token] * (context + 1)] * requests, zeros[:, 0], zeros).tokens.cpu()

    return StepProfile.measure(
        verify,
        draft,
        gamma=drafter.gamma,
        max_requests=max_requests,
        repetitions=repetitions,
        budget_seconds=budget_seconds,
        progress=progress,
        clock=clock,
    )
