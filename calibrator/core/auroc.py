"""Area under the ROC curve: how well a prediction ranks, whatever its calibration."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def auroc(scores: ArrayLike, labels: ArrayLike, weights: ArrayLike | None = None) -> float | None:
    """Probability that an accepted row outranks a rejected one, ties counting half.

    Parameters
    ----------
    scores, labels, weights
        Shape ``[rows]``; rows of weight 0 are left out.

    Returns
    -------
    None where only one class has weight.

    >>> auroc([0.1, 0.4, 0.4, 0.8], [0, 0, 1, 1])
    0.875
    >>> auroc([0.1, 0.4], [1, 1]) is None
    True
    """
    s = np.asarray(scores, dtype=np.float64)
    y = np.asarray(labels, dtype=np.float64)
    w = np.ones_like(s) if weights is None else np.asarray(weights, dtype=np.float64)
    kept = w > 0
    s, y, w = s[kept], y[kept], w[kept]
    order = np.argsort(s, kind="stable")
    s, accepted, rejected = s[order], (w * y)[order], (w * (1.0 - y))[order]
    total = float(accepted.sum()) * float(rejected.sum())
    if total <= 0:
        return None
    first = np.flatnonzero(np.concatenate([[True], s[1:] != s[:-1]]))
    accepted, rejected = np.add.reduceat(accepted, first), np.add.reduceat(rejected, first)
    return binned_auroc(accepted, rejected)


def binned_auroc(accepted: ArrayLike, rejected: ArrayLike) -> float | None:
    """AUROC from weights of accepted and rejected rows per ascending score (or bin of scores).

    Rows of one bin count as ties, so bins understate a good ranking a little.

    >>> binned_auroc([0, 1, 1], [1, 1, 0])
    0.875
    """
    a, r = np.asarray(accepted, dtype=np.float64), np.asarray(rejected, dtype=np.float64)
    total = float(a.sum()) * float(r.sum())
    if total <= 0:
        return None
    below = np.cumsum(r) - r
    return float((a * (below + 0.5 * r)).sum() / total)
