"""Whether engines explore as often as their rows say.

Inverse-propensity weights and doubly robust labels believe the ``explore`` column. What it claims can be
checked: of the rounds that were scheduled short, that share must have been verified in full.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import bdtr, bdtrc

from calibrator.core.clusters import MIN_REQUESTS
from calibrator.core.labels import drafted_length
from serving_adapter.contract import Rounds

MAX_CHANCE = 1e-5
"""A share that a right column would show less often than this contradicts it."""

MIN_DEVIATIONS = 4.0
"""It must also be so many standard errors away, those of whole requests: engines may draw per request."""


@dataclass(frozen=True, slots=True)
class ExploredShare:
    """Rounds scheduled short with exploration in force: the share explored, claimed and seen."""

    rounds: int
    claimed: float
    seen: float
    contradicted: bool

    @property
    def note(self) -> str:
        """One line for people, naming both figures."""
        return (
            f"explore: rows claim a probability of {self.claimed:.4g}, but {self.seen:.4g} of "
            f"{self.rounds} rounds that were scheduled short were verified in full: figures that rest on "
            "exploration are not to be believed"
        )


def explored_share(rounds: Rounds) -> ExploredShare:
    """Compare the claimed probability with the share of rounds verified in full beyond their schedule.

    >>> rows = Rounds.build([[0.0, 0.0]] * 400, [0] * 400, verified=[2] * 200 + [1] * 200,
    ...     scheduled=[1] * 400, explore=[0.01] * 400)
    >>> share = explored_share(rows)
    >>> round(share.claimed, 3), share.seen, share.contradicted
    (0.01, 0.5, True)
    """
    length = np.minimum(drafted_length(rounds), rounds.gamma)
    e = rounds.explore.astype(np.float64)
    short = (rounds.scheduled < length) & (e > 0)
    n = int(short.sum())
    if not n:
        return ExploredShare(0, 0.0, 0.0, False)
    full = (rounds.verified >= length)[short].astype(np.float64)
    difference = full - e[short]
    claimed, count = float(e[short].mean()), int(full.sum())
    # Unequal probabilities scatter less than equal ones of the same mean (Hoeffding 1956): on the safe side.
    tail = min(float(bdtr(count, n, claimed)), float(bdtrc(count - 1, n, claimed)) if count else 1.0)
    variance = float((e[short] * (1.0 - e[short])).sum())
    _, owner = np.unique(rounds.request[short], return_inverse=True)
    requests = int(owner.max()) + 1
    if requests >= MIN_REQUESTS:
        residual = np.bincount(owner, difference - difference.mean())
        variance = max(variance, float((residual**2).sum()) * requests / (requests - 1))
    far = abs(float(difference.sum())) > MIN_DEVIATIONS * np.sqrt(variance)
    return ExploredShare(n, claimed, count / n, bool(far) and tail < 0.5 * MAX_CHANCE)
