"""The DSpark drafter in the engine: context cache, block in parallel, tokens in sequence."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from serving_adapter.engines.torch.dspark.model import DSparkModel
from serving_adapter.engines.torch.kv_cache import RowCache
from serving_adapter.engines.torch.packing import PackedBatch
from serving_adapter.engines.torch.proposal import Proposal
from serving_adapter.engines.torch.sampling import draw_from_logits


class DSparkDrafter:
    """Runs a :class:`DSparkModel` for the requests of an engine.

    A checkpoint without a confidence head gets ``logit(max q)`` for one: the largest draft probability at
    temperature 1, known before the token is drawn.

    Parameters
    ----------
    model
        The network.
    rows, limit
        As the target's: most requests, and most positions of one.
    name
        What the checkpoint is called.
    """

    def __init__(self, model: DSparkModel, *, rows: int, limit: int, name: str = "dspark") -> None:
        self.model, self.name, self.gamma = model, name, model.config.block_size
        self.feature_layers = model.config.target_layer_ids
        assert isinstance(model.lm_head, Tensor)
        self._device = model.lm_head.device
        self._cache = RowCache(
            layers=model.config.layers,
            rows=rows,
            heads=model.config.kv_heads,
            head_dim=model.config.head_dim,
            limit=limit,
            dtype=model.lm_head.dtype,
            device=self._device,
        )

    def prefill(self, batch: PackedBatch, features: Tensor | None) -> None:
        """See :class:`Drafter`."""
        assert features is not None
        self._cache.reserve(batch.context)
        for layer, (keys, values) in enumerate(self.model.context(features, batch.positions)):
            self._cache.write(layer, batch.rows, batch.positions, keys, values)

    def commit(self, batch: PackedBatch, features: Tensor | None, kept: Sequence[int]) -> None:  # noqa: ARG002
        """See :class:`Drafter`."""
        # What was rejected is written too, beyond the new anchor: no block sees it before the token that
        # comes to stand there overwrites it.
        self.prefill(batch, features)

    def move(self, source: int, destination: int) -> None:
        """See :class:`Drafter`."""
        self._cache.move(source, destination, self._cache.capacity)

    def propose(self, sequences: Sequence[Sequence[int]], temperature: Tensor, uniform: Tensor) -> Proposal:
        """See :class:`Drafter`."""
        anchors = torch.tensor([tokens[-1] for tokens in sequences], device=self._device)
        positions = torch.tensor([len(tokens) - 1 for tokens in sequences], device=self._device)
        context, mask = self._context(positions, max(len(tokens) for tokens in sequences) - 1)
        hidden = self.model.backbone(anchors, positions, context, mask)
        return self._draw(hidden, anchors, temperature, uniform)

    def _context(self, positions: Tensor, longest: int) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        """Keys and values in front of the anchors, and which of them are there."""
        rows, layers = len(positions), range(self.model.config.layers)
        window = self.model.config.context_window
        self._cache.reserve(longest)
        if window is None or longest <= window:
            seen = torch.arange(longest, device=self._device) < positions[:, None]
            return [self._cache.view(layer, 0, rows, longest) for layer in layers], seen
        places = positions[:, None] + torch.arange(-window, 0, device=self._device)
        row_numbers = torch.arange(rows, device=self._device)
        clamped = places.clamp(min=0)
        return [self._cache.window(layer, row_numbers, clamped) for layer in layers], places >= 0

    def _draw(self, hidden: Tensor, anchors: Tensor, temperature: Tensor, uniform: Tensor) -> Proposal:
        model = self.model
        base = model.base_logits(hidden)
        vocabulary = model.vocabulary if isinstance(model.vocabulary, Tensor) else None
        previous, state = anchors, None
        tokens, probabilities, logits, confidence = [], [], [], []
        for k in range(self.gamma):
            here, step_logits = hidden[:, k], base[:, k]
            embedding = model.previous_embedding(previous)
            if model.markov_head is not None and embedding is not None:
                state = model.markov_head.start(embedding) if state is None else state
                added, state = model.markov_head(embedding, here, state)
                step_logits = step_logits + added
            step_logits = step_logits.float()
            raw = model.confidence(here, embedding)
            if raw is None:
                raw = torch.logit(torch.softmax(step_logits, dim=-1).amax(dim=-1), eps=1e-6)
            drawn, probability = draw_from_logits(step_logits, temperature, uniform[:, k])
            previous = drawn if vocabulary is None else vocabulary[drawn]
            tokens.append(previous)
            probabilities.append(probability)
            logits.append(step_logits)
            confidence.append(raw)
        return Proposal(
            tokens=torch.stack(tokens, dim=1),
            probability=torch.stack(probabilities, dim=1),
            logits=torch.stack(logits, dim=1),
            confidence=torch.stack(confidence, dim=1),
            vocabulary=vocabulary,
        )
