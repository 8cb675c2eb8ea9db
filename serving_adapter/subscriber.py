"""The loop from the parameter store to the mirror, and from the engine's report back to the store.

The key in the store is the truth. It is read on start, on every hint, on a timer, and again when the store
comes back after a failure; a hint that is missed costs one period of the timer. Versions only rise: an
older document, or one that fails any check, is refused as a whole with a reason, and what the mirror holds
stays.

A candidate on trial is taken instead of the document in force by the replicas that its share chooses (by a
hash of their name), as long as it is the newer one. What ends a trial is a document in force that is not
older than the candidate: the candidate itself, or what ran before it under a new number.
"""

from __future__ import annotations

import contextlib
import json
import logging
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass

from serving_adapter.canary import takes_candidate
from serving_adapter.clock import SystemClock
from serving_adapter.contract import ContractError, ParameterDocument, decode_document
from serving_adapter.mirror import MAX_REASON, EngineReport, ParameterMirror
from serving_adapter.ports import Candidate, Clock, ParameterStore, ReplicaReport, TransportError
from serving_adapter.ring_presence import engine_is_gone

log = logging.getLogger(__name__)

_LONGEST_WAIT = 0.25
"""Seconds in one wait for a hint: how late a stop or a new engine report may be noticed."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0


@dataclass(slots=True)
class SubscriberCounters:
    """What a subscriber did since it was made."""

    reads: int = 0
    mirrored: int = 0
    refused: int = 0
    reports: int = 0
    failures: int = 0


class Subscriber:
    """Keeps the mirror of one ring equal to the document in force.

    Parameters
    ----------
    ring
        ``DSPARK_RING``; the mirror's name follows from it.
    open_store
        Called when the store is needed first; may raise ``TransportError``, and is then called again.
    deployment, replica
        Whose document, and who reports.
    key
        HMAC key; when given, unsigned documents are refused.
    poll_seconds
        Period of the timer.
    report_seconds, expire_seconds
        How often the report is repeated, and when the store forgets one that is not.
    """

    def __init__(
        self,
        ring: str,
        open_store: Callable[[], ParameterStore],
        deployment: str,
        replica: str,
        *,
        key: bytes | None = None,
        poll_seconds: float = 5.0,
        report_seconds: float = 10.0,
        expire_seconds: float = 60.0,
        clock: Clock | None = None,
        jitter: random.Random | None = None,
    ) -> None:
        self._ring = ring
        self._open_store = open_store
        self._store: ParameterStore | None = None
        self._mirror: ParameterMirror | None = None
        self._deployment, self._replica, self._key = deployment, replica, key
        self._poll_seconds = poll_seconds
        self._report_seconds, self._expire_seconds = report_seconds, expire_seconds
        self._clock: Clock = clock or SystemClock()
        self._jitter = jitter or random.Random()  # noqa: S311 - spreads retries, keeps no secret
        self._stopping = threading.Event()
        self._payload: bytes | None = None
        self._judged: bytes | None = None
        self._refused_trial: bytes | None = None
        self._digest = ""
        self._refused_version, self._reason = 0, ""
        self._sent: EngineReport | None = None
        self._read_at = self._report_at = self._retry_at = float("-inf")
        self._failures = 0
        self._engine_gone = False
        self.version = 0
        self.counters = SubscriberCounters()
        self.last_error = ""

    @property
    def refusal(self) -> tuple[int, str]:
        """Version refused last by this sidecar, and why; (0, "") when none was."""
        return self._refused_version, self._reason

    def run(self) -> None:
        """Subscribe until :meth:`stop`."""
        try:
            while not self._stopping.is_set():
                if not self.step():
                    self._stopping.wait(
                        min(_LONGEST_WAIT, max(0.0, self._retry_at - self._clock.monotonic()))
                    )
        finally:
            self.close()

    def stop(self) -> None:
        """Make :meth:`run` return."""
        self._stopping.set()

    def step(self) -> bool:
        """One pass: read what is due, forward the report, wait briefly for a hint; False while failing."""
        if self._clock.monotonic() < self._retry_at:
            return False
        try:
            store = self._connected()
            if self._clock.monotonic() - self._read_at >= self._poll_seconds:
                self.refresh(store)
            self.forward_report(store)
            if store.wait_for_change(self._deployment, min(_LONGEST_WAIT, self._poll_seconds)):
                self.refresh(store)
                self.forward_report(store)
        except Exception as error:  # a store that misbehaves must not end the loop
            self._fail(error)
            return False
        self._failures, self._retry_at = 0, float("-inf")
        return True

    def refresh(self, store: ParameterStore) -> bool:
        """Read what is in store for this replica and mirror it if that is new and good; True when it was."""
        # In this order: a trial ends with a new document in force, and only then is the candidate withdrawn.
        trial = self._trial(store.candidate(self._deployment))
        payload = store.read(self._deployment)
        self._read_at = self._clock.monotonic()
        self.counters.reads += 1
        if trial is None or _claimed_version(trial) <= _claimed_version(payload):
            self._refused_trial = None
        elif trial == self._payload:
            return False
        elif trial != self._refused_trial:
            if self._take(trial):
                return True
            self._refused_trial = trial
        if payload is None or payload in (self._payload, self._judged):
            return False
        self._judged = payload
        return self._take(payload)

    def _trial(self, candidate: Candidate | None) -> bytes | None:
        """Return the candidate if it is this replica's."""
        if candidate is None or not takes_candidate(self._deployment, self._replica, candidate.share):
            return None
        return candidate.document

    def _take(self, payload: bytes) -> bool:
        """Judge a document and mirror it if it is good."""
        try:
            document = self._judge(payload)
        except ContractError as error:
            self._refused_version, self._reason = _claimed_version(payload), str(error)[:MAX_REASON]
            self.counters.refused += 1
            log.warning("document_refused version=%d reason=%r", self._refused_version, self._reason)
            return False
        if document is None:
            return False
        assert self._mirror is not None
        self._mirror.write(document.version, payload)
        self._payload, self.version, self._digest = payload, document.version, document.digest
        if self._refused_trial is None:
            self._refused_version, self._reason = 0, ""
        self.counters.mirrored += 1
        log.info("document_mirrored version=%d", document.version)
        return True

    def forward_report(self, store: ParameterStore) -> None:
        """Send the engine's report when it changed or is due again.

        Of an engine that has ended nothing is repeated: the store forgets it in time.
        """
        assert self._mirror is not None
        report = self._mirror.read_report()
        if report is None:
            return  # no engine yet: nothing to say for it
        if self._refused_version > 0 and self._refused_version >= report.refused:
            report = EngineReport(
                applied=report.applied,
                refused=self._refused_version,
                reason=self._reason,
                forms=report.forms,
                fingerprint=report.fingerprint,
                segment_sets=report.segment_sets,
            )
        now = self._clock.monotonic()
        if report == self._sent and now < self._report_at:
            return
        gone, before = engine_is_gone(self._ring), self._engine_gone
        self._engine_gone = gone
        if gone:
            if not before:
                log.warning("engine_gone ring=%s: its report is not repeated", self._ring)
            return
        store.report(
            self._deployment,
            ReplicaReport(
                replica=self._replica,
                applied=report.applied,
                reported_at=self._clock.now(),
                fingerprint=report.fingerprint,
                forms=report.forms,
                refused=report.refused,
                reason=report.reason,
                segment_sets=report.segment_sets,
            ),
            self._expire_seconds,
        )
        self._sent, self._report_at = report, now + self._report_seconds
        self.counters.reports += 1

    def _judge(self, payload: bytes) -> ParameterDocument | None:
        """Return the document; None for the one that is mirrored already, signed anew."""
        document = decode_document(payload, self._key)
        if document.deployment != self._deployment:
            raise ContractError("deployment", document.deployment, self._deployment)
        if document.version < self.version:
            raise ContractError("version", document.version, f"above {self.version}: versions only rise")
        if document.version == self.version:
            if document.digest == self._digest:
                return None
            raise ContractError("version", document.version, "a new number for a changed document")
        return document

    def _connected(self) -> ParameterStore:
        if self._mirror is None:
            mirror = ParameterMirror.open(self._ring)
            if not mirror.claim():
                mirror.close()
                raise TransportError(f"{mirror.segment.path}: another sidecar writes this mirror")
            self._mirror = mirror
            self._adopt(mirror)
        if self._store is None:
            self._store = self._open_store()
        return self._store

    def _adopt(self, mirror: ParameterMirror) -> None:
        """Go on from the document that a sidecar before this one mirrored."""
        found = mirror.read()
        if found is None:
            return
        with contextlib.suppress(ContractError):
            document = decode_document(found.payload, self._key)
            if document.deployment == self._deployment:
                self._payload, self.version = found.payload, document.version
                self._digest = document.digest

    def _fail(self, error: Exception) -> None:
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(self._failures, 16))
        self._failures += 1
        self.counters.failures += 1
        self._retry_at = self._clock.monotonic() + pause * self._jitter.uniform(0.5, 1.0)
        self._read_at = float("-inf")  # hints may have been missed: read at once when it is back
        if str(error) != self.last_error or self._failures == 1:
            known = isinstance(error, TransportError)
            log.warning(
                "store_unavailable failures=%d reason=%r", self._failures, str(error), exc_info=not known
            )
        self.last_error = str(error)

    def close(self) -> None:
        """Let go of mirror and store."""
        if self._mirror is not None:
            self._mirror.close()
            self._mirror = None
        if self._store is not None:
            with contextlib.suppress(TransportError):
                self._store.close()
            self._store = None


def _claimed_version(payload: bytes | None) -> int:
    """Version that a document claims, 0 when it cannot be read."""
    if payload is None:
        return 0
    try:
        version = json.loads(payload)["version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return 0
    return version if isinstance(version, int) and 0 <= version < 2**32 else 0
