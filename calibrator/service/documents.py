"""Parameter documents and what they mean here: the set in force, the curve in force, the next version."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np

from calibrator.core.parameter_set import ParameterSet
from calibrator.core.proposal import Proposal
from calibrator.store.deployments import Deployment
from serving_adapter.contract import CostCurve, Evidence, ParameterDocument, SegmentParameters


def set_in_force(document: ParameterDocument | None, deployment: Deployment) -> ParameterSet:
    """Return the pooled set in force; a document of another fingerprint is no calibration of this engine."""
    if document is None or document.fingerprint != deployment.fingerprint:
        return ParameterSet.identity(deployment.gamma)
    return ParameterSet(document.form, np.array(document.temperatures), np.array(document.offsets))


def served_set(document: ParameterDocument | None, deployment: Deployment) -> ParameterSet:
    """Return the set in force with its sets per segment: what serves each row."""
    if document is None or document.fingerprint != deployment.fingerprint:
        return ParameterSet.identity(deployment.gamma)
    return ParameterSet.of(document)


def cost_in_force(document: ParameterDocument | None, deployment: Deployment) -> CostCurve | None:
    """Return the curve in force; what another engine or machine took says nothing of this one."""
    if document is None or document.fingerprint != deployment.fingerprint:
        return None
    return document.cost


def next_document(
    deployment: Deployment,
    previous: ParameterDocument | None,
    version: int,
    chosen: ParameterSet,
    *,
    cost: CostCurve | None,
    explore: float,
    share: float,
    evidence: Evidence,
    at: float,
    segments: Sequence[SegmentParameters] = (),
) -> ParameterDocument:
    """Build the version that follows ``previous``; not sealed yet. ``at`` is in seconds since 1970."""
    return ParameterDocument(
        deployment=deployment.name,
        fingerprint=deployment.fingerprint,
        version=version,
        previous=previous.version if previous else 0,
        gamma=deployment.gamma,
        form=chosen.form,
        temperatures=chosen.temperatures.tolist(),
        offsets=chosen.offsets.tolist(),
        created_at=datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds"),
        cost=cost,
        explore=explore,
        share=share,
        evidence=evidence,
        segments=list(segments),
    )


def document_evidence(proposal: Proposal, reasons: tuple[str, ...]) -> Evidence:
    """What a document says about itself: per position, on rows that the fit has not seen."""
    return Evidence(
        window="weighted sample",
        rounds=proposal.rows,
        n_eff=[g.n_eff for g in proposal.gates],
        ece_before=[r.ece for r in proposal.before],
        ece_after=[r.ece for r in proposal.after],
        noise_floor=[r.noise_floor for r in proposal.after],
        status=[g.status for g in proposal.gates],
        reasons=list(reasons),
    )
