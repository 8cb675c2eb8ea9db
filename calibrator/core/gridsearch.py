"""ECE of one position at every temperature of a grid, exact wherever it can be the smallest.

A million rows times a grid is mostly wasted work: a coarse histogram over (survival so far, logit) tells
which temperatures are out of the question, and only the others get an exact pass over the rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]

CHUNK = 1 << 15
EXACT_ROWS = 100_000
"""Up to this many rows every grid point is evaluated exactly."""

LOGIT_CELLS, SURVIVAL_CELLS = 256, 128
LEAST_EXACT = 3
LEAST_MARGIN = 2e-5
MARGIN_FACTOR = 4.0


@dataclass(frozen=True, slots=True, eq=False)
class PositionColumns:
    """Labelled rows of one position, each shape ``[rows]``: ``survival`` is that of the prefix before it."""

    logits: Float
    survival: Float
    labels: Float
    weights: Float | None


def exact_ece(position: PositionColumns, temperature: float, bins: int) -> float:
    """Compute ECE at one temperature, in one pass with small temporaries.

    >>> position = PositionColumns(np.zeros(4), np.ones(4), np.array([0.0, 0, 1, 1]), None)
    >>> exact_ece(position, 1.0, 15)
    0.0
    """
    rows = len(position.logits)
    total = np.zeros(bins + 1)  # the last entry: predictions of exactly 1
    buffer = np.empty(min(CHUNK, rows))
    index = np.empty(len(buffer), dtype=np.int64)
    with np.errstate(over="ignore"):
        for start in range(0, rows, CHUNK):
            part = slice(start, min(start + CHUNK, rows))
            a, i = buffer[: part.stop - start], index[: part.stop - start]
            np.divide(position.logits[part], -temperature, out=a)
            np.exp(a, out=a)
            a += 1.0
            np.divide(position.survival[part], a, out=a)
            np.multiply(a, bins, out=i, casting="unsafe")
            a -= position.labels[part]
            if position.weights is not None:
                a *= position.weights[part]
            total += np.bincount(i, weights=a, minlength=bins + 1)
    return float(_ece(total[None, :], _mass(position))[0])


def advance(survival: Float, logits: Float, temperature: float) -> Float:
    """Survival of the prefix one position longer, in small pieces; shape ``[rows]``.

    >>> advance(np.array([0.5]), np.array([0.0]), 1.0)
    array([0.25])
    """
    longer = np.empty_like(survival)
    with np.errstate(over="ignore"):
        for start in range(0, len(survival), CHUNK):
            part = slice(start, start + CHUNK)
            a = longer[part]
            np.divide(logits[part], -temperature, out=a)
            np.exp(a, out=a)
            a += 1.0
            np.divide(survival[part], a, out=a)
    return longer


def grid_ece(position: PositionColumns, grid: Float, bins: int, margin: float = 0.0) -> Float:
    """Compute ECE at every grid point, shape ``[points]``; NaN where it cannot be near the smallest.

    Parameters
    ----------
    position
        The rows; at least one.
    grid
        Temperatures, shape ``[points]``.
    bins
        Equal-width bins.
    margin
        How far above the smallest a figure must still be exact.

    Notes
    -----
    Points are visited in the order of their approximate ECE. The largest error of the approximation seen
    so far, times a safety factor, decides when no later point can matter.
    """
    rows = len(position.logits)
    errors = np.full(len(grid), np.nan)
    if rows <= EXACT_ROWS:
        for j, t in enumerate(grid):
            errors[j] = exact_ece(position, float(t), bins)
        return errors
    approximate = _approximate(position, grid, bins)
    worst, best = 0.0, np.inf
    for visited, j in enumerate(np.argsort(approximate, kind="stable")):
        slack = max(LEAST_MARGIN, MARGIN_FACTOR * worst) + margin
        if visited >= LEAST_EXACT and approximate[j] - slack > best:
            break
        errors[j] = exact_ece(position, float(grid[j]), bins)
        worst = max(worst, abs(float(errors[j] - approximate[j])))
        best = min(best, float(errors[j]))
    return errors


def _approximate(position: PositionColumns, grid: Float, bins: int) -> Float:
    """ECE at every grid point with each row moved to the middle of its cell."""
    z, survival, weight, labels = _histogram(position)
    totals = np.zeros((len(grid), bins + 1))
    with np.errstate(over="ignore"):
        for j, t in enumerate(grid):
            a = survival / (1.0 + np.exp(z / -t))
            index = (a * bins).astype(np.int64)
            totals[j] = np.bincount(index, weights=a * weight - labels, minlength=bins + 1)
    return _ece(totals, _mass(position))


def _histogram(position: PositionColumns) -> tuple[Float, Float, Float, Float]:
    """Occupied cells: middle logit, middle survival, and the sums of weights and of weighted labels."""
    sample = position.logits[:: max(1, len(position.logits) // 20_000)]
    low, high = (float(q) for q in np.quantile(sample, (0.002, 0.998)))
    width = max(high - low, 1e-6) / LOGIT_CELLS
    first = float(position.survival.min()) >= 1.0  # position 1: one row of cells is enough
    across = 1 if first else SURVIVAL_CELLS
    cells = LOGIT_CELLS * across
    # Count and label in one sum: labelled rows go to a second block of cells.
    totals = np.zeros(2 * cells)
    for start in range(0, len(position.logits), CHUNK):
        part = slice(start, start + CHUNK)
        i = (position.logits[part] - low) * (1.0 / width)
        np.clip(i, 0, LOGIT_CELLS - 1, out=i)
        index = i.astype(np.int32)
        if not first:
            s = np.sqrt(position.survival[part])  # finer cells where deep prefixes crowd
            s *= across
            index += np.minimum(s, across - 1, out=s).astype(np.int32) * np.int32(LOGIT_CELLS)
        index += (position.labels[part] * cells).astype(np.int32)
        weights = None if position.weights is None else position.weights[part]
        totals += np.bincount(index, weights=weights, minlength=2 * cells)
    accepted = totals[cells:]
    weight = totals[:cells] + accepted
    occupied = np.flatnonzero(weight)
    z = (low + (occupied % LOGIT_CELLS + 0.5) * width).astype(np.float64)
    survival = np.ones(len(occupied)) if first else ((occupied // LOGIT_CELLS + 0.5) / across) ** 2
    return z, survival, weight[occupied], accepted[occupied]


def _ece(totals: Float, mass: float) -> Float:
    bins = totals.shape[1] - 1
    totals[:, bins - 1] += totals[:, bins]
    errors: Float = np.abs(totals[:, :bins]).sum(axis=1) / mass
    return errors


def _mass(position: PositionColumns) -> float:
    return float(len(position.logits)) if position.weights is None else float(position.weights.sum())
