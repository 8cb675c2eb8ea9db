"""How sure a figure from whole requests may be: rows of one request are dependent, requests are not.

Standard errors are robust to clusters (sums per request, with CR1's ``G / (G - 1)``), and intervals take
Student's t with ``G - 1`` degrees of freedom. Source: A. C. Cameron, D. L. Miller, "A practitioner's guide to
cluster-robust inference", Journal of Human Resources 2015.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri, stdtrit

MIN_REQUESTS = 10
"""Fewer requests with labels than this: no interval, and the figure is ``insufficient``."""


def t_quantile(confidence: float, requests: float) -> float:
    """Two-sided quantile of Student's t for so many requests (:func:`effective_requests`).

    Raises
    ------
    ValueError
        For fewer than two requests.

    >>> round(t_quantile(0.95, 10), 3), round(t_quantile(0.95, 100_000), 3)
    (2.262, 1.96)
    """
    if requests < 2:
        raise ValueError(f"requests: got {requests}, expected at least 2")
    return float(stdtrit(requests - 1, 0.5 + confidence / 2))


def t_widening(confidence: float, requests: float) -> float:
    """How much wider than the normal one an interval from so many requests is; at least 1."""
    return t_quantile(confidence, requests) / float(ndtri(0.5 + confidence / 2))


def labelled_requests(request: ArrayLike, labelled: ArrayLike) -> NDArray[np.int64]:
    """Requests with at least one label per position, shape ``[gamma]``.

    Parameters
    ----------
    request
        Shape ``[rows]``.
    labelled
        Mask, shape ``[rows, gamma]``.

    >>> labelled_requests([1, 1, 2], [[True, True], [True, False], [True, False]])
    array([2, 1])
    """
    ids, mask = np.asarray(request), np.asarray(labelled, dtype=np.bool_)
    return np.array([len(np.unique(ids[mask[:, k]])) for k in range(mask.shape[1])], dtype=np.int64)


def effective_requests(request: ArrayLike, weights: ArrayLike) -> NDArray[np.float64]:
    """Requests per position as far as they bear alike, Kish's ``(sum w)^2 / sum w^2``, shape ``[gamma]``.

    A few long requests among many short ones are what a figure rests on.

    Parameters
    ----------
    request
        Shape ``[rows]``.
    weights
        Of the labels, 0 where there is none, shape ``[rows, gamma]``.

    >>> effective_requests([1, 1, 1, 2], [[1.0], [1.0], [1.0], [1.0]]).round(1)
    array([1.6])
    """
    _, owner = np.unique(np.asarray(request), return_inverse=True)
    w = np.asarray(weights, dtype=np.float64)
    found = np.zeros(w.shape[1])
    for k in range(w.shape[1]):
        by_request = np.bincount(owner.reshape(-1), w[:, k])
        squares = float((by_request**2).sum())
        found[k] = float(by_request.sum()) ** 2 / squares if squares > 0 else 0.0
    return found
