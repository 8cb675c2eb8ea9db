"""Traffic drift: the confidences of the last minutes against those of the time when the set was new."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sqlalchemy import Connection

from calibrator.core.drift import DriftRules, TrafficShift, traffic_shift
from calibrator.core.windows import BIN_SUMS, WindowSums
from calibrator.service.drift_options import DriftOptions
from calibrator.store import traffic
from calibrator.store.deployments import Deployment

_DRAFTED = BIN_SUMS.index("drafted")
END_SHARE = 0.5
"""An episode lasts while both distances of some position are at least this share of what counts as moved."""


@dataclass(frozen=True, slots=True)
class TrafficWatch:
    """The reference of the traffic, and when an episode began.

    Parameters
    ----------
    since
        Windows from here on make the reference; None: not looked yet.
    until
        Windows from here on are compared with it.
    reference
        Drafted rows per position and bin, None until there are enough.
    moved_at
        When the episode in progress began, None without one.
    shifts
        Distances of the last look.
    """

    since: float | None = None
    until: int = 0
    reference: tuple[tuple[int, ...], ...] | None = None
    moved_at: float | None = None
    shifts: tuple[TrafficShift, ...] = ()

    def look(self, connection: Connection, deployment: Deployment, options: DriftOptions) -> TrafficWatch:
        """Compare the latest windows; time is that of the windows, whatever the clock says."""
        span = traffic.span(connection, deployment.id, self.since or 0.0)
        if span is None:
            return self
        if self.since is None:
            return replace(self, since=span[1] - options.traffic_seconds)
        if self.reference is None:
            return self._gather(connection, deployment, options, *span)
        newest = span[1]
        first = max(self.until, int(newest - options.traffic_seconds))
        current = traffic.histogram(connection, deployment.id, deployment.gamma, first, newest + 1)
        if _rows(current) < options.traffic_rows:
            return self
        shifts = tuple(traffic_shift(_sums(self.reference), current))
        if not moved(shifts, options.rules, 1.0 if self.moved_at is None else END_SHARE):
            return replace(self, moved_at=None, shifts=shifts)
        return replace(self, moved_at=float(first) if self.moved_at is None else self.moved_at, shifts=shifts)

    @classmethod
    def restart(cls, connection: Connection, deployment: Deployment) -> TrafficWatch:
        """Begin again: traffic is compared with that of the time when the set in force was new."""
        span = traffic.span(connection, deployment.id)
        # The newest window holds rows of before: begin behind it.
        return cls() if span is None else cls(since=span[1] + 1.0)

    def _gather(
        self, connection: Connection, deployment: Deployment, options: DriftOptions, first: int, newest: int
    ) -> TrafficWatch:
        if newest - first < options.traffic_seconds:
            return self
        # The newest window is still being filled.
        sums = traffic.histogram(connection, deployment.id, deployment.gamma, first, newest)
        if _rows(sums) < options.traffic_rows:
            return self
        reference = tuple(tuple(row) for row in sums.bins[:, _DRAFTED].tolist())
        return replace(self, until=newest, reference=reference)

    def to_builtins(self) -> dict[str, Any]:
        """As numbers and lists, for JSON; the distances of the last look are not kept."""
        return {
            "since": self.since,
            "until": self.until,
            "reference": None if self.reference is None else [list(row) for row in self.reference],
            "moved_at": self.moved_at,
        }

    @classmethod
    def from_builtins(cls, data: Mapping[str, Any]) -> TrafficWatch:
        """Rebuild from :meth:`to_builtins`."""
        reference = data["reference"]
        return cls(
            data["since"],
            data["until"],
            None if reference is None else tuple(tuple(row) for row in reference),
            data["moved_at"],
        )


def moved(shifts: Sequence[TrafficShift], rules: DriftRules, share: float = 1.0) -> bool:
    """Whether both distances of a position reach that share of what counts as moved."""
    return any(
        (shift.stability_index or 0.0) >= share * rules.traffic_index
        and (shift.distance or 0.0) >= share * rules.traffic_distance
        for shift in shifts
    )


def _sums(reference: tuple[tuple[int, ...], ...]) -> WindowSums:
    sums = WindowSums.zeros(len(reference))
    sums.bins[:, _DRAFTED] = np.array(reference, dtype=np.int64)
    return sums


def _rows(sums: WindowSums) -> int:
    return int(sums.bins[0, _DRAFTED].sum())
