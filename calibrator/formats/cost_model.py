"""Step time as every engine's file can say it: by batch tokens, and beside it by requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrator.core.cost import AdditiveCost
from calibrator.formats.temperatures import FormatError
from serving_adapter.contract import ContractError
from serving_adapter.step_cost import Interpolation, StepCost

Float = NDArray[np.float64]

MAX_FALL = 0.02
"""Times of foreign files may fall this much with size (noise, evened out); more is refused."""

MIN_RISE = 0.001
"""A table that rises less from its first to its last size can never trim."""


MAX_LOOKUP_TOKENS = 1_000_000
"""Largest size of a table that is looked up without interpolation, in batch tokens."""


@dataclass(frozen=True, slots=True, eq=False)
class CostModel:
    """``seconds(R, B) = by_tokens(B) + by_requests(R)``; the second part linear, ends clamped.

    ``requests`` and ``request_seconds`` have shape ``[request probes]`` and may be empty.
    """

    by_tokens: StepCost
    requests: NDArray[np.int64]
    request_seconds: Float

    @classmethod
    def of(cls, cost: StepCost | AdditiveCost) -> CostModel:
        """Wrap one of the core's two forms."""
        if isinstance(cost, StepCost):
            return cls(cost, np.zeros(0, dtype=np.int64), np.zeros(0))
        by_tokens = StepCost(cost.batch_tokens, cost.bias_seconds + cost.theta_seconds)
        return cls(by_tokens, cost.requests, cost.alpha_seconds)

    def seconds(self, requests: int, batch_tokens: ArrayLike) -> Float:
        """Seconds of a step, in the shape of ``batch_tokens``."""
        return self.by_tokens.seconds(batch_tokens) + self._extra(requests)

    def at(self, requests: int) -> StepCost:
        """What schedulers look up while that many requests run."""
        base = self.by_tokens
        return StepCost(
            base.batch_tokens, base.at_sizes + self._extra(requests), base.interpolation, base.clamped
        )

    def _extra(self, requests: int) -> float:
        if not len(self.requests):
            return 0.0
        return float(np.interp(requests, self.requests, self.request_seconds))


def straight(cost: StepCost) -> tuple[NDArray[np.int64], Float]:
    """Sizes and seconds between which going straight gives the same times at every whole size."""
    sizes, seconds = cost.batch_tokens, cost.at_sizes
    if cost.interpolation == "linear":
        return sizes, seconds
    ends = np.append(sizes[1:] - 1, sizes[-1])
    both, times = np.column_stack([sizes, ends]).ravel(), np.repeat(seconds, 2)
    kept = np.append(True, both[1:] != both[:-1])
    return both[kept], times[kept]


def plateaus(cost: StepCost, largest: int, max_entries: int) -> tuple[NDArray[np.int64], Float]:
    """Cut sizes 1 to ``largest`` into at most ``max_entries`` runs for a lookup without interpolation.

    Returns
    -------
    First size of each run, and the time of its last, that is slowest, size: a lookup never promises more
    than the curve. Runs end where times have risen by the same small share; by none at all when there
    are few enough different times, and then the lookup is exact.

    Raises
    ------
    FormatError
        A largest size beyond :data:`MAX_LOOKUP_TOKENS`.
    """
    if largest > MAX_LOOKUP_TOKENS:
        raise FormatError(
            f"got sizes up to {largest} batch tokens; a table for lookups without interpolation has at most "
            f"{MAX_LOOKUP_TOKENS}: no engine runs such a batch"
        )
    every = np.arange(1, largest + 1)
    seconds = cost.seconds(every)
    tolerance = 0.0
    starts = np.flatnonzero(np.append(True, seconds[1:] > seconds[:-1]))
    while len(starts) > max_entries:
        tolerance = max(2 * tolerance, 1e-4)
        starts = _runs(seconds, tolerance, max_entries)
    return every[starts], seconds[np.append(starts[1:], largest) - 1]


def _runs(seconds: Float, tolerance: float, most: int) -> NDArray[np.int64]:
    """First index of each run; more than ``most`` are not looked for."""
    starts, at = [0], 0
    while len(starts) <= most:
        at = int(np.searchsorted(seconds, seconds[at] * (1 + tolerance), side="right"))
        if at >= len(seconds):
            break
        starts.append(at)
    return np.array(starts, dtype=np.int64)


def read_numbers(where: str, content: dict[str, object], name: str, count: int | None = None) -> list[float]:
    """Read a list of finite numbers from a decoded JSON object.

    Raises
    ------
    FormatError
        Naming field and value.
    """
    value = content.get(name)
    if not isinstance(value, list) or not value:
        raise FormatError(f"{where}: {name}: got {value!r:.60}, expected a list of numbers")
    for item in value:
        if isinstance(item, bool) or not isinstance(item, int | float) or not np.isfinite(item):
            raise FormatError(f"{where}: {name}: got {item!r:.60}, expected a finite number")
    if count is not None and len(value) != count:
        raise FormatError(f"{where}: {name}: got {len(value)} values, expected {count}")
    return [float(item) for item in value]


def read_sizes(where: str, content: dict[str, object], name: str) -> list[int]:
    """Read a strictly increasing list of whole sizes, at least 1."""
    values = read_numbers(where, content, name)
    if any(v != int(v) or v < 1 for v in values):
        raise FormatError(f"{where}: {name}: got {values[:6]}, expected whole sizes >= 1")
    if any(b <= a for a, b in pairwise(values)):
        raise FormatError(f"{where}: {name}: got {values[:6]}, expected strictly increasing sizes")
    return [int(v) for v in values]


def checked_cost(
    where: str,
    sizes: Sequence[int],
    seconds: ArrayLike,
    interpolation: Interpolation = "linear",
    *,
    flat_allowed: bool = False,
    clamped: bool = False,
) -> StepCost:
    """Build the cost that a file claims, if it can be one.

    Raises
    ------
    FormatError
        Times that are not positive, that fall with size, or that never rise.
    """
    times = np.asarray(seconds, dtype=np.float64)
    if not (np.isfinite(times) & (times > 0)).all():
        bad = float(times[~(np.isfinite(times) & (times > 0))][0])
        raise FormatError(f"{where}: got a step of {bad:g} s, expected positive finite times")
    highest = np.maximum.accumulate(times)
    fall = 1.0 - times / highest
    if fall.max() > MAX_FALL:
        at = int(np.argmax(fall))
        raise FormatError(
            f"{where}: not monotone: {sizes[at]} batch tokens take {fall[at]:.0%} less than fewer do"
        )
    if not flat_allowed and (len(times) < 2 or highest[-1] < highest[0] * (1 + MIN_RISE)):
        raise FormatError(
            f"{where}: flat: {len(times)} sizes from {times[0] * 1e3:.3g} to {times[-1] * 1e3:.3g} ms, "
            "no scheduler can trim by it"
        )
    try:
        return StepCost(list(sizes), highest, interpolation, clamped)
    except ContractError as error:
        raise FormatError(f"{where}: {error}") from error
