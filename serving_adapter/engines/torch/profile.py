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
        clock
            Seconds that never go back.
        """
        sizes = _sizes(max_requests * (gamma + 1))
        counts = _sizes(max_requests)
        verify_seconds = _medians(verify, sizes, repetitions, clock)
        draft_seconds = _medians(draft, counts, repetitions, clock)
        return cls(sizes, verify_seconds, counts, draft_seconds)

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
    run: Callable[[int], None], sizes: Sequence[int], repetitions: int, clock: Callable[[], float]
) -> tuple[float, ...]:
    samples = np.zeros((repetitions + 1, len(sizes)))
    # Sizes in turn, so that a slow moment of the machine does not fall on one size alone.
    for repetition in range(repetitions + 1):
        for index, size in enumerate(sizes):
            begin = clock()
            run(size)
            samples[repetition, index] = clock() - begin
    medians = np.median(samples[1:], axis=0)
    # A larger batch is never cheaper: where noise says so, the running maximum stands.
    seconds = np.maximum.accumulate(np.maximum(medians, 1e-9))
    return tuple(float(s) for s in seconds)
