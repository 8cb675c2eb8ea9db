"""The network of a DSpark drafter, without anything about requests or caches."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from serving_adapter.engines.torch.dspark.config import DSparkConfig
from serving_adapter.engines.torch.dspark.layers import DraftLayer, RMSNorm
from serving_adapter.engines.torch.dspark.markov import build_markov_head

Context = Sequence[tuple[Tensor, Tensor]]
"""Keys and values of the context by layer, ``[R, kv_heads, C, dim]`` each, rotated already."""


class DSparkModel(nn.Module):
    """Backbone, Markov head and confidence head.

    Parameters
    ----------
    config
        Dimensions and rules.
    embedding
        Token embedding that anchors are looked up in, ``[V, hidden]``; not trained.
    lm_head
        Output weights over what can be drafted, ``[D, hidden]``; not trained.
    vocabulary
        Tokens of the ``D`` columns; None when they are all.
    """

    def __init__(
        self, config: DSparkConfig, embedding: Tensor, lm_head: Tensor, vocabulary: Tensor | None = None
    ) -> None:
        super().__init__()
        self.config = config
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.fc = nn.Linear(len(config.target_layer_ids) * hidden, hidden, bias=False)
        self.hidden_norm = RMSNorm(hidden, eps)
        self.layers = nn.ModuleList(DraftLayer(config) for _ in range(config.layers))
        self.norm = RMSNorm(hidden, eps)
        drafted = int(lm_head.shape[0])
        # With a reduced vocabulary one more row of W1 stands for every token outside it.
        self.markov_head = build_markov_head(config, drafted + (vocabulary is not None), drafted)
        self.confidence_head: nn.Linear | None = None
        if config.confidence_head:
            width = hidden + (config.markov_rank if config.confidence_with_markov else 0)
            self.confidence_head = nn.Linear(width, 1)
        self.mask_embedding = nn.Parameter(torch.zeros(hidden)) if config.mask_token is None else None
        self.register_buffer("embedding", embedding, persistent=False)
        self.register_buffer("lm_head", lm_head, persistent=False)
        self.register_buffer("vocabulary", vocabulary, persistent=False)
        self.register_buffer("markov_row", self._markov_rows(embedding, vocabulary), persistent=False)

    @staticmethod
    def _markov_rows(embedding: Tensor, vocabulary: Tensor | None) -> Tensor:
        """Row of W1 for every token of the target's vocabulary."""
        if vocabulary is None:
            return torch.arange(embedding.shape[0], device=embedding.device)
        rows = torch.full((embedding.shape[0],), len(vocabulary), device=embedding.device)
        rows[vocabulary] = torch.arange(len(vocabulary), device=embedding.device)
        return rows

    def context(self, features: Tensor, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Keys and values by layer, ``[tokens, kv_heads, dim]``, of target features ``[tokens, F]``."""
        c = self.hidden_norm(self.fc(features))
        return [layer.self_attn.keys_and_values(c, positions) for layer in self.layers]  # type: ignore[operator, union-attr]

    def backbone(self, anchors: Tensor, positions: Tensor, context: Context, context_mask: Tensor) -> Tensor:
        """Hidden states of a block in one pass.

        Parameters
        ----------
        anchors, positions
            Last committed token of every request and its position, ``[R]``.
        context, context_mask
            Keys and values in front of it, and which of them may be seen, ``[R, C]``.

        Returns
        -------
        Hidden states ``[R, gamma, hidden]`` behind the final norm.
        """
        gamma = self.config.block_size
        assert isinstance(self.embedding, Tensor)
        mask: Tensor = self.embedding[self.config.mask_token or 0]
        if self.mask_embedding is not None:
            mask = self.mask_embedding
        first = self.embedding[anchors][:, None]
        x = torch.cat((first, mask.to(first.dtype).expand(len(anchors), gamma - 1, -1)), dim=1)
        slots = positions[:, None] + torch.arange(gamma, device=positions.device)
        for layer, (keys, values) in zip(self.layers, context, strict=True):
            x = layer(x, slots, keys, values, context_mask)
        normed: Tensor = self.norm(x)
        return normed

    def base_logits(self, hidden: Tensor) -> Tensor:
        """Logits ``[..., D]`` before the Markov head."""
        assert isinstance(self.lm_head, Tensor)
        return functional.linear(hidden, self.lm_head)

    def previous_embedding(self, previous: Tensor) -> Tensor | None:
        """``W1[x_{k-1}]`` of tokens of the target's vocabulary; None without a Markov head."""
        assert isinstance(self.markov_row, Tensor)
        return None if self.markov_head is None else self.markov_head.embed(self.markov_row[previous])

    def confidence(self, hidden: Tensor, embedding: Tensor | None) -> Tensor | None:
        """Raw confidence logits ``[...]`` from hidden states and ``W1[x_{k-1}]``; None without a head."""
        if self.confidence_head is None:
            return None
        if self.config.confidence_with_markov:
            assert embedding is not None
            hidden = torch.cat((hidden, embedding.to(hidden.dtype)), dim=-1)
        raw: Tensor = self.confidence_head(hidden)
        return raw[..., 0].float()
