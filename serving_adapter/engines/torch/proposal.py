"""What a drafter proposes, and what every drafter can do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from serving_adapter.engines.torch.packing import PackedBatch


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """Drafts of a batch of ``R`` requests.

    Parameters
    ----------
    tokens
        Drafted tokens of the target's vocabulary, ``[R, gamma]``.
    probability
        Draft probability of each of them (1 where greedy), double precision, ``[R, gamma]``.
    logits
        Draft logits that they were drawn from, ``[R, gamma, D]``.
    confidence
        Raw confidence logits, single precision, ``[R, gamma]``. That of position k may depend on drafted
        tokens 1 to k - 1, never on token k: else scheduling by it would not be lossless.
    vocabulary
        Tokens of the ``D`` columns, ``[D]``; None when they are the target's whole vocabulary.
    """

    tokens: Tensor
    probability: Tensor
    logits: Tensor
    confidence: Tensor
    vocabulary: Tensor | None = None


class Drafter(Protocol):
    """Proposes ``gamma`` tokens behind the last committed token (the anchor) of every request.

    Requests stand in rows 0, 1, ... as in the target's cache. Position ``p`` of a request is the place
    of its token ``p``; the anchor at position ``a`` is the last one and was not processed by the target.
    """

    @property
    def name(self) -> str:
        """What the drafter is, for the engine's identity."""
        ...

    @property
    def gamma(self) -> int:
        """Draft positions."""
        ...

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """Layers of the target whose output :meth:`prefill` and :meth:`commit` need."""
        ...

    def prefill(self, batch: PackedBatch, features: Tensor | None) -> None:
        """Take in the prompts (without their anchors) of requests that join, with their features."""
        ...

    def propose(self, sequences: Sequence[Sequence[int]], temperature: Tensor, uniform: Tensor) -> Proposal:
        """Draft.

        Parameters
        ----------
        sequences
            Tokens of every request, prompt and output, the anchor last.
        temperature
            Sampling temperatures, ``[R]``, double precision; 0 is greedy.
        uniform
            Numbers in [0, 1) to draw with, ``[R, gamma]``, double precision.
        """
        ...

    def commit(self, batch: PackedBatch, features: Tensor | None, kept: Sequence[int]) -> None:
        """Take in what the target processed: of row ``i`` the first ``kept[i]`` tokens stand."""
        ...

    def move(self, source: int, destination: int) -> None:
        """Let the request in one row continue in another."""
        ...
