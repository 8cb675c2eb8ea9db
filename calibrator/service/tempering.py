"""How much rows of one request have in common, estimated from the stored sample now and then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from sqlalchemy import Connection

from calibrator.core.drift import DriftSums, Tempering, tempering
from calibrator.core.imputation import imputed_labels
from calibrator.core.labels import drafted, included, prefix_labels
from calibrator.core.survival import survival
from calibrator.store import parameters, sample
from calibrator.store.deployments import Deployment
from calibrator.store.sample import WeightedSample
from serving_adapter.contract import ParameterDocument, bucket_index

ESTIMATE_SECONDS = 600.0
"""Time between two estimates of all segments, as long as the rows of the version have not doubled."""

SEGMENT_ROWS = 1000
"""Rows from which a segment is estimated on its own account: one that appears late is for the first time."""

RAREST = 16.0
"""Rows this many times as rare in the sample as the newest of their kind (four half-lives) are left out."""

_ALLOWED_ACCEPTANCE = 0.25  # variance per row in DriftSums.acceptance_evidence


@dataclass(frozen=True, slots=True)
class TemperingState:
    """The latest estimate.

    Parameters
    ----------
    at, version, rows
        When all segments were estimated last, for the predictions of which version, and how many rows that
        had served.
    segments
        By name; segments without rows in the sample are left out.
    served
        Rows of that version that a segment had when it was estimated last.
    """

    at: float = 0.0
    version: int = 0
    rows: int = 0
    segments: Mapping[str, Tempering] = field(default_factory=dict)
    served: Mapping[str, int] = field(default_factory=dict)

    def refreshed(
        self,
        connection: Connection,
        deployment: Deployment,
        version: int,
        evidence: Mapping[int, Mapping[str, DriftSums]],
        now: float,
    ) -> TemperingState:
        """Estimate anew what it is time for.

        All segments, for another version, with twice the rows, or after ten minutes. Else one segment, if it
        has at least :data:`SEGMENT_ROWS` rows of this version and twice those that it had when it was
        estimated last: of several the largest, the others at the looks to come.

        Parameters
        ----------
        version
            Of the parameters that are watched, 0 for the identity.
        evidence
            Version -> segment -> growing sums.
        now
            Seconds since 1970.
        """
        served = {name: int(sums.drafted[0]) for name, sums in evidence.get(version, {}).items()}
        rows = sum(served.values())
        if rows == 0 or (rows == self.rows and version == self.version):
            return self
        if version != self.version or rows >= 2 * self.rows or now - self.at >= ESTIMATE_SECONDS:
            segments = _estimates(connection, deployment, version, now)
            return TemperingState(now, version, rows, segments, served)
        grown = {
            name: count
            for name, count in served.items()
            if count >= max(SEGMENT_ROWS, 2 * self.served.get(name, 0))
        }
        if not grown:
            return self
        name = max(grown, key=lambda each: (grown[each], each))
        return replace(
            self,
            segments={**self.segments, **_estimates(connection, deployment, version, now, name)},
            served={**self.served, name: grown[name]},
        )

    def to_builtins(self) -> dict[str, Any]:
        """As numbers, lists and names, for JSON."""
        return {
            "at": self.at,
            "version": self.version,
            "rows": self.rows,
            "segments": {name: each.to_builtins() for name, each in self.segments.items()},
            "served": dict(self.served),
        }

    @classmethod
    def from_builtins(cls, data: Mapping[str, Any]) -> TemperingState:
        """Rebuild from :meth:`to_builtins`; what a state of an older release does not have is empty."""
        segments = {name: Tempering.from_builtins(each) for name, each in data.get("segments", {}).items()}
        return cls(
            data.get("at", 0.0),
            data.get("version", 0),
            data.get("rows", 0),
            segments,
            dict(data.get("served", {})),
        )


def _estimates(
    connection: Connection, deployment: Deployment, version: int, now: float, segment: str | None = None
) -> dict[str, Tempering]:
    """Estimate every segment of the sample, or that one."""
    found = sample.load(
        connection,
        deployment.id,
        deployment.gamma,
        now,
        segment=segment,
        fingerprint=deployment.fingerprint,
        half_life_seconds=np.inf,
        of_traffic=False,
    )
    document = parameters.get(connection, deployment.id, version) if version else None
    estimates = {}
    for number, name in enumerate(found.rounds.segments):
        mine = _still_well_sampled(found.take(found.rounds.segment == number))
        if len(mine):
            estimates[name] = estimate(mine, document)
    return estimates


def _still_well_sampled(rows: WeightedSample) -> WeightedSample:
    """Rows of the last half-lives. Older ones are in the sample by luck, and one stands for thousands."""
    bucket = bucket_index(rows.rounds.sampling)
    newest = np.full(int(bucket.max(initial=0)) + 1, np.inf)
    np.minimum.at(newest, bucket, rows.weights)
    return rows.take(rows.weights <= RAREST * newest[bucket])


def estimate(rows: WeightedSample, document: ParameterDocument | None) -> Tempering:
    """Powers of the evidence for these rows, predicted by that set (None: the identity).

    ``rows.weights`` are one over the probability with which each came into the sample.
    """
    gamma = rows.rounds.gamma
    temperatures = np.ones(gamma) if document is None else np.array(document.temperatures)
    offsets = np.zeros(gamma) if document is None else np.array(document.offsets)
    predicted = survival(rows.rounds.logits, temperatures, offsets)
    inclusion = 1.0 / rows.weights
    request = rows.rounds.request
    return Tempering(
        tempering(prefix_labels(rows.rounds) - predicted, included(rows.rounds), request, inclusion),
        tempering(
            imputed_labels(rows.rounds, predicted),
            drafted(rows.rounds),
            request,
            inclusion,
            variance=_ALLOWED_ACCEPTANCE,
        ),
    )
