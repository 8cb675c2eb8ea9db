"""From the store to the parameter store: SQL is the record, the key in Redis is what engines read."""

from __future__ import annotations

import logging

import msgspec

from calibrator.store import deployments, parameters
from calibrator.store.errors import ConflictError
from calibrator.store.store import Store
from serving_adapter.contract import ContractError, ParameterDocument, decode_document, seal
from serving_adapter.ports import Clock, ParameterStore, TransportError, VersionConflictError

log = logging.getLogger(__name__)

PUBLISHED, ADOPTED = "published", "adopted"


class Publisher:
    """Puts documents in force and keeps the two stores in step.

    A version is written to SQL first and to the parameter store second. A crash between the two leaves
    a version that engines have not seen; :meth:`reconcile` publishes it. A parameter store that came
    back empty is filled again, and one that is ahead of SQL (a database restored from a backup) is
    adopted: versions never go back.
    """

    def __init__(
        self, store: Store, parameter_store: ParameterStore, clock: Clock, signing_key: bytes | None = None
    ) -> None:
        self._store = store
        self._parameter_store = parameter_store
        self._clock = clock
        self._key = signing_key
        self._waiting: dict[str, int] = {}

    def in_force(self, deployment: str) -> ParameterDocument | None:
        """Return the document that engines read now, or None; an unreadable one counts as none.

        Raises
        ------
        TransportError
            The parameter store cannot be reached.
        """
        payload = self._parameter_store.read(deployment)
        if payload is None:
            return None
        try:
            return decode_document(payload, self._key)
        except ContractError as error:
            log.warning("parameters_unreadable deployment=%s reason=%r", deployment, str(error))
            return None

    def next_version(self, deployment: deployments.Deployment) -> int:
        """Return a version above every one that either store has seen.

        While the parameter store is away SQL alone says: it is the record, and ahead of it the other is only
        when the database came from a backup.
        """
        with self._store.read() as connection:
            stored = parameters.latest_number(connection, deployment.id)
        try:
            served = self.in_force(deployment.name)
        except TransportError as error:
            log.warning("version_from_database deployment=%s reason=%r", deployment.name, str(error))
            served = None
        return max(stored, served.version if served is not None else 0) + 1

    def seal(self, document: ParameterDocument) -> ParameterDocument:
        """Digest, and signature where a key is configured."""
        return seal(document, self._key)

    def sealed_anew(self, document: ParameterDocument) -> ParameterDocument:
        """Sign a stored document again: the key may have been rotated since."""
        return self.seal(msgspec.structs.replace(document, digest="", signature=""))

    def put_in_force(self, document: ParameterDocument) -> bool:
        """Publish a document that SQL holds; False when it has to wait for :meth:`reconcile`."""
        try:
            self._parameter_store.publish(document)
        except VersionConflictError as error:
            log.warning("parameters_not_published %s", error)
            return False
        except TransportError as error:
            self._waiting[document.deployment] = document.version
            log.warning("parameters_wait deployment=%s reason=%r", document.deployment, str(error))
            return False
        self._waiting.pop(document.deployment, None)
        return True

    def waits(self, document: ParameterDocument) -> bool:
        """Whether the parameter store was away when this document was to be put in force."""
        return self._waiting.get(document.deployment) == document.version

    def reconcile(self, deployment: str) -> int:
        """Bring both stores to the same version and return it (0: none yet); candidates do not count.

        Raises
        ------
        TransportError
            The parameter store cannot be reached.
        """
        with self._store.read() as connection:
            known = deployments.get(connection, deployment)
            latest = None if known is None else parameters.in_force(connection, known.id)
        if known is None:
            return 0
        served = self.in_force(deployment)
        stored_version = 0 if latest is None else latest.document.version
        served_version = 0 if served is None else served.version
        if served is not None and served_version > stored_version:
            self._adopt(known, served)
            return served_version
        if latest is not None and served_version < stored_version:
            document = self.sealed_anew(latest.document)
            if self.put_in_force(document):
                log.info("parameters_republished deployment=%s version=%d", deployment, stored_version)
        return stored_version

    def _adopt(self, deployment: deployments.Deployment, document: ParameterDocument) -> None:
        if document.gamma != deployment.gamma:
            log.warning(
                "parameters_not_adopted deployment=%s gamma=%d expected=%d",
                deployment.name, document.gamma, deployment.gamma,
            )  # fmt: skip
            return
        try:
            with self._store.write() as connection:
                parameters.append(connection, deployment.id, document, self._clock.now(), ADOPTED)
        except ConflictError:
            return  # another service adopted it first
        log.info("parameters_adopted deployment=%s version=%d", deployment.name, document.version)
