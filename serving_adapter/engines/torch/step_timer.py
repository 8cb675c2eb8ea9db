"""The torch engine's binding for :mod:`serving_adapter.profiling`: one verification step of any size."""

from __future__ import annotations

import time

import torch

from serving_adapter.engines.torch.building import PRECISIONS
from serving_adapter.engines.torch.loading import SMOLLM2, load_target
from serving_adapter.engines.torch.packed_model import PackedModel
from serving_adapter.engines.torch.packing import PackedBatch


class TorchStepTimer:
    """Times verification of a target model, nothing kept of what it computes.

    Parameters
    ----------
    largest
        Largest batch in tokens that will be asked for.
    model, device, precision
        See :class:`serving_adapter.engines.torch.building.EngineOptions`.
    gamma
        Draft positions: a request brings at most ``gamma + 1`` tokens.
    context
        Tokens in front of every draft.
    """

    def __init__(
        self,
        largest: int,
        *,
        model: str = SMOLLM2,
        device: str = "cpu",
        precision: str = "float32",
        gamma: int = 7,
        context: int = 128,
    ) -> None:
        if precision not in PRECISIONS:
            raise ValueError(f"precision: got {precision!r}, expected {', '.join(PRECISIONS)}")
        loaded = load_target(model, device=device, dtype=getattr(torch, precision))
        self._width = gamma + 1
        self._context = context
        requests = -(-largest // self._width)
        self._target = PackedModel(loaded.model, rows=requests, limit=context + self._width)
        self._token = self._target.vocab_size // 2

    @torch.inference_mode()
    def time_step(self, requests: int, batch_tokens: int) -> float:
        """Verify that many tokens spread over the requests; seconds until the result is on the host."""
        whole, rest = divmod(batch_tokens, self._width)
        lengths = [self._width] * whole + ([rest] if rest else [])
        assert len(lengths) <= max(requests, 1)
        device = self._target.device
        started = time.perf_counter()
        batch = PackedBatch.build(
            [[self._token] * n for n in lengths], [self._context] * len(lengths), device
        )
        self._target.forward(batch).logits.argmax(dim=-1).cpu()
        return time.perf_counter() - started
