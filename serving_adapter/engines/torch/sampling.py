"""Drawing tokens from logits with given uniform numbers, so that a seed decides everything."""

from __future__ import annotations

import torch
from torch import Tensor


def distribution(logits: Tensor, temperature: Tensor) -> Tensor:
    """Probabilities ``[R, V]`` of logits ``[R, V]`` at temperatures ``[R]``; 0 puts all on the best token."""
    greedy = temperature == 0
    # In the precision of the logits: double precision would double the work over a whole vocabulary.
    scaled = logits / torch.where(greedy, 1.0, temperature).to(logits.dtype)[:, None]
    probabilities = torch.softmax(scaled, dim=-1)
    if bool(greedy.any()):
        best = torch.zeros_like(probabilities).scatter_(1, logits.argmax(dim=-1, keepdim=True), 1.0)
        probabilities = torch.where(greedy[:, None], best, probabilities)
    return probabilities


def draw(weights: Tensor, uniform: Tensor) -> Tensor:
    """Draw one column per row in proportion to its weight, by inverting the cumulative sum.

    Parameters
    ----------
    weights
        Not negative, not all zero, ``[R, V]``; they need not sum to 1.
    uniform
        Numbers in [0, 1), double precision, ``[R]``.

    Returns
    -------
    Columns ``[R]``; a column of weight 0 is never drawn.
    """
    cumulative = weights.cumsum(dim=-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    # Strictly below the total, whatever rounding does: otherwise a trailing zero could be drawn.
    point = torch.minimum(uniform[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, point, right=True)[:, 0]


def draw_from_logits(logits: Tensor, temperature: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Draw one token per row of logits ``[R, V]``; also its probability, both ``[R]``."""
    if not bool(temperature.any()):
        return logits.argmax(dim=-1), torch.ones_like(uniform)
    probabilities = distribution(logits, temperature)
    tokens = draw(probabilities, uniform)
    return tokens, probabilities.gather(1, tokens[:, None])[:, 0].double()
