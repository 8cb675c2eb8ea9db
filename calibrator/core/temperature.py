"""Sequential temperature scaling by expected calibration error (DSpark, arXiv 2607.05147, section 3.2.1).

For k = 1..gamma, left to right: ``T_k = argmin over a grid of ECE(a_k, A_k)`` with ``T_1..T_{k-1}`` fixed.
With the peer's grid, bins and tie rule the temperatures are those of SGLang's ``fit_sts_temperatures``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrator.core.ece import reliability
from calibrator.core.gridsearch import PositionColumns, advance, exact_ece, grid_ece
from calibrator.core.propensity import kish
from calibrator.core.status import Status
from serving_adapter.contract import sigmoid
from serving_adapter.contract.parameter_set import MAX_TEMPERATURE, MIN_TEMPERATURE

Float = NDArray[np.float64]
Ties = Literal["first", "nearest"]

PEER_BINS = 15
PEER_GRID: Float = np.logspace(-1.0, 1.0, 41, dtype=np.float64).astype(np.float32).astype(np.float64)
"""SGLang's grid: ``torch.logspace(-1, 1, 41)`` in single precision."""

DEEPSPEC_GRID: Float = np.sort(np.append(np.geomspace(0.05, 20.0, 256), 1.0))
"""DeepSpec PR #63: 256 log-spaced points on [0.05, 20], and 1."""

MAX_GRID_POINTS = 10_000


def parse_grid(text: str) -> Float:
    """Read a grid: ``sglang``, ``deepspec``, or ``LO:HI:N`` for N log-spaced temperatures.

    Raises
    ------
    ValueError
        Naming the text and what is expected.

    >>> parse_grid("0.5:2:3")
    array([0.5, 1. , 2. ])
    >>> len(parse_grid("deepspec"))
    257
    """
    named = {"sglang": PEER_GRID, "deepspec": DEEPSPEC_GRID}
    if text in named:
        return named[text].copy()
    expected = f"sglang, deepspec or LO:HI:N with {MIN_TEMPERATURE} <= LO < HI <= {MAX_TEMPERATURE:g}"
    try:
        low_text, high_text, count_text = text.split(":")
        low, high, count = float(low_text), float(high_text), int(count_text)
    except ValueError:
        raise ValueError(f"grid: got {text!r}, expected {expected}") from None
    if not (MIN_TEMPERATURE <= low < high <= MAX_TEMPERATURE):
        raise ValueError(f"grid: got {text!r}, expected {expected}")
    if not 2 <= count <= MAX_GRID_POINTS:
        raise ValueError(f"grid: got {count} points, expected 2 to {MAX_GRID_POINTS}")
    return np.geomspace(low, high, count)


@dataclass(frozen=True, slots=True)
class TemperatureFit:
    """Fitted temperatures; every tuple has one entry per position.

    ``ece_before`` is that of the raw confidences (all temperatures 1), ``ece_after`` that of the fitted
    ones, both on the fitted rows; None where a position has no label.
    """

    temperatures: tuple[float, ...]
    ece_before: tuple[float | None, ...]
    ece_after: tuple[float | None, ...]
    n_eff: tuple[float, ...]
    statuses: tuple[Status, ...]


def fit_temperatures(
    logits: ArrayLike,
    labels: ArrayLike,
    included: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    *,
    bins: int = PEER_BINS,
    grid: ArrayLike = PEER_GRID,
    ties: Ties = "first",
    current: ArrayLike | None = None,
    tolerance: float = 0.0,
) -> TemperatureFit:
    """Fit one temperature per position, left to right.

    Parameters
    ----------
    logits
        Raw confidence logits, shape ``[rows, gamma]``.
    labels
        Prefix labels ``A_k`` in {0, 1}, shape ``[rows, gamma]``.
    included
        Positions with a usable label, shape ``[rows, gamma]``; all when left out.
    weights
        Inclusion weights, shape ``[rows, gamma]``; 0 means no label. Ones when left out.
    bins
        Equal-width bins of the ECE.
    grid
        Temperatures to try.
    ties
        ``first``: the smallest ECE, the first grid point of equals (the peer). ``nearest``: among the
        points, and the temperature in force, whose ECE is within one standard error of the minimum
        the one nearest the temperature in force, then nearest 1.
    current
        Temperatures in force, shape ``[gamma]``; ones when left out. A position without labels
        (``censored``) or with equal labels only (``degenerate``) keeps its own.
    tolerance
        With ``nearest``: least width of "within".

    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(0, 2, size=(20_000, 1))
    >>> accepted = rng.random((20_000, 1)) < 1 / (1 + np.exp(-z / 2))  # overconfident by factor 2
    >>> round(fit_temperatures(z, accepted).temperatures[0], 2)
    2.0
    """
    z = np.asarray(logits)
    y = np.asarray(labels)
    points = np.asarray(grid, dtype=np.float64)
    usable = _usable(z, y, included, weights)
    w = None if weights is None else np.asarray(weights, dtype=np.float64)
    in_force = np.ones(z.shape[1]) if current is None else np.asarray(current, dtype=np.float64)
    _check(points, in_force, z.shape[1], ties)

    survival, raw = np.ones(len(z)), np.ones(len(z))
    temperatures: list[float] = []
    before: list[float | None] = []
    after: list[float | None] = []
    n_eff: list[float] = []
    statuses: list[Status] = []
    for k in range(z.shape[1]):
        column = z[:, k].astype(np.float64)
        rows = slice(None) if usable is None or usable[:, k].all() else np.flatnonzero(usable[:, k])
        position = PositionColumns(
            column[rows], survival[rows], y[rows, k].astype(np.float64), None if w is None else w[rows, k]
        )
        temperature, status = _fit_position(position, points, bins, ties, float(in_force[k]), tolerance)
        temperatures.append(temperature)
        statuses.append(status)
        labelled = len(position.logits) > 0
        before.append(exact_ece(replace(position, survival=raw[rows]), 1.0, bins) if labelled else None)
        after.append(exact_ece(position, temperature, bins) if labelled else None)
        n_eff.append(float(len(position.logits) if position.weights is None else kish(position.weights)))
        if k + 1 < z.shape[1]:
            raw = advance(raw, column, 1.0)
            survival = advance(survival, column, temperature)
    return TemperatureFit(tuple(temperatures), tuple(before), tuple(after), tuple(n_eff), tuple(statuses))


def _fit_position(
    position: PositionColumns, grid: Float, bins: int, ties: Ties, in_force: float, tolerance: float
) -> tuple[float, Status]:
    if not len(position.logits):
        return in_force, "censored"
    if position.labels.min() == position.labels.max():
        return in_force, "degenerate"
    temperature = _choose(position, grid, bins, ties, in_force, tolerance)
    return temperature, "at_grid_edge" if temperature in (grid.min(), grid.max()) else "ok"


def _choose(
    position: PositionColumns, grid: Float, bins: int, ties: Ties, in_force: float, tolerance: float
) -> float:
    if ties == "first":
        return float(grid[int(np.nanargmin(grid_ece(position, grid, bins)))])
    candidates = np.append(grid, in_force)
    spread = _standard_error(position, in_force, bins)
    errors = grid_ece(position, candidates, bins, margin=max(spread, tolerance))
    best = int(np.nanargmin(errors))
    within = max(_standard_error(position, float(candidates[best]), bins), tolerance)
    near = np.flatnonzero(errors <= errors[best] + within)
    distance = np.abs(np.log(candidates[near] / in_force)).round(9)
    order = np.lexsort((np.abs(np.log(candidates[near])), distance))
    return float(candidates[near[order[0]]])


def _standard_error(position: PositionColumns, temperature: float, bins: int) -> float:
    predicted = position.survival * sigmoid(position.logits / temperature)
    return reliability(predicted, position.labels, bins, position.weights).ece_standard_error


def _usable(
    logits: NDArray[np.generic],
    labels: NDArray[np.generic],
    included: ArrayLike | None,
    weights: ArrayLike | None,
) -> NDArray[np.bool_] | None:
    """Mask of labelled positions, or None where that is all of them; checks shapes and labels."""
    if logits.ndim != 2:
        raise ValueError(f"logits: got shape {logits.shape}, expected [rows, gamma]")
    if not np.isfinite(logits).all():
        row, position = (int(i) for i in np.argwhere(~np.isfinite(logits))[0])
        raise ValueError(f"logits: row {row}, position {position + 1}: expected a finite number")
    mask: NDArray[np.bool_] | None = None
    for name, given in (("labels", labels), ("included", included), ("weights", weights)):
        if given is None:
            continue
        array = np.asarray(given)
        if array.shape != logits.shape:
            raise ValueError(f"{name}: got shape {array.shape}, expected {logits.shape}, as logits")
        if name != "labels":
            positive: NDArray[np.bool_] = array > 0
            mask = positive if mask is None else mask & positive
    return mask


def _check(grid: Float, in_force: Float, gamma: int, ties: str) -> None:
    if grid.ndim != 1 or not len(grid) or not (np.isfinite(grid).all() and (grid > 0).all()):
        raise ValueError(f"grid: got {grid!r}, expected positive finite temperatures")
    if in_force.shape != (gamma,) or not (in_force > 0).all():
        raise ValueError(f"current: got {in_force!r}, expected {gamma} positive temperatures")
    if ties not in ("first", "nearest"):
        raise ValueError(f"ties: got {ties!r}, expected first or nearest")
