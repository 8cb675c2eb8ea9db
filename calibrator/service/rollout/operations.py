"""What an operator, or the controller, may do with a rollout: start, promote, abort, roll back.

Every step is one SQL transaction that compares and sets the rollout's stage; the parameter store follows,
and where it cannot, the next look of the controller and of :meth:`Publisher.reconcile` make up for it.

Versions only rise, on every replica, so nobody goes back to an older one: what is to run again runs under a
new number. A rollback of a canary therefore reaches everybody, and changes nothing for the others.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from calibrator.core.parameter_set import ParameterSet
from calibrator.service.deployment_settings import read_settings
from calibrator.service.documents import next_document
from calibrator.service.publisher import PUBLISHED, Publisher
from calibrator.service.rollout.beginning import begin
from calibrator.store import deployments, parameters, rollouts
from calibrator.store.deployments import Deployment
from calibrator.store.errors import ConflictError
from calibrator.store.rollouts import ABORTED, ALL, CANARY, DONE, RUNNING, SHADOW, Rollout
from calibrator.store.store import Store
from serving_adapter.contract import ContractError, Evidence, ParameterDocument
from serving_adapter.ports import Clock, ParameterStore, TransportError

log = logging.getLogger(__name__)


class Rollouts:
    """Rollouts of all deployments. Cheap to make; keeps nothing between calls.

    Parameters
    ----------
    store, parameter_store, publisher, clock
        Where rollouts are noted, and where documents go.
    """

    def __init__(
        self, store: Store, parameter_store: ParameterStore, publisher: Publisher, clock: Clock
    ) -> None:
        self._store = store
        self._parameter_store = parameter_store
        self._publisher = publisher
        self._clock = clock

    def start(
        self,
        name: str,
        version: int,
        *,
        actor: str,
        reason: str = "",
        stage: str | None = None,
        share: float | None = None,
    ) -> Rollout:
        """Put what a stored version holds on trial, under a new number.

        Raises
        ------
        KeyError
            There is no such deployment or version.
        ConflictError
            A rollout is running, or the deployment is frozen.
        ContractError
            The share or the stage makes no sense.
        """
        deployment, document = self._stored(name, version)
        why = reason or f"version {version} is rolled out"
        candidate = self._again(document, self._publisher.next_version(deployment), [why])
        return self.start_document(deployment, candidate, actor=actor, reason=why, stage=stage, share=share)

    def start_document(
        self,
        deployment: Deployment,
        document: ParameterDocument,
        *,
        actor: str,
        reason: str,
        stage: str | None = None,
        share: float | None = None,
    ) -> Rollout:
        """Put a sealed document of a new version on trial; raises as :meth:`start`."""
        if deployment.frozen:
            raise ConflictError(f"deployment {deployment.name} is frozen")
        settings = read_settings(deployment.settings).rollout
        with self._store.write() as connection:
            deployments.lock(connection, [deployment.id])
            rollout = begin(
                connection, deployment, document, settings,
                at=self._clock.now(), actor=actor, reason=reason, stage=stage, share=share,
            )  # fmt: skip
        log.info(
            "rollout_started deployment=%s rollout=%d version=%d stage=%s by=%s",
            deployment.name, rollout.id, rollout.version, rollout.stage, actor,
        )  # fmt: skip
        return rollout

    def promote(self, rollout_id: int, *, actor: str, reason: str = "", stage: str = ALL) -> Rollout:
        """Move on to ``stage``: ``canary``, or ``all`` and be done.

        Raises
        ------
        KeyError
            There is no such rollout.
        ConflictError
            It is not running, is that far already, or somebody else decided first.
        ContractError
            No such stage.
        """
        if stage not in (CANARY, ALL):
            raise ContractError("stage", stage, f"{CANARY} or {ALL}")
        return self.advance(
            self._running(rollout_id), stage, actor=actor, reason=reason or "promoted by hand"
        )

    def abort(self, rollout_id: int, *, actor: str, reason: str = "") -> Rollout:
        """End the trial: the candidate is withdrawn, and who ran it gets what it ran before.

        Raises
        ------
        KeyError
            There is no such rollout.
        ConflictError
            It is not running, or somebody else decided first.
        """
        return self.give_up(self._running(rollout_id), actor=actor, reason=reason or "aborted by hand")

    def rollback(self, name: str, version: int, *, actor: str, reason: str = "") -> ParameterDocument:
        """Put in force what a stored version holds, under a new number; a rollout under way ends.

        Raises
        ------
        KeyError
            There is no such deployment or version.
        ConflictError
            Another version was stored meanwhile.
        """
        deployment, stored = self._stored(name, version)
        why = reason or f"rolled back to version {version}"
        document = self._again(stored, self._publisher.next_version(deployment), [why])
        with self._store.write() as connection:
            deployments.lock(connection, [deployment.id])
            parameters.append(connection, deployment.id, document, self._clock.now(), PUBLISHED)
            running = rollouts.running(connection, deployment.id)
            if running is not None:
                told = f"superseded by version {document.version}: {why}"
                rollouts.move(connection, running, ABORTED, ABORTED, self._clock.now(), told, actor)
                parameters.set_state(connection, deployment.id, running.version, parameters.ABORTED)
        self._follow(deployment.name, document)
        log.info("rolled_back deployment=%s to=%d version=%d by=%s", name, version, document.version, actor)
        return document

    def advance(self, rollout: Rollout, stage: str, *, actor: str, reason: str) -> Rollout:
        """Move a rollout, as it was read, to a later stage; raises as :meth:`promote`."""
        if (rollout.stage, stage) not in ((SHADOW, CANARY), (SHADOW, ALL), (CANARY, ALL)):
            raise ConflictError(f"rollout {rollout.id} is in stage {rollout.stage} already")
        done = stage == ALL
        with self._store.write() as connection:
            deployments.lock(connection, [rollout.deployment_id])
            newest = parameters.in_force(connection, rollout.deployment_id)
            if newest is not None and newest.document.version > rollout.version:
                raise ConflictError(f"version {newest.document.version} came into force meanwhile")
            state = DONE if done else RUNNING
            rollouts.move(connection, rollout, stage, state, self._clock.now(), reason, actor)
            word = PUBLISHED if done else parameters.CANARY
            parameters.set_state(connection, rollout.deployment_id, rollout.version, word)
            document = parameters.get(connection, rollout.deployment_id, rollout.version)
        assert document is not None
        if done:
            self._follow(document.deployment, self._publisher.sealed_anew(document))
        self._log("rollout_promoted", document.deployment, rollout, stage, reason, actor)
        return self._read(rollout.id)

    def give_up(self, rollout: Rollout, *, actor: str, reason: str) -> Rollout:
        """Abort a rollout, as it was read; raises as :meth:`abort`."""
        with self._store.read() as connection:
            deployment = deployments.by_id(connection, rollout.deployment_id)
            candidate = parameters.get(connection, rollout.deployment_id, rollout.version)
            control = parameters.in_force(connection, rollout.deployment_id)
        assert deployment is not None and candidate is not None  # noqa: PT018
        before = control.document if control else None
        # In shadow nobody runs it; and behind a newer version in force everybody leaves it anyway.
        restored = None
        if rollout.stage == CANARY and (before is None or before.version < rollout.version):
            version = self._publisher.next_version(deployment)
            why = [f"rollback of version {rollout.version}: {reason}"]
            restored = (
                self._identity(deployment, candidate, version, why)
                if before is None
                else self._again(before, version, why, previous=rollout.version)
            )
        with self._store.write() as connection:
            deployments.lock(connection, [deployment.id])
            rollouts.move(connection, rollout, ABORTED, ABORTED, self._clock.now(), reason, actor)
            parameters.set_state(connection, deployment.id, rollout.version, parameters.ABORTED)
            if restored is not None:
                parameters.append(connection, deployment.id, restored, self._clock.now(), PUBLISHED)
        self._follow(deployment.name, restored)
        self._log("rollout_aborted", deployment.name, rollout, ABORTED, reason, actor)
        return self._read(rollout.id)

    def _follow(self, name: str, document: ParameterDocument | None) -> None:
        """Bring the parameter store to what SQL says: the document first, then the candidate away.

        In this order no replica that runs the candidate ever reads an older document alone.
        """
        if document is not None and not self._publisher.put_in_force(document):
            return  # reconcile publishes it, and the controller withdraws the candidate then
        with contextlib.suppress(TransportError):
            self._parameter_store.withdraw(name)

    def _again(
        self, document: ParameterDocument, version: int, reasons: Sequence[str], previous: int | None = None
    ) -> ParameterDocument:
        """Give what a document holds a new number."""
        return self._publisher.seal(
            msgspec.structs.replace(
                document,
                version=version,
                previous=document.version if previous is None else previous,
                created_at=self._now(),
                evidence=Evidence(reasons=list(reasons)),
                digest="",
                signature="",
            )
        )

    def _identity(
        self, deployment: Deployment, candidate: ParameterDocument, version: int, reasons: Sequence[str]
    ) -> ParameterDocument:
        """Write down what ran before any version did."""
        return self._publisher.seal(
            next_document(
                deployment,
                candidate,
                version,
                ParameterSet.identity(deployment.gamma),
                cost=None,
                explore=candidate.explore,
                share=candidate.share,
                evidence=Evidence(reasons=list(reasons)),
                at=self._clock.now(),
            )
        )

    def _stored(self, name: str, version: int) -> tuple[Deployment, ParameterDocument]:
        with self._store.read() as connection:
            deployment = deployments.get(connection, name)
            document = None if deployment is None else parameters.get(connection, deployment.id, version)
        if deployment is None:
            raise KeyError(name)
        if document is None:
            raise KeyError(version)
        return deployment, document

    def _running(self, rollout_id: int) -> Rollout:
        rollout = self._read(rollout_id)
        if rollout.state != RUNNING:
            raise ConflictError(f"rollout {rollout_id} has ended: {rollout.stage}")
        return rollout

    def _read(self, rollout_id: int) -> Rollout:
        with self._store.read() as connection:
            rollout = rollouts.get(connection, rollout_id)
        if rollout is None:
            raise KeyError(rollout_id)
        return rollout

    def _now(self) -> str:
        return datetime.fromtimestamp(self._clock.now(), UTC).isoformat(timespec="milliseconds")

    @staticmethod
    def _log(event: str, name: str, rollout: Rollout, stage: str, reason: str, actor: str) -> None:
        log.info(
            "%s deployment=%s rollout=%d version=%d stage=%s by=%s reason=%r",
            event, name, rollout.id, rollout.version, stage, actor, reason,
        )  # fmt: skip
