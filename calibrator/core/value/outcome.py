"""What a round would have yielded had it been verified to another length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrator.core.labels import EndOfSequence, drafted, drafted_length, included, positions, prefix_labels
from calibrator.core.propensity import inclusion_weights, propensities
from serving_adapter.contract import Rounds

Float = NDArray[np.float64]
Lengths = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Outcomes:
    """Tokens accepted in each round by verified length.

    Verified to length ``l``, a round yields ``min(true accepted, l) = sum over k <= l of A_k``. Where
    ``A_k`` was seen it is used as it is; under truncation each term is replaced by one of the same
    expectation, ``m_k + (A_k - m_k) 1{k <= verified} / pi_k`` with a model ``m`` of the label. That is
    unbiased whatever ``m`` says, as long as ``m`` did not see the round and ``pi_k > 0``; a good ``m``
    makes it precise.

    Parameters
    ----------
    accepted
        Expected accepted tokens by length 0..gamma, shape ``[rows, gamma + 1]``.
    known
        Positions where exploration, or the scheduler, can show the label, shape ``[rows, gamma]``;
        elsewhere ``accepted`` rests on the model alone.
    full
        Rows whose whole draft was verified by a rule that does not depend on the outcome, and the inverse
        of that rule's probability, shape ``[rows]``; 0 for every other row. Only these know the true
        length, and they stand for the traffic only together with ``knowable``.
    true_accepted
        Accepted length where ``full`` is positive, shape ``[rows]``.
    least, unknown
        What is certain of ``accepted``, and the most that positions which are not ``known`` may add to it,
        both shape ``[rows, gamma + 1]``: behind a rejected position there is nothing to add.
    knowable
        Rows that exploration, or the scheduler, may verify to the end of their draft, shape ``[rows]``.

    >>> rounds = Rounds.build([[0.0] * 3] * 2, [1, 0], verified=[1, 1], scheduled=[1, 1])
    >>> outcomes = Outcomes.build(rounds, np.full((2, 3), 0.5))
    >>> outcomes.least[:, -1].tolist(), outcomes.unknown[:, -1].tolist(), outcomes.knowable.tolist()
    ([1.0, 0.0], [2.0, 0.0], [False, False])
    """

    accepted: Float
    known: NDArray[np.bool_]
    full: Float
    true_accepted: Lengths
    least: Float
    unknown: Float
    knowable: NDArray[np.bool_]

    @classmethod
    def build(cls, rounds: Rounds, model: Float, end_of_sequence: EndOfSequence = "draft_stop") -> Outcomes:
        """Read the labels of ``rounds``.

        Parameters
        ----------
        model
            Probability of ``A_k`` from rounds of other requests, shape ``[rows, gamma]``.
        end_of_sequence
            With ``draft_stop`` a position behind a stop token in the draft yields nothing: it was either
            rejected or came after the end.
        """
        labels = prefix_labels(rounds).astype(np.float64)
        traffic = drafted(rounds, end_of_sequence)
        weights = inclusion_weights(rounds, end_of_sequence)
        terms = np.where(weights == 1.0, labels, model + weights * (labels - model))
        seen_for_sure = included(rounds, end_of_sequence) & (weights == 0)
        # Verified beyond any rule we know of: the label is selected by something unknown, leave it out.
        terms = np.where(seen_for_sure, model, terms) * traffic
        pi = propensities(rounds)
        end = drafted_length(rounds, end_of_sequence)
        deepest = np.where(end > 0, pi[np.arange(len(rounds)), np.maximum(end - 1, 0)], 1.0)
        knows = (rounds.verified >= end) & (deepest > 0)
        full = np.divide(1.0, deepest, out=np.zeros(len(rounds)), where=knows)
        k = positions(rounds)
        true = ((k <= rounds.resolved_accepted[:, None]) & traffic).sum(axis=1, dtype=np.int64)
        known = (pi > 0) | ~traffic
        # Propensities fall along a row, so what is unknown is a tail: it yields at most as often as the
        # last position before it, and nothing where that one was seen to be rejected.
        depth = known.cumprod(axis=1).sum(axis=1)
        before = np.where(depth > 0, terms[np.arange(len(rounds)), np.maximum(depth - 1, 0)], 1.0)
        return cls(
            _by_length(terms),
            known,
            full,
            true,
            _by_length(terms * known),
            _by_length(~known * np.clip(before, 0.0, None)[:, None]),
            deepest > 0,
        )


def _by_length(terms: Float) -> Float:
    """Sums over the first 0..gamma positions, shape ``[rows, gamma + 1]``."""
    return np.concatenate([np.zeros((len(terms), 1)), np.cumsum(terms, axis=1)], axis=1)
