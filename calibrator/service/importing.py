"""Parameters that somebody else made, as the next version of a deployment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, get_args

import msgspec

from calibrator.core.parameter_set import ParameterSet
from calibrator.formats.cost_files import decode_cost
from calibrator.formats.cost_model import straight
from calibrator.formats.temperatures import decode_parameters
from calibrator.service.documents import cost_in_force, next_document, served_set
from calibrator.service.publisher import PUBLISHED, Publisher
from calibrator.store import deployments, parameters, rollouts
from calibrator.store.deployments import Deployment
from calibrator.store.errors import ConflictError
from calibrator.store.store import Store
from serving_adapter.contract import (
    ContractError,
    CostCurve,
    Evidence,
    ParameterDocument,
    decode_document,
    seal,
)
from serving_adapter.ports import Clock

ForeignFormat = Literal["sglang", "tensorrt", "tensorrt-llm", "cost"]
"""Temperatures of SGLang and TensorRT-LLM; ``cost``: any step-time file of theirs, of vLLM or of ours."""
FOREIGN_FORMATS: tuple[ForeignFormat, ...] = get_args(ForeignFormat)


class Importer:
    """Turns foreign parameters into documents of a deployment, and publishes them.

    Parameters
    ----------
    store, publisher, clock
        The parts of the service.
    explore, share
        What a first document carries; later ones carry what is in force.
    """

    def __init__(
        self, store: Store, publisher: Publisher, clock: Clock, *, explore: float, share: float
    ) -> None:
        self._store = store
        self._publisher = publisher
        self._clock = clock
        self._explore = explore
        self._share = share

    def of_document(
        self, deployment: Deployment, content: Mapping[str, Any], reason: str
    ) -> ParameterDocument:
        """Give a document of this or another deployment the next number here; sealed.

        Its digest must hold where it has one. Its signature need not: whoever imports answers for it.

        Raises
        ------
        ContractError
            It is no document, or one for another gamma or another engine.
        """
        given = decode_document(json.dumps(_with_digest(content)).encode())
        if given.gamma != deployment.gamma:
            raise ContractError("gamma", given.gamma, f"{deployment.gamma}, as the deployment has")
        if given.fingerprint != deployment.fingerprint:
            raise ContractError(
                "fingerprint",
                given.fingerprint,
                f"{deployment.fingerprint!r}: it was made for another engine",
            )
        evidence = given.evidence or Evidence()
        return self._numbered(
            deployment,
            msgspec.structs.replace(
                given,
                deployment=deployment.name,
                evidence=msgspec.structs.replace(evidence, reasons=[reason, *evidence.reasons][:20]),
            ),
        )

    def of_foreign(
        self,
        deployment: Deployment,
        file_format: ForeignFormat,
        content: Any,
        reason: str,
        requests: int = 1,
    ) -> ParameterDocument:
        """Make a document of an engine's file; what the file does not hold stays as it is in force.

        Parameters
        ----------
        deployment
            Whose.
        file_format
            One of :data:`FOREIGN_FORMATS`.
        content
            The decoded JSON of the file.
        reason
            What the evidence says.
        requests
            Concurrency at which an additive step-time model is taken.

        Raises
        ------
        FormatError
            The content is not what the format asks for.
        ContractError
            The values cannot be published, or are for another gamma.
        """
        payload = json.dumps(content).encode()
        with self._store.read() as connection:
            newest = parameters.in_force(connection, deployment.id)
        previous = newest.document if newest else None
        if file_format == "cost":
            chosen = served_set(previous, deployment)
            model = decode_cost("content", payload)
            sizes, seconds = straight(model.at(requests))
            cost: CostCurve | None = CostCurve(
                batch_tokens=[int(b) for b in sizes],
                seconds=[float(s) for s in seconds],
                status=["measured"] * len(sizes),
            )
        else:
            chosen = _same_gamma(decode_parameters("content", payload), deployment)
            cost = cost_in_force(previous, deployment)
        document = next_document(
            deployment,
            previous,
            # Numbered below; any version above the one before will do until then.
            (previous.version if previous else 0) + 1,
            chosen,
            cost=cost,
            explore=previous.explore if previous else self._explore,
            share=previous.share if previous else self._share,
            evidence=Evidence(reasons=[reason]),
            at=self._clock.now(),
            segments=chosen.entries,
        )
        return self._numbered(deployment, document)

    def publish(self, deployment: Deployment, document: ParameterDocument) -> None:
        """Put a sealed document in force.

        Raises
        ------
        ConflictError
            The deployment is frozen or in a rollout, or another version came first.
        """
        with self._store.write() as connection:
            deployments.lock(connection, [deployment.id])
            known = deployments.get(connection, deployment.name)
            if known is not None and known.frozen:
                raise ConflictError(f"deployment {deployment.name} is frozen: release it first")
            running = rollouts.running(connection, deployment.id)
            if running is not None:
                raise ConflictError(f"rollout {running.id} is running: promote or abort it first")
            parameters.append(connection, deployment.id, document, self._clock.now(), PUBLISHED)
        self._publisher.put_in_force(document)

    def _numbered(self, deployment: Deployment, document: ParameterDocument) -> ParameterDocument:
        with self._store.read() as connection:
            newest = parameters.in_force(connection, deployment.id)
        return self._publisher.sealed_anew(
            msgspec.structs.replace(
                document,
                version=self._publisher.next_version(deployment),
                previous=newest.document.version if newest else 0,
            )
        )


def _same_gamma(chosen: ParameterSet, deployment: Deployment) -> ParameterSet:
    found = len(chosen.temperatures)
    if found != deployment.gamma:
        raise ContractError("temperatures", f"{found} values", f"{deployment.gamma}, one per draft position")
    return chosen


def _with_digest(content: Mapping[str, Any]) -> dict[str, Any]:
    """A document that was written by hand has no digest: it gets the one that fits."""
    if content.get("digest"):
        return dict(content)
    try:
        document = msgspec.convert(dict(content), ParameterDocument)
    except (msgspec.ValidationError, ContractError):
        return dict(content)  # decoding says what is wrong, with the value
    return msgspec.to_builtins(seal(document))  # type: ignore[no-any-return]
