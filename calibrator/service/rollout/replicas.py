"""Which replicas are on which side of a canary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from calibrator.store.rollouts import Rollout
from serving_adapter.canary import place, takes_candidate
from serving_adapter.ports import ReplicaReport


@dataclass(frozen=True, slots=True)
class Sides:
    """Live replicas by what they are to run (``canaries``, ``controls``) and who runs it (``applied``)."""

    canaries: frozenset[str]
    controls: frozenset[str]
    applied: frozenset[str]
    refused: Mapping[str, str]

    @property
    def live(self) -> int:
        """How many replicas have reported lately."""
        return len(self.canaries) + len(self.controls)


def sides(deployment: str, rollout: Rollout, reports: Mapping[str, ReplicaReport]) -> Sides:
    """Sort the live replicas of a deployment; ``refused`` has the reasons of those that cannot take it."""
    canaries = frozenset(r for r in reports if takes_candidate(deployment, r, rollout.share))
    return Sides(
        canaries=canaries,
        controls=frozenset(reports) - canaries,
        applied=frozenset(r for r, report in reports.items() if report.applied == rollout.version),
        refused={r: each.reason for r, each in sorted(reports.items()) if each.refused == rollout.version},
    )


def splitting_share(deployment: str, replicas: Iterable[str], share: float) -> float:
    """Return ``share``, or the nearest that leaves replicas on both sides; there must be at least two.

    Few replicas may all be hashed to one side.

    >>> splitting_share("chat", ["pod-0", "pod-1"], 0.5)
    0.5
    >>> round(splitting_share("chat", ["pod-0", "pod-1"], 0.1), 3)
    0.659
    """
    places = sorted(place(deployment, replica) for replica in replicas)
    if places[0] <= share < places[-1]:
        return share
    taken = min(max(1, round(share * len(places))), len(places) - 1)
    return (places[taken - 1] + places[taken]) / 2
