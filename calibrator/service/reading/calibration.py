"""Calibration per position over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import Connection

from calibrator.service.reading.dependence import bearing
from calibrator.service.reading.figures import Figures, figures_of
from calibrator.service.reading.ranges import Steps
from calibrator.store.deployments import Deployment
from calibrator.store.window_series import series

Basis = Literal["in_force", "raw"]


@dataclass(frozen=True, slots=True, eq=False)
class CalibrationSeries:
    """Figures ``[points, gamma]`` of every position, and which of them (1-based) are asked for, in order."""

    steps: Steps
    positions: tuple[int, ...]
    figures: Figures


def calibration_series(
    connection: Connection,
    deployment: Deployment,
    steps: Steps,
    *,
    basis: Basis = "in_force",
    segment: str | None = None,
    sampling: str | None = None,
    positions: Sequence[int] | None = None,
) -> CalibrationSeries:
    """Read the figures of a range, by one aggregate query.

    Parameters
    ----------
    connection
        From :meth:`Store.read`.
    basis
        Predictions under the parameters that were in force, or under the identity.
    segment, sampling
        Restrict to one; None means all.
    positions
        1-based; None means all.
    """
    found = series(
        connection,
        deployment.id,
        deployment.gamma,
        steps.start,
        steps.end,
        steps.step,
        raw=basis == "raw",
        segment=segment,
        sampling=sampling,
    )
    # The population is judged over all positions, so figures come first and the choice afterwards.
    alone = bearing(connection, deployment.id, deployment.gamma, segment)
    figures = figures_of(found.scalars, found.bins, alone)
    shown = tuple(range(1, deployment.gamma + 1)) if positions is None else tuple(dict.fromkeys(positions))
    return CalibrationSeries(steps, shown, figures)
