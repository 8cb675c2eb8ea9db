"""Building blocks of the backbone: norm, rotary positions, attention over context and own block."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from serving_adapter.engines.torch.dspark.config import DSparkConfig


class RMSNorm(nn.Module):
    """Scale to unit root mean square, computed in single precision."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(dim=-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class Rotary(nn.Module):
    """Rotary position embedding, the two halves of a head rotated against each other."""

    def __init__(self, head_dim: int, theta: float) -> None:
        super().__init__()
        frequencies = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate ``[..., T, heads, dim]`` by absolute ``positions`` ``[..., T]``."""
        assert isinstance(self.frequencies, Tensor)
        angles = positions[..., None].float() * self.frequencies
        angles = torch.cat((angles, angles), dim=-1)[..., None, :]
        first, second = x.chunk(2, dim=-1)
        turned = torch.cat((-second, first), dim=-1)
        return x * angles.cos().to(x.dtype) + turned * angles.sin().to(x.dtype)


class DraftAttention(nn.Module):
    """Queries of the block over keys of the context and of the block, without causality inside it."""

    def __init__(self, config: DSparkConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.heads, config.kv_heads, config.head_dim
        hidden, bias = config.hidden_size, config.attention_bias
        self.q_proj = nn.Linear(hidden, self.heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(self.heads * self.head_dim, hidden, bias=bias)
        norm = config.query_key_norm
        self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps) if norm else nn.Identity()
        self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps) if norm else nn.Identity()
        self.rotary = Rotary(config.head_dim, config.rope_theta)

    def keys_and_values(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values ``[..., T, kv_heads, dim]`` of ``x`` ``[..., T, hidden]`` at ``positions``."""
        shape = (*x.shape[:-1], self.kv_heads, self.head_dim)
        keys = self.rotary(self.k_norm(self.k_proj(x).view(shape)), positions)
        return keys, self.v_proj(x).view(shape)

    def forward(
        self, x: Tensor, positions: Tensor, keys: Tensor, values: Tensor, context_mask: Tensor
    ) -> Tensor:
        """Attend.

        Parameters
        ----------
        x, positions
            Block ``[R, gamma, hidden]`` (normed) and its positions ``[R, gamma]``.
        keys, values
            Context, rotated already, ``[R, kv_heads, C, dim]``.
        context_mask
            Which of the context may be seen, ``[R, C]``.
        """
        rows, gamma = positions.shape
        query = self.rotary(
            self.q_norm(self.q_proj(x).view(rows, gamma, self.heads, self.head_dim)), positions
        )
        own_keys, own_values = self.keys_and_values(x, positions)
        k = torch.cat((keys, own_keys.transpose(1, 2)), dim=2)
        v = torch.cat((values, own_values.transpose(1, 2)), dim=2)
        seen = functional.pad(context_mask, (0, gamma), value=True)[:, None, None, :]
        # Query heads that share a key head become further rows of the block.
        q = query.view(rows, gamma, self.kv_heads, -1, self.head_dim).permute(0, 2, 3, 1, 4)
        q = q.reshape(rows, self.kv_heads, -1, self.head_dim)
        out = functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        out = out.view(rows, self.kv_heads, -1, gamma, self.head_dim).permute(0, 3, 1, 2, 4)
        merged: Tensor = self.o_proj(out.reshape(rows, gamma, self.heads * self.head_dim))
        return merged


class DraftMLP(nn.Module):
    """Gated feed-forward."""

    def __init__(self, config: DSparkConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Position by position."""
        result: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return result


class DraftLayer(nn.Module):
    """One layer of the backbone; only the block is normed before attention, the context comes as it is."""

    def __init__(self, config: DSparkConfig) -> None:
        super().__init__()
        self.self_attn = DraftAttention(config)
        self.mlp = DraftMLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self, x: Tensor, positions: Tensor, keys: Tensor, values: Tensor, context_mask: Tensor
    ) -> Tensor:
        """As :meth:`DraftAttention.forward`, with residuals and feed-forward."""
        x = x + self.self_attn(self.input_layernorm(x), positions, keys, values, context_mask)
        result: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return result
