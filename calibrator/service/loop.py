"""The calibrator's loop: keep the stores in step, look at every deployment, delete what is too old.

Refreshing is not done here but by runs (:mod:`calibrator.service.jobs`); every service runs this loop.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from calibrator.service.publisher import Publisher
from calibrator.store import deployments
from calibrator.store.deployments import Deployment
from calibrator.store.errors import StoreError
from calibrator.store.retention import Retention
from calibrator.store.retention import apply as apply_retention
from calibrator.store.store import Store
from serving_adapter.ports import Clock, TransportError

log = logging.getLogger(__name__)

RECONCILE_SECONDS = 2.0
"""How soon a parameter store that came back empty is filled again."""
RETENTION_SECONDS = 3600.0

Step = Callable[[Deployment], object]
"""Something that is done for each deployment in every round; it may raise what stores raise."""


class CalibratorLoop:
    """Runs until told to stop; a store that cannot be reached delays the work and loses nothing.

    Parameters
    ----------
    steps
        What is done for each deployment after the stores have been brought into step: drift, rollouts. One
        that fails keeps neither the others nor other deployments from their turn.
    reconcile_seconds
        Time between two rounds.
    retention
        How long the store keeps what; None deletes nothing.
    """

    def __init__(
        self,
        store: Store,
        publisher: Publisher,
        clock: Clock,
        *,
        steps: Sequence[Step] = (),
        reconcile_seconds: float = RECONCILE_SECONDS,
        retention: Retention | None = None,
    ) -> None:
        self._store = store
        self._publisher = publisher
        self._clock = clock
        self._steps: tuple[Step, ...] = (lambda deployment: publisher.reconcile(deployment.name), *steps)
        self._reconcile_seconds = reconcile_seconds
        self._retention = retention
        self._clean_at = clock.monotonic()
        self.failures = 0

    def run(self, stop: threading.Event) -> None:
        """Work until ``stop`` is set; what has begun is finished first."""
        while not stop.is_set():
            self.tick()
            stop.wait(self._reconcile_seconds)

    def tick(self) -> None:
        """Do one round."""
        try:
            with self._store.read() as connection:
                known = deployments.every(connection)
        except StoreError as error:
            self._failed("store", error)
            return
        for deployment in known:
            for step in self._steps:
                try:
                    step(deployment)
                except (StoreError, TransportError) as error:
                    self._failed(deployment.name, error)
                except Exception:
                    # Our mistake in one step: the others, and the other deployments, still have their turn.
                    self.failures += 1
                    log.exception("calibrator_step_failed deployment=%s", deployment.name)
        self._clean()

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
