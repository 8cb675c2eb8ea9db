"""Driving an engine through step sizes that its traffic never takes, within a budget of time.

A scheduler at its optimum stays there, so telemetry is silent about every other size. Whoever binds an
engine gives it one method, and gets a profile at start or whenever the curve has dead spots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from serving_adapter.clock import SystemClock
from serving_adapter.contract import CostCurve, Steps
from serving_adapter.ports import Clock

SPACING = 1.25
"""Neighbouring sizes of a profile are at most this factor apart."""


class StepTimer(Protocol):
    """What an engine binding gives to be profiled."""

    def time_step(self, requests: int, batch_tokens: int) -> float:
        """Run one step of that size, nothing kept of it, and return its seconds."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """Steps that were driven, and the sizes that the budget did not reach."""

    steps: Steps
    skipped: tuple[int, ...]


def unseen_sizes(largest: int, curve: CostCurve | None = None) -> list[int]:
    """Sizes up to ``largest`` that are further than :data:`SPACING` from every measured one.

    >>> unseen_sizes(8)
    [1, 2, 3, 4, 5, 6, 8]
    >>> unseen_sizes(8, CostCurve(batch_tokens=[1, 2, 8], seconds=[1.0, 1.0, 1.0], status=["measured"] * 3))
    [3, 4, 5, 6]
    """
    if largest < 1:
        raise ValueError(f"largest: got {largest}, expected at least 1 token")
    sizes: list[int] = [1]
    while sizes[-1] < largest:
        sizes.append(min(largest, max(sizes[-1] + 1, int(sizes[-1] * SPACING))))
    if curve is None:
        return sizes
    measured = np.array(
        [
            size
            for i, size in enumerate(curve.batch_tokens)
            if not curve.status or curve.status[i] == "measured"
        ],
        dtype=np.float64,
    )

    def known(size: int) -> bool:
        return bool(
            len(measured) and (np.maximum(measured / size, size / measured) < np.sqrt(SPACING) + 1e-9).any()
        )

    return [size for size in sizes if not known(size)]


def profile(
    engine: StepTimer,
    sizes: Sequence[int],
    *,
    budget_seconds: float,
    repeats: int = 15,
    tokens_per_request: int = 8,
    clock: Clock | None = None,
    on_progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> Profile:
    """Time steps of these sizes, smallest first, round by round, until the budget is spent.

    Every size is timed once before any is timed twice: a budget that ends early leaves fewer repeats of
    all sizes rather than none of the large ones. The first, untimed pass warms up what compiles or pads.

    Parameters
    ----------
    engine
        What is profiled.
    sizes
        Batch tokens.
    budget_seconds
        Time that may be spent, in all; the step that crosses it is the last.
    repeats
        Times per size at most.
    tokens_per_request
        Tokens of each request of a step, its anchor included.

    Raises
    ------
    ValueError
        Naming the size or budget that makes no sense.
    """
    if budget_seconds <= 0:
        raise ValueError(f"budget_seconds: got {budget_seconds}, expected more than 0")
    wrong = [size for size in sizes if size < 1]
    if wrong:
        raise ValueError(f"sizes: got {wrong[0]}, expected at least 1 token")
    clock = clock or SystemClock()
    ends = clock.monotonic() + budget_seconds
    ordered = sorted(set(sizes))
    taken: list[tuple[int, int, float]] = []
    total = len(ordered) * (repeats + 1)
    done = 0
    for turn in range(repeats + 1):
        for size in ordered:
            if clock.monotonic() >= ends:
                break
            requests = max(1, -(-size // tokens_per_request))
            seconds = engine.time_step(requests, size)
            if turn > 0:
                taken.append((requests, size, seconds))
            done += 1
            on_progress(done, total)
    timed = {size for _, size, _ in taken}
    return Profile(_steps(taken), tuple(size for size in ordered if size not in timed))


def _steps(taken: Sequence[tuple[int, int, float]]) -> Steps:
    columns: NDArray[np.float64] = np.array(taken, dtype=np.float64).reshape(-1, 3)
    return Steps.build(
        step_seconds=columns[:, 2],
        verify_seconds=columns[:, 2],
        requests=columns[:, 0],
        batch_tokens=columns[:, 1],
    )
