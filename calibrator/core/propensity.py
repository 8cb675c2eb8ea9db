"""Inverse-propensity weights: from verified traffic back to the traffic."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from calibrator.core.labels import EndOfSequence, included, positions
from serving_adapter.contract import Rounds

Float = NDArray[np.float64]


def propensities(rounds: Rounds) -> Float:
    """Compute ``pi_k = e + (1 - e) 1{k <= scheduled}``, shape ``[rows, gamma]``.

    ``e`` is the exploration probability in force. Where ``e`` is 0 a position behind ``scheduled``
    cannot be seen and its propensity is 0.
    """
    e = rounds.explore.astype(np.float64)[:, None]
    scheduled = positions(rounds) <= rounds.scheduled[:, None]
    return np.where(scheduled, 1.0, e)


def inclusion_weights(
    rounds: Rounds, end_of_sequence: EndOfSequence = "draft_stop", clip: float | None = None
) -> Float:
    """``1{k <= verified} / pi_k``, shape ``[rows, gamma]``; 0 where there is no usable label.

    A position verified beyond ``scheduled`` without exploration in force (an engine that rounds its
    budget up, say) has weight 0: its inclusion has no known probability.

    Parameters
    ----------
    rounds
        The rows.
    end_of_sequence
        See :func:`calibrator.core.labels.drafted`.
    clip
        Largest weight; None leaves them as they are.
    """
    pi = propensities(rounds)
    usable = included(rounds, end_of_sequence) & (pi > 0)
    weights = np.where(usable, 1.0 / np.where(pi > 0, pi, 1.0), 0.0)
    return weights if clip is None else np.minimum(weights, clip)


def kish(weights: Float, axis: int = 0) -> Float:
    """Kish's effective sample size, ``(sum w)^2 / sum w^2``; 0 where there is no weight."""
    total = np.asarray(weights.sum(axis=axis))
    squares = np.asarray((weights**2).sum(axis=axis))
    effective: Float = np.divide(total**2, squares, out=np.zeros_like(total), where=squares > 0)
    return effective


def clipped_mass(rounds: Rounds, end_of_sequence: EndOfSequence, clip: float | None) -> Float:
    """Share of the inverse-propensity weight that clipping takes away, per position, shape ``[gamma]``.

    That much of the traffic is spoken for by nobody: an upper bound for the bias that clipping buys its
    variance with.

    >>> rounds = Rounds.build([[0.0]] * 2, [1, 1], scheduled=[0, 1], explore=[0.01, 0.01])
    >>> clipped_mass(rounds, "draft_stop", 20.0).round(3)
    array([0.792])
    """
    full = inclusion_weights(rounds, end_of_sequence).sum(axis=0)
    kept = inclusion_weights(rounds, end_of_sequence, clip).sum(axis=0)
    lost: Float = np.divide(full - kept, full, out=np.zeros_like(full), where=full > 0)
    return lost
