"""The loss of a DSpark drafter: cross entropy, total variation, and confidence against the true acceptance.

Source: DSpark, arXiv 2607.05147, training objective; the weights are the paper's (0.1, 0.9, 1.0). Positions
count by ``exp(-(k - 1) / 4)``: a late one matters only if all before it were accepted.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from serving_adapter.engines.torch.dspark.model import DSparkModel
from tools.train_drafter_corpus import Text

DECAY = 4.0
WEIGHTS = (0.1, 0.9, 1.0)
"""Of cross entropy, total variation and confidence."""


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Anchors of one text: a stretch of context and ``A`` anchors in it.

    Context ``features`` ``[C, F]`` and ``positions`` ``[C]``; ``anchors`` ``[A]`` are positions,
    ``following`` ``[A, gamma + 1]`` the tokens from the anchor on, ``hidden`` and ``log_normaliser`` what
    the target knows in front of each of the gamma tokens behind it.
    """

    features: Tensor
    positions: Tensor
    anchors: Tensor
    following: Tensor
    hidden: Tensor
    log_normaliser: Tensor


def cut(text: Text, gamma: int, stretch: int, count: int, random: torch.Generator) -> Blocks | None:
    """Choose a stretch of a text and anchors in its second half; None when the text is too short."""
    length = len(text.tokens)
    first, last = max(text.first_output - 1, 1), length - gamma - 1
    if last < first:
        return None
    end = int(torch.randint(first, last + 1, (1,), generator=random)) + 1
    begin = max(0, end - stretch)
    lowest = max(first, begin + 1 if begin == 0 else begin + stretch // 2)
    anchors = torch.randint(min(lowest, end - 1), end, (count,), generator=random)
    behind = anchors[:, None] + torch.arange(gamma + 1)
    return Blocks(
        features=text.features[begin:end].float(),
        positions=torch.arange(begin, end),
        anchors=anchors,
        following=text.tokens[behind],
        hidden=text.hidden[behind[:, :-1]].float(),
        log_normaliser=text.log_normaliser[behind[:, :-1]],
    )


@dataclass(frozen=True, slots=True, eq=False)
class Losses:
    """Parts of the loss (means by position weight) and the mean acceptance of position 1."""

    cross_entropy: Tensor
    total_variation: Tensor
    confidence: Tensor
    acceptance: Tensor

    @property
    def total(self) -> Tensor:
        """What is minimised."""
        a, b, c = WEIGHTS
        return a * self.cross_entropy + b * self.total_variation + c * self.confidence


def losses(model: DSparkModel, blocks: Blocks, temperature: float) -> Losses:
    """Loss of the blocks of one text, the target's own tokens given as previous ones."""
    gamma = model.config.block_size
    hidden = _hidden(model, blocks)
    logits, raw = _logits(model, hidden, blocks.following)
    assert isinstance(model.lm_head, Tensor)
    assert isinstance(model.markov_row, Tensor)
    log_p = functional.linear(blocks.hidden, model.lm_head) / temperature - blocks.log_normaliser[..., None]
    log_q = torch.log_softmax(logits / temperature, dim=-1)
    p = log_p.exp()
    # Acceptance is the overlap of both; what the target gives to tokens that cannot be drafted is lost.
    acceptance = torch.minimum(p, log_q.exp()).sum(dim=-1)
    weight = torch.exp(-torch.arange(gamma) / DECAY).expand_as(acceptance)
    columns = model.markov_row[blocks.following[:, 1:]]
    drafted = columns < model.lm_head.shape[0]
    picked = log_q.gather(-1, columns.clamp(max=model.lm_head.shape[0] - 1)[..., None])[..., 0]
    confidence = functional.binary_cross_entropy_with_logits(raw, acceptance.detach(), reduction="none")
    return Losses(
        cross_entropy=-(picked * weight * drafted).sum() / (weight * drafted).sum().clamp(min=1e-9),
        total_variation=((1 - acceptance) * weight).sum() / weight.sum(),
        confidence=(confidence * weight).sum() / weight.sum(),
        acceptance=acceptance[:, 0].mean().detach(),
    )


def _hidden(model: DSparkModel, blocks: Blocks) -> Tensor:
    count = len(blocks.anchors)
    context = [
        tuple(x.transpose(0, 1)[None].expand(count, -1, -1, -1) for x in pair)
        for pair in model.context(blocks.features, blocks.positions)
    ]
    distance = blocks.anchors[:, None] - blocks.positions
    window = model.config.context_window or len(blocks.positions)
    seen = (distance >= 1) & (distance <= window)
    return model.backbone(blocks.following[:, 0], blocks.anchors, context, seen)  # type: ignore[arg-type]


def _logits(model: DSparkModel, hidden: Tensor, following: Tensor) -> tuple[Tensor, Tensor]:
    logits, raw, state = [], [], None
    base = model.base_logits(hidden)
    for k in range(model.config.block_size):
        embedding = model.previous_embedding(following[:, k])
        added: Tensor | float = 0.0
        if model.markov_head is not None and embedding is not None:
            state = model.markov_head.start(embedding) if state is None else state
            added, state = model.markov_head(embedding, hidden[:, k], state)
        confidence = model.confidence(hidden[:, k], embedding)
        assert confidence is not None
        logits.append(base[:, k] + added)
        raw.append(confidence)
    return torch.stack(logits, dim=1), torch.stack(raw, dim=1)
