"""Lossless acceptance: whatever was drafted, the output is distributed as the target's own.

Draft token ``x`` at a position is accepted with probability ``min(1, p(x) / q(x))``, p the target's and q
the draft's distribution there; after the first rejection the token is drawn from ``max(p - q, 0)``, and
after the last position of a full draft from ``p``. Source: Leviathan, Kalman and Matias 2023; Chen et al.
2023. Greedy decoding is the case where p and q put everything on one token.

Behind a draft that was trimmed to v positions and accepted, the next token could be drawn from p. It is
drawn by the same rule with draft token v + 1 instead, which has the same distribution, as the decision to
trim may not depend on that token: so the outcome of position v + 1 is known without having been verified.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from serving_adapter.engines.torch.packing import PackedBatch
from serving_adapter.engines.torch.proposal import Proposal
from serving_adapter.engines.torch.sampling import distribution, draw


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """Outcome of one verification, on the host, one entry per request.

    Parameters
    ----------
    accepted
        Accepted draft tokens, at most as many as were verified, ``[R]``.
    bonus
        The token behind them, ``[R]``.
    resolved, resolved_accepted
        Positions whose outcome is known (one more than verified, where there is one), and the accepted
        prefix within them, ``[R]``.
    accept_probability
        ``min(1, p / q)`` at resolved positions, NaN elsewhere, single precision, ``[R, gamma]``.
    """

    accepted: NDArray[np.int64]
    bonus: NDArray[np.int64]
    resolved: NDArray[np.int64]
    resolved_accepted: NDArray[np.int64]
    accept_probability: NDArray[np.float32]


def verify(
    logits: Tensor,
    batch: PackedBatch,
    proposal: Proposal,
    temperature: Tensor,
    accept_uniform: Tensor,
    bonus_uniform: Tensor,
) -> Verdict:
    """Accept or reject drafts.

    Parameters
    ----------
    logits
        Target logits at every token of ``batch``, ``[B, V]``.
    batch
        Per request its anchor and as many draft tokens as are verified.
    proposal
        The drafts, ``R`` rows.
    temperature
        Sampling temperatures, double precision, ``[R]``.
    accept_uniform, bonus_uniform
        Numbers in [0, 1), double precision, ``[R, gamma]`` and ``[R]``.
    """
    device = logits.device
    gamma = proposal.tokens.shape[1]
    verified = torch.tensor(batch.lengths, device=device) - 1
    offsets = torch.tensor(batch.offsets[:-1], device=device)
    row = batch.rows - batch.first_row
    column = torch.arange(len(batch), device=device) - offsets[row]
    judged = column < gamma
    row, column = row[judged], column[judged]
    ratio = _accept_probability(logits[judged], row, column, proposal, temperature)
    accept_probability = torch.full(proposal.tokens.shape, float("nan"), dtype=torch.float64, device=device)
    accept_probability[row, column] = ratio
    # NaN compares false: what was not judged is not accepted.
    passes = accept_uniform < accept_probability
    resolved_accepted = passes.long().cumprod(dim=1).sum(dim=1)
    resolved = (verified + 1).clamp(max=gamma)
    accepted = torch.minimum(resolved_accepted, verified)
    bonus = _bonus(logits[offsets + accepted], accepted, proposal, temperature, bonus_uniform)
    free = resolved_accepted > accepted
    if gamma:
        drafted = proposal.tokens.gather(1, accepted.clamp(max=gamma - 1)[:, None])[:, 0]
        bonus = torch.where(free, drafted, bonus)
    numbers = torch.stack([accepted, bonus, resolved, resolved_accepted]).cpu().numpy()
    return Verdict(
        accepted=numbers[0],
        bonus=numbers[1],
        resolved=numbers[2],
        resolved_accepted=numbers[3],
        accept_probability=accept_probability.float().cpu().numpy(),
    )


def _accept_probability(
    logits: Tensor, row: Tensor, column: Tensor, proposal: Proposal, temperature: Tensor
) -> Tensor:
    """``min(1, p / q)`` of draft tokens, double precision, one per row of ``logits``."""
    token = proposal.tokens[row, column]
    t = temperature[row]
    greedy = t == 0
    ratio = torch.zeros(row.shape, dtype=torch.float64, device=logits.device)
    if bool(greedy.any()):
        ratio[greedy] = (logits[greedy].argmax(dim=-1) == token[greedy]).double()
    sampled = ~greedy
    if bool(sampled.any()):
        scaled = logits[sampled] / t[sampled].float()[:, None]
        chosen = scaled.gather(1, token[sampled][:, None])[:, 0].double()
        p = torch.exp(chosen - torch.logsumexp(scaled, dim=-1).double())
        ratio[sampled] = (p / proposal.probability[row, column][sampled]).clamp(max=1.0)
    return ratio


def _bonus(
    logits: Tensor, column: Tensor, proposal: Proposal, temperature: Tensor, uniform: Tensor
) -> Tensor:
    """Token behind the accepted prefix: from what the target has over the draft, or from the target."""
    best = logits.argmax(dim=-1)
    sampled = torch.nonzero(temperature != 0)[:, 0]
    if sampled.numel() == 0:
        return best
    t, column = temperature[sampled], column[sampled]
    p = distribution(logits[sampled], t)
    gamma = proposal.tokens.shape[1]
    rejected = torch.nonzero(column < gamma)[:, 0]
    if rejected.numel():
        q = distribution(proposal.logits[sampled[rejected], column[rejected]].float(), t[rejected])
        residual = p[rejected]
        if proposal.vocabulary is None:
            residual = residual - q
        else:
            residual.index_add_(1, proposal.vocabulary, q, alpha=-1.0)
        residual.clamp_(min=0.0)
        # Nothing left over: p and q agree up to rounding, and a rejection had no probability.
        empty = residual.sum(dim=-1, keepdim=True) <= 0
        p[rejected] = torch.where(empty, p[rejected], residual)
    best[sampled] = draw(p, uniform[sampled])
    return best
