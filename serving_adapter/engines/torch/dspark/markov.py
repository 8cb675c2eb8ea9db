"""The sequential block: what the previous token of the draft adds to the logits of the next.

Source: DSpark, arXiv 2607.05147, the sequential block; DeepSpec's weights have these names and shapes.
With ``e = W1[x_{k-1}]`` of rank r, ``h`` the backbone's hidden state at position k::

    vanilla   W2 e
    gated     W2 (sigmoid(Wg [h ; e] + bg) * e)
    rnn       W2 tanh(o),  s' = g * s + (1 - g) * tanh(c),  (g, c, o) = W [s ; e ; h] + b,  g = sigmoid(g)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from serving_adapter.engines.torch.dspark.config import DSparkConfig


class MarkovHead(nn.Module):
    """Vanilla head; the others change how the previous embedding becomes the latent that W2 reads.

    Parameters
    ----------
    config
        Rank and, for the others, the hidden size.
    inputs, outputs
        Rows of W1 (previous tokens) and of W2 (tokens that can be drafted).
    """

    def __init__(self, config: DSparkConfig, inputs: int, outputs: int) -> None:
        super().__init__()
        self.rank = config.markov_rank
        self.markov_w1 = nn.Embedding(inputs, self.rank)
        self.markov_w2 = nn.Linear(self.rank, outputs, bias=False)

    def embed(self, previous: Tensor) -> Tensor:
        """Embedding of previous tokens (rows of W1), ``[..., r]``."""
        embedded: Tensor = self.markov_w1(previous)
        return embedded

    def start(self, embedding: Tensor) -> Tensor:
        """State in front of position 1, ``[..., r]``."""
        return torch.zeros_like(embedding)

    def latent(self, embedding: Tensor, hidden: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Latent ``[..., r]`` and the state behind it."""
        return embedding, state

    def forward(self, embedding: Tensor, hidden: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Addition to the logits ``[..., outputs]`` and the next state."""
        latent, state = self.latent(embedding, hidden, state)
        return self.markov_w2(latent), state


class GatedMarkovHead(MarkovHead):
    """The hidden state decides which parts of the embedding count."""

    def __init__(self, config: DSparkConfig, inputs: int, outputs: int) -> None:
        super().__init__(config, inputs, outputs)
        self.gate_proj = nn.Linear(config.hidden_size + self.rank, self.rank)

    def latent(self, embedding: Tensor, hidden: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`MarkovHead.latent`."""
        gate = torch.sigmoid(self.gate_proj(torch.cat((hidden, embedding), dim=-1)))
        return gate * embedding, state


class RNNMarkovHead(MarkovHead):
    """A recurrent state carries the whole drafted prefix."""

    def __init__(self, config: DSparkConfig, inputs: int, outputs: int) -> None:
        super().__init__(config, inputs, outputs)
        self.joint_proj = nn.Linear(2 * self.rank + config.hidden_size, 3 * self.rank)

    def latent(self, embedding: Tensor, hidden: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`MarkovHead.latent`."""
        joint = self.joint_proj(torch.cat((state, embedding, hidden), dim=-1))
        gate, candidate, output = joint.chunk(3, dim=-1)
        gate = torch.sigmoid(gate)
        return torch.tanh(output), gate * state + (1.0 - gate) * torch.tanh(candidate)


def build_markov_head(config: DSparkConfig, inputs: int, outputs: int) -> MarkovHead | None:
    """Make the head that a configuration names; None for rank 0."""
    heads: dict[str, type[MarkovHead]] = {
        "vanilla": MarkovHead,
        "gated": GatedMarkovHead,
        "rnn": RNNMarkovHead,
    }
    return None if config.markov_head == "none" else heads[config.markov_head](config, inputs, outputs)
