"""Traffic drift: the distribution of confidences moved, whatever became of their truth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrator.core.windows import WindowSums

Float = NDArray[np.float64]

MIN_DRAFTED = 300.0
"""Fewer drafted positions on either side say nothing."""


def population_stability_index(reference: ArrayLike, current: ArrayLike) -> float:
    """Population stability index between two histograms over the same bins; 0.25 is "moved" by custom.

    ``sum (q - p) log(q / p)`` with half a count added to every bin, so that an empty bin is rare rather
    than impossible. Source: N. Siddiqi, "Credit Risk Scorecards", 2006, chapter 10. NaN without rows.

    >>> population_stability_index([500, 500], [500, 500])
    0.0
    >>> population_stability_index([900, 100], [500, 500]) > 0.25
    True
    """
    p, q = _shares(reference, 0.5), _shares(current, 0.5)
    return float(((q - p) * np.log(q / p)).sum())


def kolmogorov_smirnov(reference: ArrayLike, current: ArrayLike) -> float:
    """Largest distance between two cumulated histograms over the same bins; NaN without rows.

    >>> kolmogorov_smirnov([50, 50], [100, 0])
    0.5
    """
    p, q = _shares(reference, 0.0), _shares(current, 0.0)
    return float(np.abs(np.cumsum(q - p)).max())


@dataclass(frozen=True, slots=True)
class TrafficShift:
    """How far the confidences of one position moved; None where a side has too few rows."""

    position: int
    stability_index: float | None
    distance: float | None
    reference_rows: int
    current_rows: int


def traffic_shift(reference: WindowSums, current: WindowSums) -> list[TrafficShift]:
    """Compare the drafted traffic of two periods, position by position.

    Both must have been folded with predictions of one kind: the identity (raw windows), or the same
    version; a new version moves predictions by itself.

    >>> from calibrator.core.windows import fold
    >>> from serving_adapter.contract import Rounds
    >>> rounds = Rounds.build([[0.0]] * 400, [1] * 400)
    >>> low, high = (fold(rounds, np.full((400, 1), a)) for a in (0.2, 0.8))
    >>> traffic_shift(low, high)[0].distance
    1.0
    """
    if reference.gamma != current.gamma:
        raise ValueError(f"gamma: got {current.gamma}, expected {reference.gamma}")
    before, after = reference.bin_sum("drafted"), current.bin_sum("drafted")
    shifts = []
    for k in range(reference.gamma):
        rows = int(before[k].sum()), int(after[k].sum())
        enough = min(rows) >= MIN_DRAFTED
        shifts.append(
            TrafficShift(
                position=k + 1,
                stability_index=population_stability_index(before[k], after[k]) if enough else None,
                distance=kolmogorov_smirnov(before[k], after[k]) if enough else None,
                reference_rows=rows[0],
                current_rows=rows[1],
            )
        )
    return shifts


def _shares(counts: ArrayLike, prior: float) -> Float:
    values = np.asarray(counts, dtype=np.float64)
    total = values.sum()
    if not total > 0:
        return np.full(values.shape, np.nan)
    shares: Float = (values + prior) / (total + prior * len(values))
    return shares
