"""What a step costs on this machine: measured at start, not assumed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from serving_adapter.contract import CostCurve
from serving_adapter.step_cost import StepCost

Float = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class StepProfile:
    """Seconds of verification by batch tokens and of drafting by requests.

    ``verify_tokens`` and ``verify_seconds`` have shape ``[sizes]``, ``draft_requests`` and
    ``draft_seconds`` shape ``[counts]``; sizes rise strictly, seconds never fall.
    """

    verify_tokens: tuple[int, ...]
    verify_seconds: tuple[float, ...]
    draft_requests: tuple[int, ...]
    draft_seconds: tuple[float, ...]
    _costs: dict[int, StepCost] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def measure(
        cls,
        verify: Callable[[int], None],
        draft: Callable[[int], None],
        *,
        gamma: int,
        max_requests: int,
        repetitions: int = 3,
        budget_seconds: float = float("inf"),
        progress: Callable[[int, int], None] = lambda _done, _total: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> StepProfile:
        """Run steps of every size and take the median time of each.

        Parameters
        ----------
        verify
            Runs a verification of that many batch tokens and waits for its end.
        draft
            Drafts for that many requests and waits for the end.
        gamma, max_requests
            The largest step has ``max_requests * (gamma + 1)`` tokens.
        repetitions
            Timed runs of each size, after one that is not timed.
        budget_seconds
            For all runs together. When it is used up, no further one begins: sizes then have fewer runs
            than wished for, and the largest may have none, so that the profile ends below them.
        progress
            Called before each run with its number and the number of all.
        clock
            Seconds that never go back.
        """
        sizes = _sizes(max_requests * (gamma + 1))
        counts = _sizes(max_requests)
        runs = (repetitions + 1) * len(sizes)
        total = runs + (repetitions + 1) * len(counts)
        verify_seconds, used = _medians(
            verify, sizes, repetitions, budget_seconds / 2, lambda done: progress(done, total), clock
        )
        draft_seconds, _ = _medians(
            draft,
            counts,
            repetitions,
            budget_seconds - used,
            lambda done: progress(runs + done, total),
            clock,
        )
        return cls(sizes[: len(verify_seconds)], verify_seconds, counts[: len(draft_seconds)], draft_seconds)

    def cost(self, requests: int) -> StepCost:
        """Seconds of a whole step of that many requests, by batch tokens."""
        if requests not in self._costs:
            draft = float(np.interp(requests, self.draft_requests, self.draft_seconds))
            self._costs[requests] = StepCost(self.verify_tokens, np.array(self.verify_seconds) + draft)
        return self._costs[requests]

    def curve(self, requests: int) -> CostCurve:
        """The same as a curve that can stand in a parameter document."""
        cost = self.cost(requests)
        seconds = [float(s) for s in cost.at_sizes]
        return CostCurve(
            batch_tokens=list(self.verify_tokens),
            seconds=seconds,
            status=["measured"] * len(seconds),
            sps=[1.0 / s for s in seconds],
        )


def _sizes(largest: int) -> tuple[int, ...]:
    """1, 2, 4, 8, ... up to and including the largest."""
    return (*(2**power for power in range((largest - 1).bit_length())), largest)


def _medians(
    run: Callable[[int], None],
    sizes: Sequence[int],
    repetitions: int,
    budget: float,
    progress: Callable[[int], None],
    clock: Callable[[], float],
) -> tuple[tuple[float, ...], float]:
    """Median seconds of the sizes that were run at all, the smallest at least; and the seconds used."""
    samples = np.full((repetitions + 1, len(sizes)), np.nan)
    used = 0.0
    # Sizes in turn, so that a slow moment of the machine does not fall on one size alone.
    for number in range(samples.size):
        if number and used >= budget:
            break
        repetition, index = divmod(number, len(sizes))
        progress(number + 1)
        begin = clock()
        run(sizes[index])
        samples[repetition, index] = seconds = clock() - begin
        used += seconds
    samples = samples[:, ~np.isnan(samples[0])]
    timed = samples[1:]
    # The first run is not timed (it warms up), but where the budget left no other it has to do.
    timed = np.where(np.isnan(timed).all(axis=0), samples[0], timed)
    # A larger batch is never cheaper: where noise says so, the running maximum stands.
    seconds_of = np.maximum.accumulate(np.maximum(np.nanmedian(timed, axis=0), 1e-9))
    return tuple(float(s) for s in seconds_of), used
