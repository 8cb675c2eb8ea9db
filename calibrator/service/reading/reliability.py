"""Reliability diagrams per position: predicted against observed survival, with what chance alone would do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom
from sqlalchemy import Connection

from calibrator.core.windows import WINDOW_BINS, WindowSums
from calibrator.service.reading.dependence import bearing
from calibrator.service.reading.figures import Figures, Z, figures_of
from calibrator.store import windows
from calibrator.store.deployments import Deployment

Float = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Diagrams:
    """Diagrams of every position: ``figures`` ``[gamma]``, and intervals per bin ``[gamma, WINDOW_BINS]``.

    ``observed_low`` to ``observed_high`` is Wilson's 95 % interval of the observed rate; ``band_low`` to
    ``band_high`` is where the observed rate of a calibrated predictor lies with 95 % probability (consistency
    band). NaN where a bin has no label.
    """

    figures: Figures
    observed_low: Float
    observed_high: Float
    band_low: Float
    band_high: Float


def diagrams(sums: WindowSums, labels_bear: Float | None = None) -> Diagrams:
    """Draw the diagrams of window sums; ``labels_bear`` is the ``bearing`` of :func:`figures_of`."""
    figures = figures_of(sums.scalars, sums.bins, labels_bear)
    bins = figures.bins
    alone = bins.n_eff if labels_bear is None else bins.n_eff * labels_bear[:, None]
    low, high = wilson(bins.observed, alone)
    band_low, band_high = consistency_band(bins.predicted, alone)
    return Diagrams(figures, low, high, band_low, band_high)


def read_diagrams(
    connection: Connection,
    deployment: Deployment,
    start: float,
    end: float,
    *,
    segment: str | None = None,
    sampling: str | None = None,
) -> tuple[Diagrams, Diagrams]:
    """Diagrams under the parameters in force, and under the identity, of the windows in ``[start, end)``."""
    in_force, raw = (
        windows.query(
            connection,
            deployment.id,
            deployment.gamma,
            start,
            end,
            raw=raw,
            segment=segment,
            sampling=sampling,
        )
        for raw in (False, True)
    )
    nothing = WindowSums.zeros(deployment.gamma)
    alone = bearing(connection, deployment.id, deployment.gamma, segment)
    return (
        diagrams(in_force[0].sums if in_force else nothing, alone),
        diagrams(raw[0].sums if raw else nothing, alone),
    )


def wilson(rate: Float, n: Float) -> tuple[Float, Float]:
    """Wilson's score interval of rates of ``n`` effective labels, 95 %; NaN where ``n`` is 0.

    Source: E. B. Wilson, "Probable inference, the law of succession, and statistical inference", JASA 1927.

    >>> low, high = wilson(np.array([0.5]), np.array([100.0]))
    >>> low.round(3).tolist(), high.round(3).tolist()
    ([0.404], [0.596])
    """
    rate = np.clip(rate, 0.0, 1.0)
    some = n > 0
    size = np.where(some, n, 1.0)
    centre = (rate + Z**2 / (2 * size)) / (1 + Z**2 / size)
    half = Z / (1 + Z**2 / size) * np.sqrt(rate * (1 - rate) / size + Z**2 / (4 * size**2))
    low, high = np.clip(centre - half, 0.0, 1.0), np.clip(centre + half, 0.0, 1.0)
    return np.where(some, low, np.nan), np.where(some, high, np.nan)


def consistency_band(predicted: Float, n: Float) -> tuple[Float, Float]:
    """Where the observed rate lies, 95 %, if the prediction is right; NaN where ``n`` is 0.

    >>> low, high = consistency_band(np.array([0.5]), np.array([100.0]))
    >>> low.tolist(), high.tolist()
    ([0.4], [0.6])
    """
    some = n > 0
    size = np.maximum(np.rint(np.where(some, n, 1.0)), 1.0)
    chance = np.clip(predicted, 0.0, 1.0)
    low, high = binom.ppf(0.025, size, chance) / size, binom.ppf(0.975, size, chance) / size
    return np.where(some, low, np.nan), np.where(some, high, np.nan)


EDGES = np.linspace(0.0, 1.0, WINDOW_BINS + 1)
"""Bins are ``[lower, upper)``, the last one closed."""
