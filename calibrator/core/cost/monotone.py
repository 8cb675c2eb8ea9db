"""Times that never fall with size, through noisy medians."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

Float = NDArray[np.float64]
Mask = NDArray[np.bool_]

SLOPE_CHANGE = 1.5
"""Prior: over an octave of size the marginal cost changes by this many times the mean marginal cost.

It hardly matters: leaving one size out on the recorded samples (docs/throughput.md), every width from 0.4
up has a mean error between 2.8 and 3.0 %. With 200 steps a size it changes less than 0.1 %.
"""


def increments(sizes: Float, size: Float) -> Float:
    """How much of each step between neighbouring ``sizes`` lies below ``size``, in [0, 1].

    Shape ``[len(size), len(sizes) - 1]``: the design matrix of a piecewise linear function, with clamped
    ends, by its rises.
    """
    width = np.diff(sizes)
    return np.clip((size[:, None] - sizes[None, :-1]) / width[None, :], 0.0, 1.0)


def smoothness(sizes: Float, bends: Mask, scale: float) -> Float:
    """Rows that hold each change of slope against its prior, for rises as unknowns.

    Parameters
    ----------
    sizes
        Shape ``[nodes]``, increasing, positive.
    bends
        Inner nodes where the slope is held, shape ``[nodes - 2]``.
    scale
        Mean marginal cost: seconds per token.
    """
    width = np.diff(sizes)
    middle = np.log2(np.sqrt(sizes[1:] * sizes[:-1]))
    rows = []
    for i in np.flatnonzero(bends):
        row = np.zeros(len(width))
        sigma = SLOPE_CHANGE * scale * np.sqrt(middle[i + 1] - middle[i])
        row[i], row[i + 1] = -1.0 / (width[i] * sigma), 1.0 / (width[i + 1] * sigma)
        rows.append(row)
    return np.array(rows).reshape(-1, len(width))


def fit_monotone(sizes: Float, seconds: Float, standard_error: Float, held: Mask | None = None) -> Float:
    """Fit non-decreasing times at ``sizes``, shape ``[nodes]``.

    Weighted least squares over rises that are not negative: isotonic regression, and where ``held`` says
    so the slope changes slowly, so that a noisy median makes neither a plateau nor a cliff.

    Parameters
    ----------
    sizes
        Shape ``[nodes]``, increasing.
    seconds, standard_error
        Medians and their standard errors in seconds, shape ``[nodes]``.
    held
        Inner nodes with a prior on the change of slope, shape ``[nodes - 2]``; none when left out.

    >>> fit_monotone(np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0]), np.ones(3)).round(6).tolist()
    [1.0, 2.5, 2.5]
    """
    count = len(sizes)
    if count == 1:
        return seconds.astype(np.float64)
    weight = 1.0 / standard_error
    design = np.column_stack([np.ones(count), increments(sizes, sizes)]) * weight[:, None]
    target = seconds * weight
    scale = float((seconds.max() - seconds.min()) / (sizes[-1] - sizes[0]))
    if held is not None and held.any() and scale > 0:
        prior = smoothness(sizes, held, scale)
        design = np.vstack([design, np.column_stack([np.zeros(len(prior)), prior])])
        target = np.concatenate([target, np.zeros(len(prior))])
    # Columns of one size keep the solver's tolerance meaningful.
    size = np.sqrt((design**2).sum(axis=0))
    size[size == 0] = 1.0
    solution, _ = nnls(design / size, target, maxiter=100 * count)
    rises = solution / size
    return np.asarray(rises[0] + np.concatenate([[0.0], np.cumsum(rises[1:])]), dtype=np.float64)
