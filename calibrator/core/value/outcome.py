"""What a round would have yielded had it been verified to another length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrator.core.labels import EndOfSequence, drafted, included, positions, prefix_labels
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
        Rows verified in full by a rule that does not depend on the outcome, and the inverse of that
        rule's probability, shape ``[rows]``; 0 for every other row. Only these know the true length.
    true_accepted
        Accepted length where ``full`` is positive, shape ``[rows]``.
    """

    accepted: Float
    known: NDArray[np.bool_]
    full: Float
    true_accepted: Lengths

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
        deepest = pi[np.arange(len(rounds)), -1]
        knows = (rounds.verified == rounds.gamma) & (deepest > 0)
        full = np.divide(1.0, deepest, out=np.zeros(len(rounds)), where=knows)
        k = positions(rounds)
        true = ((k <= rounds.resolved_accepted[:, None]) & traffic).sum(axis=1, dtype=np.int64)
        return cls(
            np.concatenate([np.zeros((len(rounds), 1)), np.cumsum(terms, axis=1)], axis=1),
            (pi > 0) | ~traffic,
            full,
            true,
        )
