"""One refresh: stored sample in, a published version or the reasons why not out."""

from __future__ import annotations

import copy
import dataclasses
import logging
import socket
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from calibrator.core.candidate import ProposalOptions
from calibrator.core.proposal import Proposal
from calibrator.service import recency
from calibrator.service.basis import Basis, load_basis
from calibrator.service.curves import LiveCurve, live_curve
from calibrator.service.decision import Decision, decide
from calibrator.service.deployment_settings import read_settings
from calibrator.service.documents import cost_in_force, document_evidence, next_document
from calibrator.service.publisher import PUBLISHED, Publisher
from calibrator.service.rollout.beginning import begin
from calibrator.service.segments import SegmentSupport
from calibrator.service.temperature_export import ExportRefusedError, TemperatureExport
from calibrator.store import boots, deployments, leases, parameters, refreshes
from calibrator.store.errors import ConflictError, LeaseLostError, StoreError, StoreUnavailableError
from calibrator.store.forgetting import Cut
from calibrator.store.store import Store
from serving_adapter.contract import FORMS, ContractError, Form, ParameterDocument
from serving_adapter.ports import Clock, ParameterStore

log = logging.getLogger(__name__)

LEASE_SECONDS = 120.0
"""Lease of a refresh that belongs to no run; it takes seconds, and who died in it is waited for this long."""

LIVE_SECONDS = 600.0
"""A replica that has sent nothing for so long no longer says which engine this deployment is."""

_MAX_REASON = 500
ROLLED_OUT = "rolled_out"
_WORDS = {"direct": "published", "canary": ROLLED_OUT}
"""What a refresh that has found something better says, by the mode of the deployment."""

TEMPERATURE_EXPORT = "temperature_export"
"""Part of the evidence: what temperatures alone say of an affine version, fitted to the rows it rests on."""

Hold = Callable[[Connection, int], None]
"""Called with a refresh's id in every transaction that writes for it; raises when it may not any more."""


@dataclass(frozen=True, slots=True, eq=False)
class RefreshOutcome:
    """What came of a refresh: published, unchanged, would_publish (dry), frozen, no_rows, busy or conflict.

    ``rolled_out``: put on trial instead of published, as the deployment's settings want it.
    ``document`` is the new document when one was published, or would have been; ``proposal`` is there
    whenever rows were. ``refresh_id`` is its row in the store, None where none was begun.
    """

    outcome: str
    reasons: tuple[str, ...]
    document: ParameterDocument | None = None
    proposal: Proposal | None = None
    curve: LiveCurve | None = None
    refresh_id: int | None = None


class Refresher:
    """Refreshes deployments, one service at a time each (a database lease decides).

    Parameters
    ----------
    store, parameter_store, publisher, clock
        Where rows come from and documents go.
    options
        What a refresh may do; ``supported_forms`` is narrowed to what live replicas report.
    explore
        Exploration probability that documents carry while every position is known well enough.
    share
        Share of its requests that a replica emits, which documents carry too.
    half_life_seconds
        Recency of the sample; None keeps that of the strata.

    Notes
    -----
    Settings of the deployment go before ``options.form``, ``explore``, ``share`` and ``half_life_seconds``.
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
        self._hold: Hold = _unfenced

    def refresh(self, name: str, *, dry_run: bool = False, hold: Hold | None = None) -> RefreshOutcome:
        """Fit, gate and, if it is better, publish version n + 1.

        The steps: take the lease; load sample and set in force; propose; write version and outcome in one
        transaction; publish. A crash anywhere leaves the old set in force or a version that
        :meth:`Publisher.reconcile` publishes.

        Parameters
        ----------
        name
            Of the deployment.
        dry_run
            Decide and note the decision, publish nothing.
        hold
            Fence of the run that this refresh belongs to: the run keeps others away, so no lease is taken.

        Raises
        ------
        KeyError
            There is no deployment of that name.
        LeaseLostError
            The run was taken over by another service; what was not written yet is not written.
        StoreError, TransportError
            A store could not be reached; nothing was changed.
        """
        with self._store.read() as connection:
            deployment = deployments.get(connection, name)
        if deployment is None:
            raise KeyError(name)
        if deployment.frozen and not dry_run:
            return RefreshOutcome("frozen", ("the deployment is frozen",))
        if hold is not None:
            return self._fenced(hold)._refresh(deployment, dry_run)
        lease = f"refresh:{name}"
        with self._store.write() as connection:
            held = leases.acquire(connection, lease, self._holder, LEASE_SECONDS)
        if held is None:
            return RefreshOutcome("busy", ("another service is refreshing this deployment",))
        try:
            return self._refresh(deployment, dry_run)
        finally:
            with self._store.write() as connection:
                leases.release(connection, lease, self._holder)

    def _fenced(self, hold: Hold) -> Refresher:
        fenced = copy.copy(self)
        fenced._hold = hold
        return fenced

    def _refresh(self, deployment: deployments.Deployment, dry_run: bool) -> RefreshOutcome:
        now = self._clock.now()
        self._publisher.reconcile(deployment.name)
        with self._store.write() as connection:
            # Whoever holds the deployment is alone: what is open was left by a service that died.
            refreshes.abandon(connection, deployment.id, now)
            refresh_id = refreshes.start(connection, deployment.id, now)
            self._hold(connection, refresh_id)
            running = boots.fingerprints(connection, deployment.id, since=now - LIVE_SECONDS)
            if len(running) == 1 and deployment.fingerprint not in running:
                # A new drafter, engine or machine is everywhere: what the old one taught does not count.
                (fingerprint,) = running
                if not dry_run:
                    deployments.set_fingerprint(connection, deployment.id, fingerprint)
                deployment = dataclasses.replace(deployment, fingerprint=fingerprint)
        try:
            return self._decided(deployment, refresh_id, running, now, dry_run)
        except (LeaseLostError, StoreUnavailableError):
            raise  # somebody else takes it over, and closes what is open here
        except Exception as error:
            self._failed(refresh_id, error)
            raise

    def _decided(
        self,
        deployment: deployments.Deployment,
        refresh_id: int,
        running: Collection[str],
        now: float,
        dry_run: bool,
    ) -> RefreshOutcome:
        try:
            settings = read_settings(deployment.settings)
        except ContractError as error:
            return self._ended(RefreshOutcome("unchanged", (f"settings: {error}",), refresh_id=refresh_id))
        if len(running) > 1:
            named = ", ".join(sorted(repr(f) for f in running))
            reason = f"mixed_provenance: replicas run fingerprints {named}"
            return self._ended(RefreshOutcome("unchanged", (reason,), refresh_id=refresh_id))
        half_life = settings.half_life_seconds or self._half_life
        with self._store.read() as connection:
            basis = load_basis(connection, deployment, settings, now, half_life)
        if not len(basis.rows):
            reason = f"no rows of fingerprint {deployment.fingerprint!r} yet"
            return self._ended(RefreshOutcome("no_rows", (reason,), refresh_id=refresh_id))
        live = live_curve(self._store, deployment, now, cost_in_force(basis.previous, deployment), half_life)
        options = dataclasses.replace(
            self._options,
            form=settings.form or self._options.form,
            supported_forms=self._supported_forms(deployment.name),
        )
        decision = decide(
            deployment,
            settings,
            basis,
            live,
            options,
            SegmentSupport.of(self._parameter_store.reports(deployment.name)),
            explore=self._explore,
            share=self._share,
            now=now,
        )
        outcome = RefreshOutcome(
            "unchanged", decision.reasons, proposal=decision.proposal, curve=live, refresh_id=refresh_id
        )
        under_way = basis.rollout if decision.publish else None
        if under_way is not None:
            told = f"rollout {under_way.id} of version {under_way.version} is running: nothing is published"
            outcome = dataclasses.replace(outcome, reasons=(*outcome.reasons, told))
        elif decision.publish:
            document = self._document(deployment, basis.previous, decision)
            word = "would_publish" if dry_run else _WORDS[settings.rollout.mode]
            outcome = dataclasses.replace(outcome, outcome=word, document=document)
        if dry_run:
            return self._ended(outcome, decision.evidence)
        evidence = {**decision.evidence, **_as_temperatures(outcome.document, basis, options, now)}
        return self._concluded(deployment, outcome, evidence, basis.forgetting.new)

    def _document(
        self,
        deployment: deployments.Deployment,
        previous: ParameterDocument | None,
        decision: Decision,
    ) -> ParameterDocument:
        document = next_document(
            deployment,
            previous,
            self._publisher.next_version(deployment),
            decision.chosen,
            cost=decision.cost,
            explore=decision.explore,
            share=decision.share,
            evidence=document_evidence(decision.proposal, decision.reasons),
            at=self._clock.now(),
            segments=decision.segments,
        )
        return self._publisher.seal(document)

    def _concluded(
        self,
        deployment: deployments.Deployment,
        outcome: RefreshOutcome,
        evidence: dict[str, Any],
        cuts: tuple[Cut, ...],
    ) -> RefreshOutcome:
        """Write the version with the outcome, forget what is to be forgotten, publish."""
        document = outcome.document
        try:
            with self._store.write() as connection:
                if outcome.outcome == ROLLED_OUT and document is not None:
                    rollout = read_settings(deployment.settings).rollout
                    why = f"refresh {outcome.refresh_id}"
                    begin(
                        connection, deployment, document, rollout,
                        at=self._clock.now(), actor="refresh", reason=why,
                    )  # fmt: skip
                elif document is not None:
                    parameters.append(connection, deployment.id, document, self._clock.now(), PUBLISHED)
                if document is not None and (export := evidence.get(TEMPERATURE_EXPORT)):
                    parameters.keep_temperature_export(connection, deployment.id, document.version, export)
                recency.remember(connection, deployment.id, cuts)
                self._finish(connection, outcome, evidence)
        except ConflictError as error:
            lost = dataclasses.replace(outcome, outcome="conflict", reasons=(str(error),), document=None)
            return self._ended(lost, evidence)
        if document is None:
            log.info("refresh_unchanged deployment=%s reason=%r", deployment.name, outcome.reasons[0])
            return outcome
        if outcome.outcome == ROLLED_OUT:
            log.info("refresh_rolled_out deployment=%s version=%d", deployment.name, document.version)
            return outcome
        self._publisher.put_in_force(document)
        log.info("refresh_published deployment=%s version=%d", deployment.name, document.version)
        return outcome

    def _ended(self, outcome: RefreshOutcome, evidence: dict[str, Any] | None = None) -> RefreshOutcome:
        """Note an outcome that changed nothing."""
        with self._store.write() as connection:
            self._finish(connection, dataclasses.replace(outcome, document=None), evidence or {})
        return outcome

    def _failed(self, refresh_id: int, error: Exception) -> None:
        """Note an error; that it is noted matters less than the error."""
        reason = f"{type(error).__name__}: {error}"[:_MAX_REASON]
        outcome = RefreshOutcome(refreshes.FAILED, (reason,), refresh_id=refresh_id)
        try:
            self._ended(outcome)
        except StoreError as further:
            log.warning("refresh_not_noted refresh=%d reason=%r", refresh_id, str(further))

    def _finish(self, connection: Connection, outcome: RefreshOutcome, evidence: dict[str, Any]) -> None:
        assert outcome.refresh_id is not None
        self._hold(connection, outcome.refresh_id)
        refreshes.finish(
            connection,
            outcome.refresh_id,
            self._clock.now(),
            outcome.outcome,
            list(outcome.reasons),
            evidence,
            outcome.document.version if outcome.document is not None else None,
        )

    def _supported_forms(self, name: str) -> tuple[Form, ...]:
        """Forms that every live replica can apply; before any has reported, what today's engines have."""
        reports = self._parameter_store.reports(name)
        if not reports:
            return ("temperature",)
        common = [form for form in FORMS if all(form in report.forms for report in reports.values())]
        allowed = [form for form in common if form in self._options.supported_forms]
        return tuple(allowed) or ("temperature",)


def _as_temperatures(
    document: ParameterDocument | None, basis: Basis, options: ProposalOptions, now: float
) -> dict[str, Any]:
    """Evidence that engines with temperatures only get of a new version; none where rows say too little."""
    if document is None or document.form == "temperature":
        return {}
    try:
        made = TemperatureExport.fit(
            document, basis.rows.rounds, basis.weights, options, at=now, when="publication"
        )
    except ExportRefusedError as error:
        log.info("temperature_export_refused version=%d reason=%r", document.version, str(error))
        return {}
    return {TEMPERATURE_EXPORT: made.to_builtins()}


def _unfenced(_connection: Connection, _refresh_id: int) -> None:
    """Write without asking: the refresh belongs to no run."""
