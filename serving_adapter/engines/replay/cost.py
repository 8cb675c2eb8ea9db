"""What the recorded machine takes for a step, and a machine with a knee for load tests."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np
from numpy.typing import NDArray

from serving_adapter.contract import CostCurve
from serving_adapter.step_cost import StepCost

Float = NDArray[np.float64]

_DATA = "serving_adapter.engines.replay"


@dataclass(frozen=True, slots=True, eq=False)
class CostSamples:
    """Measured steps, one entry each: batch tokens, seconds, requests and layout of the batch."""

    batch_tokens: NDArray[np.int64]
    seconds: Float
    requests: NDArray[np.int64]
    layout: tuple[str, ...]

    def __len__(self) -> int:
        return int(self.seconds.size)


@cache
def load_cost_samples() -> CostSamples:
    """Read the packaged samples: the target on two CPU cores, 15 repetitions a size, noise and all."""
    with (resources.files(_DATA) / "data" / "cost-samples.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return CostSamples(
        batch_tokens=np.array([int(row["batch_tokens"]) for row in rows]),
        seconds=np.array([float(row["seconds"]) for row in rows]),
        requests=np.array([int(row["requests"]) for row in rows]),
        layout=tuple(row["layout"] for row in rows),
    )


def measured_curve(samples: CostSamples | None = None) -> CostCurve:
    """Median seconds by batch tokens over repetitions and layouts, made monotone.

    Where medians fall with size, neighbours are pooled (isotonic regression weighted by samples).
    """
    samples = load_cost_samples() if samples is None else samples
    sizes, counts = np.unique(samples.batch_tokens, return_counts=True)
    medians = np.array([np.median(samples.seconds[samples.batch_tokens == size]) for size in sizes])
    seconds = _non_decreasing(medians, counts.astype(np.float64))
    return CostCurve(
        batch_tokens=sizes.tolist(),
        seconds=seconds.tolist(),
        status=["measured"] * sizes.size,
        sps=(1.0 / seconds).tolist(),
    )


def knee_curve(knee: int = 128, base_seconds: float = 0.03, last: int = 4096) -> CostCurve:
    """Shape of an accelerator: flat while memory bounds the step, then proportional to batch tokens.

    Parameters
    ----------
    knee
        Batch tokens where compute takes over.
    base_seconds
        Seconds of a step up to the knee; twice that at twice the knee.
    last
        Largest size of the curve, in batch tokens.
    """
    if not 1 < knee < last:
        raise ValueError(f"knee: got {knee}, expected a size between 1 and {last} batch tokens")
    seconds = [base_seconds, base_seconds, base_seconds * last / knee]
    return CostCurve(
        batch_tokens=[1, knee, last],
        seconds=seconds,
        status=["measured"] * 3,
        sps=[1.0 / value for value in seconds],
    )


@dataclass(frozen=True, slots=True, eq=False)
class Machine:
    """A machine that takes ``cost`` for a step, times a random factor.

    Parameters
    ----------
    cost
        Seconds by batch tokens without noise.
    noise
        Factors to draw from, shape ``[any]``; empty for a machine without noise.
    """

    cost: StepCost
    noise: Float

    @classmethod
    def from_curve(cls, curve: CostCurve, noise: Float | None = None) -> Machine:
        """Build a machine that behaves as the curve says.

        Raises
        ------
        ValueError
            Nothing of the curve was measured.
        """
        cost = StepCost.from_curve(curve)
        if cost is None:
            raise ValueError("curve: got no measured size, expected at least one")
        return cls(cost, np.zeros(0) if noise is None else np.asarray(noise, dtype=np.float64))

    @classmethod
    def recorded(cls) -> Machine:
        """The measured machine with its measured noise: every sample over the median of its size."""
        samples = load_cost_samples()
        curve = measured_curve(samples)
        cost = StepCost(curve.batch_tokens, curve.seconds)
        return cls(cost, samples.seconds / cost.seconds(samples.batch_tokens))

    @classmethod
    def with_knee(cls, knee: int = 128, base_seconds: float = 0.03) -> Machine:
        """A machine as :func:`knee_curve` describes it, without noise."""
        return cls.from_curve(knee_curve(knee, base_seconds))

    def step_seconds(self, batch_tokens: int, random: np.random.Generator) -> float:
        """Seconds that one step of that many batch tokens takes."""
        factor = 1.0 if self.noise.size == 0 else float(self.noise[random.integers(self.noise.size)])
        return float(self.cost.seconds(batch_tokens)) * factor


def _non_decreasing(values: Float, weights: Float) -> Float:
    """Weighted isotonic regression by pooling adjacent violators."""
    blocks: list[tuple[float, float, int]] = []  # mean, weight, members
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        mean, mass, members = value, weight, 1
        while blocks and blocks[-1][0] > mean:
            before, before_mass, before_members = blocks.pop()
            mean = (mean * mass + before * before_mass) / (mass + before_mass)
            mass, members = mass + before_mass, members + before_members
        blocks.append((mean, mass, members))
    return np.repeat([mean for mean, _, _ in blocks], [members for _, _, members in blocks])
