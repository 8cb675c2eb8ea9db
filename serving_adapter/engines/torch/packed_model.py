"""A transformers causal language model that runs packed batches over a row cache."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from serving_adapter.engines.torch.kv_cache import RowCache
from serving_adapter.engines.torch.packing import PackedBatch

ATTENTION = "dspark_packed"
"""Name under which the attention below is known to transformers."""


@dataclass(frozen=True, slots=True, eq=False)
class ModelOutput:
    """What a forward pass gives.

    ``logits`` ``[n, V]`` at the asked places, single precision; ``features`` ``[B, layers * hidden]``, the
    residual stream behind the asked layers side by side, None when none was asked for; ``last_hidden``
    ``[B, hidden]`` behind the final norm, None unless asked for.
    """

    logits: Tensor
    features: Tensor | None
    last_hidden: Tensor | None


class PackedModel:
    """Runs a causal language model on ragged batches, one forward pass for all requests.

    The model is taken over: its attention is replaced by one that reads and writes the row cache.

    Parameters
    ----------
    model
        A transformers causal language model whose attention goes through transformers' attention
        interface, without sliding windows.
    rows
        Most requests in a batch.
    limit
        Most positions of a request.

    Raises
    ------
    ValueError
        The model has layers that are not full attention.
    """

    def __init__(self, model: Any, *, rows: int, limit: int) -> None:
        config = model.config
        kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
        if kinds != {"full_attention"} or getattr(config, "use_sliding_window", False):
            raise ValueError(f"layer_types: got {sorted(kinds)}, expected full_attention throughout")
        _register_attention()
        model.eval()
        model.config._attn_implementation = ATTENTION
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        self.model = model
        self.embedding: Tensor = model.get_input_embeddings().weight
        self.lm_head: Tensor = model.get_output_embeddings().weight
        self.device = self.embedding.device
        self.dtype = self.embedding.dtype
        self.vocab_size = int(self.lm_head.shape[0])
        self.hidden_size = int(config.hidden_size)
        self.layers = int(config.num_hidden_layers)
        heads = int(config.num_attention_heads)
        kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
        self._groups = heads // kv_heads
        self.limit = limit
        self.cache = RowCache(
            layers=self.layers,
            rows=rows,
            heads=kv_heads,
            head_dim=int(getattr(config, "head_dim", None) or self.hidden_size // heads),
            limit=limit,
            dtype=self.dtype,
            device=self.device,
        )

    def forward(
        self,
        batch: PackedBatch,
        logits_at: Tensor | None = None,
        *,
        feature_layers: tuple[int, ...] = (),
        last_hidden: bool = False,
    ) -> ModelOutput:
        """Process the tokens of a batch and store their keys and values.

        Parameters
        ----------
        batch
            ``B`` tokens of ``R`` requests.
        logits_at
            Places in the batch to compute logits at, ``[n]``; None for all.
        feature_layers
            Zero-based decoder layers whose output is wanted; -1 is the embedding.
        last_hidden
            Whether the hidden states behind the final norm are wanted.
        """
        self.cache.reserve(batch.context)
        attention = _PackedAttention(self.cache, batch, batch.causal_mask(self._groups, self.dtype))
        wants_states = bool(feature_layers) or last_hidden
        output = self.model(
            input_ids=batch.tokens[None],
            position_ids=batch.positions[None],
            use_cache=False,
            output_hidden_states=wants_states,
            logits_to_keep=0 if logits_at is None else logits_at,
            dspark_attention=attention,
        )
        states: Any = output.hidden_states
        features = torch.cat([states[i + 1][0] for i in feature_layers], dim=-1) if feature_layers else None
        return ModelOutput(
            logits=output.logits[0].float(),
            features=features,
            last_hidden=states[-1][0] if last_hidden else None,
        )


@dataclass(frozen=True, slots=True, eq=False)
class _PackedAttention:
    """Attention of one forward pass: store the new keys and values, attend over the whole row."""

    cache: RowCache
    batch: PackedBatch
    mask: Tensor

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """From ``[1, heads, B, dim]`` each to the attention's output ``[1, B, heads, dim]``."""
        batch = self.batch
        self.cache.write(layer, batch.rows, batch.positions, key[0].transpose(0, 1), value[0].transpose(0, 1))
        keys, values = self.cache.view(layer, batch.first_row, batch.requests, batch.context)
        heads, dim, kv_heads = query.shape[1], query.shape[3], keys.shape[1]
        # The query heads that share a key head become further query rows: no key is ever repeated.
        q = batch.pad(query[0].transpose(0, 1)).view(batch.requests, batch.longest, kv_heads, -1, dim)
        q = q.permute(0, 2, 3, 1, 4).reshape(batch.requests, kv_heads, -1, dim)
        out = functional.scaled_dot_product_attention(q, keys, values, attn_mask=self.mask, scale=scaling)
        out = out.view(batch.requests, kv_heads, heads // kv_heads, batch.longest, dim).permute(0, 3, 1, 2, 4)
        return batch.unpad(out.reshape(batch.requests, batch.longest, heads, dim))[None]


def _attention_function(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001
    scaling: float,
    dspark_attention: _PackedAttention,
    **_: Any,
) -> tuple[Tensor, None]:
    return dspark_attention(module.layer_idx, query, key, value, scaling), None


def _register_attention() -> None:
    """Transformers builds no mask for an attention that it does not know a mask function of."""
    import_module("transformers.modeling_utils").AttentionInterface.register(ATTENTION, _attention_function)
