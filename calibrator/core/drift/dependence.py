"""How much rows of one request repeat each other, and how much evidence they bear for it.

Bets are fair for rows that are judged one after another. Rows of one request share their luck, which the
predictions do not know: ``m`` rows that are all alike are one row, counted ``m`` times. Evidence to the power
``tempering`` (log evidence times it) makes up for that:

* ``1 / m`` with at most ``m`` rows per request is enough whatever the dependence within requests: the
  geometric mean of the bets on a request is at most their arithmetic mean, whose expectation is at most 1.
* One over the design effect (variance of the sum over what it would be with independent rows) is enough as
  far as sums over requests are normal, which costs less. It is estimated here, at an upper confidence limit.

Source: L. Kish, "Survey Sampling", 1965 (design effect); Horvitz and Thompson, JASA 1952 (rows of a sample).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Float = NDArray[np.float64]

UNKNOWN_TEMPERING = 0.125
"""Before anything is known of the dependence: as if every row came eight times."""

MIN_REQUESTS = 30
"""Requests from which an estimate may say that rows bear more than :data:`UNKNOWN_TEMPERING`."""

_UPPER = 1.645  # standard errors: one-sided 95 %


@dataclass(frozen=True, slots=True, eq=False)
class Tempering:
    """Powers of the evidence of both alarms per position, in (0, 1], shape ``[gamma]``."""

    calibration: Float
    acceptance: Float

    @classmethod
    def unknown(cls, gamma: int) -> Tempering:
        """Before there is a sample to estimate it from."""
        return cls(np.full(gamma, UNKNOWN_TEMPERING), np.full(gamma, UNKNOWN_TEMPERING))

    @classmethod
    def independent(cls, gamma: int) -> Tempering:
        """For rows that do not depend on each other."""
        return cls(np.ones(gamma), np.ones(gamma))

    def to_builtins(self) -> dict[str, Any]:
        """As lists of numbers, for JSON."""
        return {"calibration": self.calibration.tolist(), "acceptance": self.acceptance.tolist()}

    @classmethod
    def from_builtins(cls, data: dict[str, Any]) -> Tempering:
        """Rebuild from :meth:`to_builtins`; exact."""
        return cls(np.array(data["calibration"], dtype=np.float64), np.array(data["acceptance"], np.float64))


def tempering(
    residuals: ArrayLike,
    counted: ArrayLike,
    request: ArrayLike,
    inclusion: ArrayLike | None = None,
    *,
    variance: float | None = None,
) -> Float:
    """Power that evidence needs for the dependence within requests, in (0, 1], shape ``[gamma]``.

    Parameters
    ----------
    residuals
        Label less what was expected, shape ``[rows, gamma]``. Their mean is taken off first: a gap is what is
        looked for, and no dependence.
    counted
        Which of them bear evidence, same shape.
    request
        Number of the request, shape ``[rows]``.
    inclusion
        Probability with which a row came into the sample, shape ``[rows]``; 1 when left out. Pairs of rows
        count by the product of theirs, so that a thin sample does not hide what its rows have in common.
    variance
        Variance per row that the bets allow for; that of the residuals when left out (bets on predictions).
        The bets on acceptance allow for 1/4, whatever the label.

    >>> random = np.random.default_rng(0)
    >>> request = np.repeat(np.arange(500), 20)
    >>> luck = np.repeat(random.normal(0, 0.1, 500), 20)
    >>> alike = (random.normal(0, 0.3, 10_000) + luck)[:, None]
    >>> counted = np.ones((10_000, 1), dtype=bool)
    >>> tempering(alike, counted, request).round(1), tempering(alike, counted, np.arange(10_000)).round(1)
    (array([0.3]), array([1.]))
    """
    mask = np.asarray(counted, dtype=np.bool_)
    values = np.asarray(residuals, dtype=np.float64)
    if values.shape != mask.shape:
        raise ValueError(f"residuals: got shape {values.shape}, expected {mask.shape}")
    names, owner = np.unique(np.asarray(request), return_inverse=True)
    owner = owner.reshape(-1)
    weight = np.ones(len(values)) if inclusion is None else 1.0 / np.asarray(inclusion, dtype=np.float64)
    result = np.full(values.shape[1], UNKNOWN_TEMPERING)
    for k in range(values.shape[1]):
        w = weight * mask[:, k]
        if not w.any():
            continue
        r = np.where(mask[:, k], values[:, k], 0.0)
        r -= (w @ r) / w.sum()
        weighted = w * r
        squares = weighted * r
        together = np.bincount(owner, weighted, len(names)) ** 2
        if inclusion is not None:
            # Of a request's square, rows with themselves count once by their weight, not by its square.
            together += np.bincount(owner, squares - weighted**2, len(names))
        by_request = np.bincount(owner, squares if variance is None else w * variance, len(names))
        total = float(by_request.sum())
        if total <= 0.0:
            continue
        effect = float(together.sum()) / total
        error = float(np.sqrt(((together - effect * by_request) ** 2).sum())) / total
        power = min(1.0, 1.0 / max(effect + _UPPER * error, 1.0))
        few = np.count_nonzero(by_request) < MIN_REQUESTS
        result[k] = min(power, UNKNOWN_TEMPERING) if few else power
    return result
