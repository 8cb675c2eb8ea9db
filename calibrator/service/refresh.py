"""One refresh: stored sample in, a published version or the reasons why not out."""

from __future__ import annotations

import dataclasses
import logging
import socket
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from calibrator.core.candidate import ProposalOptions
from calibrator.core.parameter_set import ParameterSet
from calibrator.core.proposal import Proposal, propose
from calibrator.service.curves import LiveCurve, live_curve
from calibrator.service.evidence import evidence_json, judge_worth
from calibrator.service.publisher import PUBLISHED, Publisher
from calibrator.store import boots, deployments, leases, parameters, refreshes, sample
from calibrator.store.errors import ConflictError
from calibrator.store.store import Store
from serving_adapter.contract import FORMS, CostCurve, Evidence, Form, ParameterDocument
from serving_adapter.ports import Clock, ParameterStore

log = logging.getLogger(__name__)

LEASE_SECONDS = 120.0
"""A refresh takes seconds; a service that died in the middle is taken over after this."""

LIVE_SECONDS = 600.0
"""A replica that has sent nothing for so long no longer says which engine this deployment is."""


@dataclass(frozen=True, slots=True, eq=False)
class RefreshOutcome:
    """What came of a refresh: published, unchanged, frozen, no_rows, busy or conflict.

    ``document`` is the new document when one was published; ``proposal`` is there whenever rows were.
    """

    outcome: str
    reasons: tuple[str, ...]
    document: ParameterDocument | None = None
    proposal: Proposal | None = None
    curve: LiveCurve | None = None


class Refresher:
    """Refreshes deployments, one service at a time each (a database lease decides).

    Parameters
    ----------
    store, parameter_store, publisher, clock
        Where rows come from and documents go.
    options
        What a refresh may do; ``supported_forms`` is narrowed to what live replicas report.
    explore
        Exploration probability that documents carry.
    share
        Share of its requests that a replica emits, which documents carry too.
    half_life_seconds
        Recency of the sample; None keeps that of the strata.
    """

    def __init__(
        self,
        store: Store,
        parameter_store: ParameterStore,
        publisher: Publisher,
        clock: Clock,
        options: ProposalOptions,
        *,
        explore: float = 0.01,
        share: float = 1.0,
        half_life_seconds: float | None = None,
    ) -> None:
        self._store = store
        self._parameter_store = parameter_store
        self._publisher = publisher
        self._clock = clock
        self._options = options
        self._explore = explore
        self._share = share
        self._half_life = half_life_seconds
        self._holder = f"{socket.gethostname()}/{uuid.uuid4().hex[:12]}"

    def refresh(self, name: str) -> RefreshOutcome:
        """Fit, gate and, if it is better, publish version n + 1.

        The steps: take the lease; load sample and set in force; propose; write version and outcome in one
        transaction; publish. A crash anywhere leaves the old set in force or a version that
        :meth:`Publisher.reconcile` publishes.

        Raises
        ------
        KeyError
            There is no deployment of that name.
        StoreError, TransportError
            A store could not be reached; nothing was changed.
        """
        with self._store.read() as connection:
            deployment = deployments.get(connection, name)
        if deployment is None:
            raise KeyError(name)
        if deployment.frozen:
            return RefreshOutcome("frozen", ("the deployment is frozen",))
        lease = f"refresh:{name}"
        with self._store.write() as connection:
            held = leases.acquire(connection, lease, self._holder, LEASE_SECONDS)
        if held is None:
            return RefreshOutcome("busy", ("another service is refreshing this deployment",))
        try:
            return self._refresh(deployment)
        finally:
            with self._store.write() as connection:
                leases.release(connection, lease, self._holder)

    def _refresh(self, deployment: deployments.Deployment) -> RefreshOutcome:
        now = self._clock.now()
        self._publisher.reconcile(deployment.name)
        with self._store.write() as connection:
            refresh_id = refreshes.start(connection, deployment.id, now)
            running = boots.fingerprints(connection, deployment.id, since=now - LIVE_SECONDS)
            if len(running) == 1 and deployment.fingerprint not in running:
                # A new drafter, engine or machine is everywhere: what the old one taught does not count.
                (fingerprint,) = running
                deployments.set_fingerprint(connection, deployment.id, fingerprint)
                deployment = dataclasses.replace(deployment, fingerprint=fingerprint)
        if len(running) > 1:
            named = ", ".join(sorted(repr(f) for f in running))
            reasons: tuple[str, ...] = (f"mixed_provenance: replicas run fingerprints {named}",)
            self._finish(refresh_id, "unchanged", reasons, {}, None)
            return RefreshOutcome("unchanged", reasons)
        with self._store.read() as connection:
            rows = sample.load(
                connection,
                deployment.id,
                deployment.gamma,
                now,
                fingerprint=deployment.fingerprint,
                half_life_seconds=self._half_life,
            )
            latest = parameters.latest(connection, deployment.id)
        if not len(rows):
            reasons = (f"no rows of fingerprint {deployment.fingerprint!r} yet",)
            self._finish(refresh_id, "no_rows", reasons, {}, None)
            return RefreshOutcome("no_rows", reasons)

        previous = latest.document if latest else None
        in_force = _parameter_set(previous, deployment)
        options = dataclasses.replace(self._options, supported_forms=self._supported_forms(deployment.name))
        # Weights matter relative to each other only; a mean of one keeps figures readable.
        weights = rows.weights / rows.weights.mean()
        proposal = propose(rows.rounds, in_force, options, weights)
        live = live_curve(self._store, deployment, now, _cost(previous, deployment), self._half_life)
        worth = judge_worth(proposal, in_force, live, rows.rounds, weights)
        reasons = (*proposal.reasons, *worth.reasons, *(f"curve: {reason}" for reason in live.reasons))
        evidence = evidence_json(proposal, live, worth)
        calibrate = proposal.publish and not worth.reasons
        if not calibrate and not live.changed:
            self._finish(refresh_id, "unchanged", reasons, evidence, None)
            log.info("refresh_unchanged deployment=%s reason=%r", deployment.name, proposal.reasons[-1])
            return RefreshOutcome("unchanged", reasons, proposal=proposal, curve=live)
        if live.changed:
            reasons = (*reasons, "curve: measured anew")

        document = self._document(
            deployment, proposal, previous, proposal.parameters if calibrate else in_force, live, reasons
        )
        try:
            with self._store.write() as connection:
                parameters.append(connection, deployment.id, document, self._clock.now(), PUBLISHED)
                refreshes.finish(
                    connection, refresh_id, self._clock.now(), "published", list(reasons), evidence,
                    document.version,
                )  # fmt: skip
        except ConflictError as error:
            self._finish(refresh_id, "conflict", (str(error),), evidence, None)
            return RefreshOutcome("conflict", (str(error),), proposal=proposal, curve=live)
        self._publisher.put_in_force(document)
        log.info("refresh_published deployment=%s version=%d", deployment.name, document.version)
        return RefreshOutcome("published", reasons, document=document, proposal=proposal, curve=live)

    def _finish(
        self,
        refresh_id: int,
        outcome: str,
        reasons: tuple[str, ...],
        evidence: dict[str, Any],
        version: int | None,
    ) -> None:
        with self._store.write() as connection:
            refreshes.finish(
                connection, refresh_id, self._clock.now(), outcome, list(reasons), evidence, version
            )

    def _supported_forms(self, name: str) -> tuple[Form, ...]:
        """Forms that every live replica can apply; before any has reported, what today's engines have."""
        reports = self._parameter_store.reports(name)
        if not reports:
            return ("temperature",)
        common = [form for form in FORMS if all(form in report.forms for report in reports.values())]
        allowed = [form for form in common if form in self._options.supported_forms]
        return tuple(allowed) or ("temperature",)

    def _document(
        self,
        deployment: deployments.Deployment,
        proposal: Proposal,
        previous: ParameterDocument | None,
        chosen: ParameterSet,
        live: LiveCurve,
        reasons: tuple[str, ...],
    ) -> ParameterDocument:
        document = ParameterDocument(
            deployment=deployment.name,
            fingerprint=deployment.fingerprint,
            version=self._publisher.next_version(deployment),
            previous=previous.version if previous else 0,
            gamma=deployment.gamma,
            form=chosen.form,
            temperatures=chosen.temperatures.tolist(),
            offsets=chosen.offsets.tolist(),
            created_at=datetime.fromtimestamp(self._clock.now(), UTC).isoformat(timespec="milliseconds"),
            cost=live.curve if live.curve is not None else _cost(previous, deployment),
            explore=self._explore,
            share=self._share,
            evidence=Evidence(
                window="weighted sample",
                rounds=proposal.rows,
                n_eff=[g.n_eff for g in proposal.gates],
                ece_before=[r.ece for r in proposal.before],
                ece_after=[r.ece for r in proposal.after],
                noise_floor=[r.noise_floor for r in proposal.after],
                status=[g.status for g in proposal.gates],
                reasons=list(reasons),
            ),
        )
        return self._publisher.seal(document)


def _parameter_set(document: ParameterDocument | None, deployment: deployments.Deployment) -> ParameterSet:
    """Return the set in force; a document of another fingerprint is no calibration of this engine."""
    if document is None or document.fingerprint != deployment.fingerprint:
        return ParameterSet.identity(deployment.gamma)
    return ParameterSet(document.form, np.array(document.temperatures), np.array(document.offsets))


def _cost(document: ParameterDocument | None, deployment: deployments.Deployment) -> CostCurve | None:
    """Return the curve in force; what another engine or machine took says nothing of this one."""
    if document is None or document.fingerprint != deployment.fingerprint:
        return None
    return document.cost
