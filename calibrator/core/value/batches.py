"""Batches of logged rounds, and what the schedulers do with all of them at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from serving_adapter.step_cost import StepCost

Float = NDArray[np.float64]
Lengths = NDArray[np.int64]
SchedulerName = Literal["early-stop", "asynchronous"]
SCHEDULERS: tuple[SchedulerName, ...] = ("early-stop", "asynchronous")

MIN_BATCHES = 256
CHUNK_VALUES = 2_000_000


def draw_batches(weights: Float, concurrency: int, random: np.random.Generator) -> NDArray[np.int64]:
    """Draw rows in proportion to their weights, shape ``[batches, concurrency]``.

    Every row with equal weights is drawn equally often, in random company: systematic resampling, then
    shuffling. There are at least as many draws as rows, and at least :data:`MIN_BATCHES` batches.

    >>> rows = draw_batches(np.ones(512), 2, np.random.default_rng(0))
    >>> rows.shape, bool((np.sort(rows.ravel()) == np.arange(512)).all())
    ((256, 2), True)
    """
    rows = int(np.count_nonzero(weights))
    passes = max(1, -(-MIN_BATCHES * concurrency // max(rows, 1)))
    batches = -(-rows * passes // concurrency)
    count = batches * concurrency
    cumulative = np.cumsum(weights)
    points = (np.arange(count) + random.random()) * (cumulative[-1] / count)
    drawn = np.minimum(np.searchsorted(cumulative, points, side="right"), len(weights) - 1)
    return np.asarray(random.permutation(drawn).reshape(batches, concurrency), dtype=np.int64)


def early_stop_lengths(survival: Float, cost: StepCost) -> Lengths:
    """Run :class:`serving_adapter.scheduler.EarlyStop` on many batches at once.

    Parameters
    ----------
    survival
        Prefix survival of each batch, shape ``[batches, R, gamma]``, never rising along a row.
    cost
        Cost of a step.

    Returns
    -------
    Lengths, shape ``[batches, R]``: the same as ``EarlyStop().lengths`` batch by batch.
    """
    parts = [_admit(part, part.early_stop()) for part in _ranked(survival, cost)]
    return np.concatenate(parts) if parts else np.zeros(survival.shape[:2], dtype=np.int64)


def best_lengths(survival: Float, cost: StepCost) -> Lengths:
    """Run :class:`serving_adapter.scheduler.GlobalSearch` on many batches at once; shapes as above."""
    parts = [_admit(part, part.best()) for part in _ranked(survival, cost)]
    return np.concatenate(parts) if parts else np.zeros(survival.shape[:2], dtype=np.int64)


def asynchronous_lengths(survival: Float, cost: StepCost) -> Lengths:
    """Serve each batch as :class:`serving_adapter.scheduler.Asynchronous` would; shapes as above.

    The capacity comes from a search over the batch before (the last one for the first), whose rounds are
    others: in a replay of rounds in random company that is what confidences of two steps ago are.
    """
    ranked = list(_ranked(survival, cost))
    capacity = np.roll(np.concatenate([part.best() for part in ranked]), 1)
    done, parts = 0, []
    for part in ranked:
        parts.append(_admit(part, capacity[done : done + len(part.order)]))
        done += len(part.order)
    return np.concatenate(parts)


class _Ranked:
    """Candidates of some batches, best first: ``order`` and ``theta`` as in the scheduler's module."""

    def __init__(self, survival: Float, seconds: Float, measured: NDArray[np.bool_]) -> None:
        batches, self.requests, self.gamma = survival.shape
        flat = survival.reshape(batches, self.requests * self.gamma)
        self.order = np.argsort(-flat, axis=1, kind="stable")
        best_first = np.take_along_axis(flat, self.order, axis=1)
        tau = self.requests + np.concatenate([np.zeros((batches, 1)), np.cumsum(best_first, axis=1)], axis=1)
        self.theta = tau / seconds
        self.measured = measured

    def early_stop(self) -> Lengths:
        stops = (self.theta[:, 1:] <= self.theta[:, :-1]) & self.measured[1:]
        everything = self.theta.shape[1] - 1
        first: Lengths = np.where(stops.any(axis=1), np.argmax(stops, axis=1), everything)
        return first

    def best(self) -> Lengths:
        known, everything = int(np.count_nonzero(self.measured)), self.theta.shape[1] - 1
        if known == 0:
            return np.full(len(self.theta), everything, dtype=np.int64)
        best: Lengths = np.argmax(self.theta[:, :known], axis=1)
        at_edge = (best == known - 1) & (known <= everything)
        capacity: Lengths = np.where(at_edge, everything, best)
        return capacity


def _ranked(survival: Float, cost: StepCost) -> Iterator[_Ranked]:
    batches, requests, gamma = survival.shape
    tokens = requests + np.arange(requests * gamma + 1)
    seconds, measured = cost.seconds(tokens), cost.measured(tokens)
    chunk = max(1, CHUNK_VALUES // (requests * gamma))
    for start in range(0, batches, chunk):
        yield _Ranked(survival[start : start + chunk], seconds, measured)


def _admit(ranked: _Ranked, admitted: Lengths) -> Lengths:
    inside = np.zeros(ranked.order.shape, dtype=np.bool_)
    rank = np.arange(ranked.order.shape[1])
    np.put_along_axis(inside, ranked.order, rank < admitted[:, None], axis=1)
    lengths = inside.reshape(-1, ranked.requests, ranked.gamma).sum(axis=2)
    return np.asarray(lengths, dtype=np.int64)
