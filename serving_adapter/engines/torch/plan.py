"""How much of every draft to verify: calibrated survival, a scheduler, and exploration."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from serving_adapter.parameters import Parameters
from serving_adapter.scheduler import Scheduler
from serving_adapter.step_cost import StepCost


@dataclass(frozen=True, slots=True, eq=False)
class VerificationPlan:
    """Verification lengths of one step.

    ``scheduled`` is what the scheduler wants and ``verified`` what is done, ``[R]`` each; they differ
    where a round is explored. ``explore`` is the probability of that, ``version`` the parameters decided
    with. ``predicted_accepted`` sums survival over what is verified; ``predicted_seconds`` is 0 while no
    cost is known.
    """

    scheduled: NDArray[np.int64]
    verified: NDArray[np.int64]
    explored: NDArray[np.bool_]
    explore: float
    version: int
    predicted_accepted: float
    predicted_seconds: float

    @classmethod
    def make(
        cls,
        logits: NDArray[np.float32],
        parameters: Parameters,
        scheduler: Scheduler,
        cost: StepCost | None,
        explored: NDArray[np.bool_],
        explore: float,
        segment: ArrayLike = 0,
        sampling: ArrayLike = 0.0,
    ) -> VerificationPlan:
        """Decide.

        Parameters
        ----------
        logits
            Raw confidence logits, ``[R, gamma]``.
        parameters
            In force: what turns logits into survival.
        scheduler, cost
            What chooses lengths, and what a step costs.
        explored
            Rounds to verify in full whatever the scheduler wants, ``[R]``.
        explore
            The probability with which ``explored`` was drawn.
        segment, sampling
            Segment index and sampling temperature of every round, ``[R]``: which set serves it.
        """
        requests, gamma = logits.shape
        survival = parameters.survival(logits, segment, sampling)
        scheduled = scheduler.lengths(survival, cost)
        verified = np.where(explored, gamma, scheduled)
        inside = np.arange(1, gamma + 1) <= verified[:, None]
        tokens = requests + int(verified.sum())
        return cls(
            scheduled=scheduled,
            verified=verified,
            explored=explored,
            explore=explore,
            version=parameters.version,
            predicted_accepted=float(survival[inside].sum()),
            predicted_seconds=0.0 if cost is None else float(cost.seconds(tokens)),
        )
