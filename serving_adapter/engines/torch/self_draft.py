"""The self-draft: the target with coarsely rounded weights, drafting token after token with its own cache."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from serving_adapter.engines.torch.packed_model import PackedModel
from serving_adapter.engines.torch.packing import PackedBatch
from serving_adapter.engines.torch.proposal import Proposal
from serving_adapter.engines.torch.sampling import draw_from_logits

LEVELS = 16
GROUP = 64
_PROJECTION_SCALE = 10.0

Head = Literal["overfit", "second"]


def rounded(weight: Tensor, *, levels: int = LEVELS, group: int = GROUP) -> Tensor:
    """Round to the nearest of evenly spaced levels between the least and the largest weight of each group.

    Groups are runs of ``group`` inputs of one output; ``weight`` has shape ``[outputs, inputs]``.
    """
    parts = []
    for part in torch.split(weight, group, dim=1):
        low, high = part.amin(dim=1, keepdim=True), part.amax(dim=1, keepdim=True)
        step = ((high - low) / (levels - 1)).clamp(min=torch.finfo(weight.dtype).tiny)
        parts.append(torch.round((part - low) / step) * step + low)
    return torch.cat(parts, dim=1)


def rounded_copy(target: PackedModel, *, rows: int, limit: int, levels: int = LEVELS) -> PackedModel:
    """Copy a target, every attention and feed-forward weight rounded; embedding and output are shared."""
    shared = {id(p): p for p in target.model.parameters() if p is target.embedding or p is target.lm_head}
    model = copy.deepcopy(target.model, shared)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear) and module.weight is not target.lm_head:
                module.weight.copy_(rounded(module.weight, levels=levels))
    return PackedModel(model, rows=rows, limit=limit)


@dataclass(frozen=True, slots=True, eq=False)
class SelfDraftHead:
    """Linear confidence head: ``z_k = w . [h_k ; 10 (E[x_{k-1}] P)] + b``.

    ``weight`` has shape ``[hidden + r]``, ``projection`` shape ``[hidden, r]``.
    """

    weight: Tensor
    bias: float
    projection: Tensor

    @classmethod
    def packaged(cls, head: Head, device: torch.device) -> SelfDraftHead:
        """Read a packaged head of SmolLM2-135M-Instruct; ``second`` was trained on more rows."""
        source = resources.files("serving_adapter.engines.torch") / "data" / "selfdraft" / "heads.npz"
        with source.open("rb") as file, np.load(file) as arrays:
            return cls(
                weight=torch.from_numpy(arrays[f"{head}_weight"]).to(device),
                bias=float(arrays[f"{head}_bias"]),
                projection=torch.from_numpy(arrays["random_projection"]).to(device),
            )

    def logit(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """Raw logits ``[R]`` from hidden states and embeddings of the previous tokens, ``[R, hidden]``."""
        projected = _PROJECTION_SCALE * (previous.float() @ self.projection)
        return torch.cat((hidden.float(), projected), dim=-1) @ self.weight + self.bias


DEFAULT_GAMMA = 7
"""Draft positions of a drafter that could draft on for ever."""


class SelfDrafter:
    """Drafts with a rounded copy of the target.

    Parameters
    ----------
    model
        From :func:`rounded_copy`.
    head
        Confidence head; None takes ``logit(max q)`` at temperature 1.
    gamma
        Draft positions.
    """

    feature_layers: tuple[int, ...] = ()

    def __init__(
        self,
        model: PackedModel,
        head: SelfDraftHead | None,
        *,
        gamma: int = DEFAULT_GAMMA,
        name: str = "self-draft",
    ) -> None:
        self.model, self.head, self.gamma, self.name = model, head, gamma, name
        self._held: list[int] = []
        """Positions of every row that were processed; up to the anchor they are those of committed tokens."""

    def prefill(self, batch: PackedBatch, features: Tensor | None) -> None:  # noqa: ARG002
        """See :class:`Drafter`."""
        self._grow(batch.first_row + batch.requests)
        place = torch.zeros(1, dtype=torch.long, device=self.model.device)
        self.model.forward(batch, place)
        for row, (start, length) in enumerate(zip(batch.starts, batch.lengths, strict=True)):
            self._held[batch.first_row + row] = start + length

    def commit(self, batch: PackedBatch, features: Tensor | None, kept: Sequence[int]) -> None:
        """Nothing to do: what was accepted is in the cache, and the next draft begins at the anchor."""

    def move(self, source: int, destination: int) -> None:
        """See :class:`Drafter`."""
        self._grow(max(source, destination) + 1)
        self.model.cache.move(source, destination, self._held[source])
        self._held[destination] = self._held[source]

    def propose(self, sequences: Sequence[Sequence[int]], temperature: Tensor, uniform: Tensor) -> Proposal:
        """See :class:`Drafter`."""
        rows = len(sequences)
        self._grow(rows)
        starts = [min(self._held[row], len(tokens) - 1) for row, tokens in enumerate(sequences)]
        # Usually the anchor alone; after a draft that was accepted whole, its last token too.
        pending = [list(tokens[start:]) for tokens, start in zip(sequences, starts, strict=True)]
        previous = torch.tensor([tokens[-1] for tokens in sequences], device=self.model.device)
        drawn_tokens, probabilities, logits, confidence = [], [], [], []
        for k in range(self.gamma):
            batch = PackedBatch.build(pending, starts, self.model.device)
            ends = torch.tensor(batch.offsets[1:], device=self.model.device) - 1
            output = self.model.forward(batch, ends, last_hidden=True)
            assert output.last_hidden is not None
            confidence.append(self._confidence(output.logits, output.last_hidden[ends], previous))
            previous, probability = draw_from_logits(output.logits, temperature, uniform[:, k])
            drawn_tokens.append(previous)
            probabilities.append(probability)
            logits.append(output.logits)
            starts = [start + len(tokens) for start, tokens in zip(starts, pending, strict=True)]
            pending = [[token] for token in previous.tolist()]
        self._held[:rows] = starts
        return Proposal(
            tokens=torch.stack(drawn_tokens, dim=1),
            probability=torch.stack(probabilities, dim=1),
            logits=torch.stack(logits, dim=1),
            confidence=torch.stack(confidence, dim=1),
        )

    def _confidence(self, logits: Tensor, hidden: Tensor, previous: Tensor) -> Tensor:
        if self.head is None:
            return torch.logit(torch.softmax(logits, dim=-1).amax(dim=-1), eps=1e-6)
        return self.head.logit(hidden, self.model.embedding[previous])

    def _grow(self, rows: int) -> None:
        self._held.extend([0] * (rows - len(self._held)))
