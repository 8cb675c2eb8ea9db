"""Exploration under saturation: what a label may cost.

Verifying a round in full is nearly free while the machine has room, and expensive once every token of the
batch costs time. The budget lowers the probability until the expected extra time fits, down to nothing. It
goes by the lengths of earlier steps and the cost curve, never by the drafts of this step, so that the logged
probability is a propensity and every rank computes the same.
"""

from __future__ import annotations

from serving_adapter.parameters import half_precision
from serving_adapter.step_cost import StepCost

LEAST = 1e-4
"""A probability below this teaches nothing in a day and is not worth the rows it spoils."""

MEMORY = 0.9
"""Weight of the past in the running mean of scheduled lengths."""


class ExplorationBudget:
    """Lowers the exploration probability so that exploring takes at most a share of the step time.

    Parameters
    ----------
    share
        Largest expected extra time, relative to the step, e.g. 0.005.
    gamma
        Draft positions.

    Raises
    ------
    ValueError
        A share that is not above 0.

    >>> from serving_adapter.step_cost import StepCost
    >>> budget = ExplorationBudget(0.01, gamma=7)
    >>> flat, steep = StepCost([1, 4096], [0.03, 0.03]), StepCost([1, 4096], [0.001, 4.096])
    >>> budget.probability(0.01, 64, flat) == half_precision(0.01)
    True
    >>> budget.probability(0.01, 64, steep) < 0.005
    True
    """

    def __init__(self, share: float, gamma: int) -> None:
        if not share > 0:
            raise ValueError(f"share: got {share}, expected more than 0")
        self._share = share
        self._gamma = gamma
        self._mean_length = 0.0

    def probability(self, wanted: float, requests: int, cost: StepCost | None) -> float:
        """Exploration probability of the next step, as a row can carry it.

        Parameters
        ----------
        wanted
            Probability in force.
        requests
            Requests in the batch.
        cost
            Step cost; while nothing is known nothing is a reason not to explore.
        """
        extra = wanted * requests * (self._gamma - self._mean_length)
        if cost is None or extra <= 0:
            return half_precision(wanted)
        batch = requests * (1.0 + self._mean_length)
        # Over one round's worth of tokens at least: inside a padding tier the next token looks free.
        reach = max(extra, self._gamma - self._mean_length)
        now, then = (float(s) for s in cost.seconds([batch, batch + reach]))
        taken = (then / now - 1.0) * extra / reach
        lowered = wanted if taken <= self._share else wanted * self._share / taken
        return half_precision(lowered if lowered >= LEAST else 0.0)

    def observe(self, mean_length: float) -> None:
        """Remember the mean scheduled length of a step that is done."""
        self._mean_length += (1.0 - MEMORY) * (mean_length - self._mean_length)
