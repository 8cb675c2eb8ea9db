"""Which positions of a round carry a label, and what it says.

The inclusion rule: use position k of a round if and only if it was verified (k <= verified). Counting
trimmed positions as rejected, or keeping the ones "whose label happens to be known", biases every
later figure (design: a death spiral of lower labels, higher temperatures, shorter verification).
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from serving_adapter.contract import NO_STOP, Rounds

Mask = NDArray[np.bool_]
EndOfSequence = Literal["draft_stop", "accepted_stop", "keep"]


def positions(rounds: Rounds) -> NDArray[np.int64]:
    """Draft positions 1..gamma, shape ``[1, gamma]``."""
    return np.arange(1, rounds.gamma + 1, dtype=np.int64)[None, :]


def prefix_labels(rounds: Rounds) -> NDArray[np.uint8]:
    """``A_k``: 1 if positions 1..k were all accepted, shape ``[rows, gamma]``.

    Meaningful only where :func:`included` or :func:`at_risk` says so.
    """
    return (positions(rounds) <= rounds.resolved_accepted[:, None]).astype(np.uint8)


def drafted(rounds: Rounds, end_of_sequence: EndOfSequence = "draft_stop") -> Mask:
    """Positions that belong to the traffic, verified or not, shape ``[rows, gamma]``.

    ``draft_stop`` leaves out positions behind a stop token in the draft, whether or not it was
    accepted: a rule that does not depend on the outcome. ``accepted_stop`` leaves them out only when
    the stop was accepted (DeepSpec's evaluator; biased, for parity). ``keep`` leaves out nothing.
    """
    if end_of_sequence == "keep":
        return np.ones((len(rounds), rounds.gamma), dtype=np.bool_)
    inside: Mask = positions(rounds) <= drafted_length(rounds, end_of_sequence)[:, None]
    return inside


def drafted_length(rounds: Rounds, end_of_sequence: EndOfSequence = "draft_stop") -> NDArray[np.int64]:
    """How many positions of each row belong to the traffic (:func:`drafted`), shape ``[rows]``.

    >>> drafted_length(Rounds.build([[0.0] * 3] * 2, [1, 1], draft_stop=[255, 1])).tolist()
    [3, 2]
    """
    if end_of_sequence == "keep":
        return np.full(len(rounds), rounds.gamma, dtype=np.int64)
    stop = np.where(rounds.draft_stop == NO_STOP, rounds.gamma, rounds.draft_stop.astype(np.int64) + 1)
    if end_of_sequence == "accepted_stop":
        stop = np.where(rounds.accepted >= stop, stop, rounds.gamma)
    elif end_of_sequence != "draft_stop":
        raise ValueError(
            f"end_of_sequence: got {end_of_sequence!r}, expected draft_stop, accepted_stop or keep"
        )
    return stop


def included(rounds: Rounds, end_of_sequence: EndOfSequence = "draft_stop") -> Mask:
    """Positions with a usable label: drafted and verified, shape ``[rows, gamma]``."""
    inside: Mask = drafted(rounds, end_of_sequence) & (positions(rounds) <= rounds.verified[:, None])
    return inside


def at_risk(rounds: Rounds, end_of_sequence: EndOfSequence = "draft_stop") -> Mask:
    """Positions whose conditional outcome was seen, everything before them accepted.

    Verified ones, and free labels: behind ``verified`` but within ``resolved``, where the bonus token or
    later steps tell by a rule that does not depend on the outcome. Free labels count here, where no
    weight is needed, and not in :func:`included`, because their propensity is the engine's secret.
    """
    k = positions(rounds)
    seen: Mask = (
        drafted(rounds, end_of_sequence)
        & (k <= rounds.resolved[:, None])
        & (rounds.resolved_accepted[:, None] >= k - 1)
    )
    return seen
