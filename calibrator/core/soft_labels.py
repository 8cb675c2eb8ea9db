"""Soft labels: acceptance probabilities in place of coins, where the engine reports them.

Speculative sampling accepts a drafted token with probability ``min(1, p_target / p_draft)``, coin by coin.
Where an engine reports these probabilities, a label can be replaced by its expectation over the coins:
the same on average, with less noise (Rao-Blackwell).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from calibrator.core.labels import EndOfSequence, at_risk, included, positions, prefix_labels
from serving_adapter.contract import Rounds

Float = NDArray[np.float64]


def soft_rows(rounds: Rounds) -> NDArray[np.bool_]:
    """Rows whose every verified position has a probability, sampled above temperature 0, shape ``[rows]``.

    Greedy verification tosses no coin: a token is accepted if it is the most likely one, whatever the
    probabilities say.
    """
    if rounds.accept_probability is None:
        return np.zeros(len(rounds), dtype=np.bool_)
    behind = positions(rounds) > rounds.verified[:, None]
    known: NDArray[np.bool_] = (np.isfinite(rounds.accept_probability) | behind).all(axis=1)
    return known & (rounds.sampling > 0)


def soft_prefix_labels(rounds: Rounds) -> Float:
    """``E[A_k]`` over the coins of verified positions, ``A_k`` where unknown; shape ``[rows, gamma]``.

    Meaningful where :func:`calibrator.core.labels.included` says so.

    >>> rounds = Rounds.build(
    ...     [[0.0] * 2] * 2, [2, 0], sampling=[1.0, 0.0], accept_probability=[[0.5, 0.5]] * 2
    ... )
    >>> soft_prefix_labels(rounds)
    array([[0.5 , 0.25],
           [0.  , 0.  ]])
    """
    labels = prefix_labels(rounds).astype(np.float64)
    soft = soft_rows(rounds)
    if soft.any():
        labels[soft] = np.cumprod(_probabilities(rounds, soft), axis=1)
    return labels


def soft_outcomes(
    rounds: Rounds, end_of_sequence: EndOfSequence = "draft_stop"
) -> tuple[Float, NDArray[np.bool_], Float]:
    """Outcome, mask and weight of every position for the conditional likelihood, each ``[rows, gamma]``.

    A coin that was tossed only if the ones before it came up heads is replaced by its probability, weighted
    with the probability of having been tossed: verified positions behind a rejection teach as well. Rows
    without probabilities keep their outcomes, positions at risk and weights of 1.

    >>> rounds = Rounds.build([[0.0] * 2], [0], sampling=[1.0], accept_probability=[[0.5, 0.75]])
    >>> outcome, seen, weight = soft_outcomes(rounds)
    >>> outcome.tolist(), seen.tolist(), weight.tolist()
    ([[0.5, 0.75]], [[True, True]], [[1.0, 0.5]])
    """
    outcome = prefix_labels(rounds).astype(np.float64)
    seen = at_risk(rounds, end_of_sequence)
    weight = np.ones(outcome.shape)
    soft = soft_rows(rounds)
    if soft.any():
        p = _probabilities(rounds, soft)
        outcome[soft] = p
        seen[soft] = included(rounds, end_of_sequence)[soft]
        weight[soft, 1:] = np.cumprod(p, axis=1)[:, :-1]
    return outcome, seen, weight


def _probabilities(rounds: Rounds, rows: NDArray[np.bool_]) -> Float:
    assert rounds.accept_probability is not None
    # Behind the verified part anything will do: no mask lets it through.
    return np.nan_to_num(rounds.accept_probability[rows].astype(np.float64), nan=0.0)
