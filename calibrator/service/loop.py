"""The calibrator's loop: keep the stores in step, refresh every deployment on its interval."""

from __future__ import annotations

import logging
import threading

from calibrator.service.publisher import Publisher
from calibrator.service.refresh import Refresher, RefreshOutcome
from calibrator.store import deployments
from calibrator.store.errors import StoreError
from calibrator.store.retention import Retention
from calibrator.store.retention import apply as apply_retention
from calibrator.store.store import Store
from serving_adapter.ports import Clock, TransportError

log = logging.getLogger(__name__)

RECONCILE_SECONDS = 2.0
"""How soon a parameter store that came back empty is filled again."""
RETENTION_SECONDS = 3600.0


class CalibratorLoop:
    """Runs until told to stop; a store that cannot be reached delays the work and loses nothing.

    Parameters
    ----------
    refresh_seconds
        Time between two refreshes of a deployment.
    reconcile_seconds
        Time between two looks at the parameter store.
    retention
        How long the store keeps what; None deletes nothing.
    """

    def __init__(
        self,
        store: Store,
        publisher: Publisher,
        refresher: Refresher,
        clock: Clock,
        *,
        refresh_seconds: float = 300.0,
        reconcile_seconds: float = RECONCILE_SECONDS,
        retention: Retention | None = None,
    ) -> None:
        self._store = store
        self._publisher = publisher
        self._refresher = refresher
        self._clock = clock
        self._refresh_seconds = refresh_seconds
        self._reconcile_seconds = reconcile_seconds
        self._retention = retention
        self._due: dict[str, float] = {}
        self._clean_at = clock.monotonic()
        self.refreshes = 0
        self.failures = 0

    def run(self, stop: threading.Event) -> None:
        """Work until ``stop`` is set; what has begun is finished first."""
        while not stop.is_set():
            self.tick()
            stop.wait(self._reconcile_seconds)

    def tick(self) -> list[RefreshOutcome]:
        """Reconcile every deployment and refresh the ones that are due."""
        outcomes: list[RefreshOutcome] = []
        try:
            with self._store.read() as connection:
                names = [d.name for d in deployments.every(connection)]
        except StoreError as error:
            self._failed("store", error)
            return outcomes
        for name in names:
            now = self._clock.monotonic()
            # A deployment seen for the first time gathers rows for one interval before it is refreshed.
            due = self._due.setdefault(name, now + self._refresh_seconds)
            try:
                self._publisher.reconcile(name)
                if now >= due:
                    self._due[name] = now + self._refresh_seconds
                    outcomes.append(self._refresher.refresh(name))
                    self.refreshes += 1
            except (StoreError, TransportError) as error:
                self._failed(name, error)
        self._clean()
        return outcomes

    def _clean(self) -> None:
        """Delete what is too old, once an hour; two services that do it at once delete the same rows."""
        now = self._clock.monotonic()
        if self._retention is None or now < self._clean_at:
            return
        self._clean_at = now + RETENTION_SECONDS
        try:
            deleted = apply_retention(self._store, self._clock.now(), self._retention)
        except StoreError as error:
            self._failed("retention", error)
            return
        if any(deleted.values()):
            log.info("retention_done %s", " ".join(f"{name}={rows}" for name, rows in deleted.items()))

    def _failed(self, what: str, error: Exception) -> None:
        self.failures += 1
        log.warning("calibrator_waits for=%s reason=%r", what, str(error))
