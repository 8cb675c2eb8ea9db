"""What an engine does about new parameter documents: judge, stage, put in force, report."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence

from serving_adapter.contract import ContractError, EngineIdentity, Form, decode_document
from serving_adapter.mirror import EngineReport, ParameterMirror
from serving_adapter.parameters import Parameters

log = logging.getLogger(__name__)

_STAGED = 4
"""Documents kept ready between staging and commit: more than one may arrive in between."""


class ParameterWatch:
    """Parameters in force in one rank.

    Parameters
    ----------
    mirror
        Where the sidecar leaves documents; None keeps the identity for good.
    identity, deployment, forms
        What a document must fit: gamma, fingerprint, deployment, and a form the engine can apply.
    key
        HMAC key; when given, unsigned documents are refused here too.
    commit_at_once
        Put an acceptable document in force as soon as it is seen. False where several ranks must change
        in the same step.
    reports
        Whether this rank reports to the sidecar (one rank does).
    explore
        Exploration probability until a document sets it.
    labels
        Segment labels by index (the list may grow) of an engine that applies sets per segment; None for
        one that applies the pooled set only.
    """

    def __init__(
        self,
        mirror: ParameterMirror | None,
        identity: EngineIdentity,
        deployment: str,
        forms: tuple[Form, ...],
        *,
        key: bytes | None = None,
        commit_at_once: bool = True,
        reports: bool = True,
        explore: float = 0.0,
        labels: Sequence[str] | None = None,
    ) -> None:
        self._mirror = mirror
        self._gamma = identity.gamma
        self._fingerprint = identity.fingerprint()
        self._deployment = deployment
        self._forms = forms
        self._labels = labels
        self._key = key
        self._commit_at_once = commit_at_once
        self._reports = reports and mirror is not None
        self.in_force = self._before = Parameters.identity(identity.gamma, explore=explore)
        self._sequence = 0
        self._seen = b""
        self._staged: dict[int, Parameters] = {}
        self._report = EngineReport(
            forms=forms, fingerprint=self._fingerprint, segment_sets=labels is not None
        )
        self._send()

    @property
    def report(self) -> EngineReport:
        """What was applied and refused last."""
        return self._report

    def current(self) -> Parameters:
        """Parameters in force: one load when the mirror did not change.

        With ``commit_at_once`` a new version is reported as applied here.
        """
        if self._mirror is None or self._mirror.sequence == self._sequence:
            return self.in_force
        self._look()
        if self._commit_at_once and self._staged:
            self.commit(max(self._staged))
            # What an engine of one rank is handed between two steps is what it computes with.
            self._change(applied=self.in_force.version)
        return self.in_force

    def stage(self) -> int:
        """Make the newest acceptable document ready and return its version (else the one in force)."""
        if self._mirror is not None and self._mirror.sequence != self._sequence:
            self._look()
        return max(self._staged, default=self.in_force.version)

    def commit(self, version: int) -> bool:
        """Put a staged version in force; False when this rank has not staged it."""
        if version == self.in_force.version:
            return True
        staged = self._staged.get(version)
        if staged is None:
            return False
        self._before, self.in_force = self.in_force, staged
        self._staged = {v: p for v, p in self._staged.items() if v > version}
        return True

    def applied(self, version: int) -> None:
        """Note that the engine computes with this version now."""
        self._change(applied=version)

    def refused(self, version: int, reason: str) -> None:
        """Note that the engine cannot take this version; what was in force before it stays so."""
        self._staged.pop(version, None)
        if version == self.in_force.version and version > 0:
            self.in_force = self._before
        # Reported as applied when it was handed out: it is not.
        back = self.in_force.version if self._report.applied == version else -1
        self._refuse(version, reason, applied=back)

    def _refuse(self, version: int, reason: str, *, applied: int = -1) -> None:
        self._change(applied=applied, refused=version, reason=reason)
        log.warning("parameters_refused version=%d reason=%r", version, reason)

    def detach(self) -> None:
        """Look no further: the parameters in force stay."""
        self._mirror, self._reports = None, False

    def _look(self) -> None:
        assert self._mirror is not None
        found = self._mirror.read()
        if found is None:
            return  # being written: looked at again in the next step
        self._sequence = found.sequence
        if found.payload == self._seen:
            return  # the sidecar restarted and wrote the same again
        self._seen = found.payload
        newest = max(self._staged, default=self.in_force.version)
        try:
            parameters = self._judge(found.payload, newest)
        except Exception as error:  # whatever is wrong with it, the engine goes on with what it has
            self._refuse(_version_of(found.payload, found.version), str(error))
            return
        self._staged[parameters.version] = parameters
        while len(self._staged) > _STAGED:
            del self._staged[min(self._staged)]

    def _judge(self, payload: bytes, newest: int) -> Parameters:
        document = decode_document(payload, self._key)
        if document.deployment != self._deployment:
            raise ContractError("deployment", document.deployment, self._deployment)
        if document.gamma != self._gamma:
            raise ContractError("gamma", document.gamma, f"{self._gamma}, as this engine drafts")
        if document.fingerprint and document.fingerprint != self._fingerprint:
            raise ContractError("fingerprint", document.fingerprint, f"{self._fingerprint} (this engine)")
        applied = {"form": document.form}
        if self._labels is not None:
            applied |= {f"segments[{i}].form": entry.form for i, entry in enumerate(document.segments)}
        for name, form in applied.items():
            if form not in self._forms:
                raise ContractError(name, form, f"one this engine applies: {', '.join(self._forms)}")
        if document.version <= newest:
            raise ContractError("version", document.version, f"above {newest}: versions only rise")
        return Parameters.from_document(document, self._labels)

    def _change(self, *, applied: int = -1, refused: int = -1, reason: str = "") -> None:
        before = self._report
        self._report = EngineReport(
            applied=applied if applied >= 0 else before.applied,
            refused=refused if refused >= 0 else before.refused,
            reason=reason if refused >= 0 else before.reason,
            forms=before.forms,
            fingerprint=before.fingerprint,
            segment_sets=before.segment_sets,
        )
        self._send()

    def _send(self) -> None:
        if self._reports and self._mirror is not None:
            self._mirror.write_report(self._report)


def _version_of(payload: bytes, otherwise: int) -> int:
    """Version that a refused document claims, as far as it can be read."""
    try:
        version = json.loads(payload)["version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return otherwise
    return version if isinstance(version, int) and 0 <= version < 2**32 else otherwise
