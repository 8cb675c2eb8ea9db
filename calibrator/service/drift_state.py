"""The state of a deployment's alarms between two looks, and how a look changes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from calibrator.core.cost import DriftCells
from calibrator.core.cost.watch import CostWatch
from calibrator.core.drift import DriftSums, Tempering
from calibrator.core.drift.segment_watch import SegmentWatch
from calibrator.service.drift_options import DriftOptions
from calibrator.service.tempering import TemperingState
from calibrator.service.traffic_watch import TrafficWatch

Evidence = Mapping[int, Mapping[str, DriftSums]]
"""Version -> segment -> growing sums (:func:`calibrator.store.drift_sums.load`)."""


@dataclass(frozen=True, slots=True)
class WatchState:
    """State of every alarm of one deployment.

    Parameters
    ----------
    version
        Of the parameters whose evidence is watched, 0 for the identity.
    served
        Rows by version as of the last look that decided which one to watch.
    segments
        By name, under that version.
    tempering
        What rows of one request have in common, as estimated last.
    """

    fingerprint: str = ""
    version: int = 0
    served: Mapping[int, int] = field(default_factory=dict)
    segments: Mapping[str, SegmentWatch] = field(default_factory=dict)
    traffic: TrafficWatch = field(default_factory=TrafficWatch)
    costs: CostWatch = field(default_factory=CostWatch)
    tempering: TemperingState = field(default_factory=TemperingState)

    def look(
        self,
        gamma: int,
        evidence: Evidence,
        totals: DriftCells,
        before: float,
        at: float,
        options: DriftOptions,
        made: Mapping[int, float],
    ) -> WatchState:
        """Take in the sums as they are now; the traffic is looked at apart.

        Parameters
        ----------
        evidence, totals
            What collectors have added up.
        before, at
            Times of the look before and of this one.
        made
            When each version was made: what has no evidence yet began no earlier, however long ago the look
            before was.
        """
        version, served = self._watched(evidence, options.switch_rows)
        begun = min(at, max(before, made.get(version, before)))
        known = self.segments
        if version != self.version:
            calibrated = self.version > 0
            known = {name: watch.restart(begun, calibrated=calibrated) for name, watch in known.items()}
        sums = evidence.get(version, {})
        streams = gamma * max(1, len({*known, *sums}))
        threshold = options.rules.log_threshold(streams)
        segments = dict(known)
        for name, total in sums.items():
            watch = known.get(name) or SegmentWatch.start(gamma, begun)
            powers = self.tempering.segments.get(name) or Tempering.unknown(gamma)
            segments[name] = watch.look(total, at, options.rules, threshold, options.reference_rows, powers)
        costs = self.costs.look(totals, before, at, options.costs)
        return replace(self, version=version, served=served, segments=segments, costs=costs)

    def forgotten(self, gamma: int, evidence: Evidence, totals: DriftCells, at: float) -> WatchState:
        """Begin again from the sums as they are: another drafter, engine or machine is at work."""
        segments = {
            name: replace(SegmentWatch.start(gamma, at), read=total)
            for name, total in evidence.get(self.version, {}).items()
        }
        return WatchState(self.fingerprint, self.version, self.served, segments, costs=CostWatch(read=totals))

    def _watched(self, evidence: Evidence, switch_rows: int) -> tuple[int, dict[int, int]]:
        """Which version to watch: the one that served most of the latest rows, and never an older one.

        So replicas that are late with a new version do not end the watch of the old one before they have
        it, rows of the old one that are read late do not bring it back, and a canary that serves the lesser
        share is left to its rollout.
        """
        rows = {
            version: int(sum(each.drafted[0] for each in segments.values()))
            for version, segments in evidence.items()
            if version >= self.version
        }
        fresh = {version: count - self.served.get(version, 0) for version, count in rows.items()}
        if sum(fresh.values()) < switch_rows:
            return self.version, dict(self.served)
        return max(fresh, key=lambda version: (fresh[version], -version)), rows

    def to_builtins(self) -> dict[str, Any]:
        """As numbers, lists and names, for JSON."""
        return {
            "fingerprint": self.fingerprint,
            "version": self.version,
            "served": {str(version): rows for version, rows in self.served.items()},
            "segments": {name: watch.to_builtins() for name, watch in self.segments.items()},
            "traffic": self.traffic.to_builtins(),
            "costs": self.costs.to_builtins(),
            "tempering": self.tempering.to_builtins(),
        }

    @classmethod
    def from_builtins(cls, data: Mapping[str, Any]) -> WatchState:
        """Rebuild from :meth:`to_builtins`."""
        return cls(
            data["fingerprint"],
            data["version"],
            {int(version): rows for version, rows in data["served"].items()},
            {name: SegmentWatch.from_builtins(watch) for name, watch in data["segments"].items()},
            TrafficWatch.from_builtins(data["traffic"]),
            CostWatch.from_builtins(data["costs"]),
            TemperingState.from_builtins(data.get("tempering", {})),
        )
