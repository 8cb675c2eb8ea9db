"""Works off the runs of all deployments; any number of services do so at once, each run is one service's."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable

from sqlalchemy import Connection
from structlog.contextvars import bound_contextvars

from calibrator.service.jobs.cron import CronError
from calibrator.service.jobs.heartbeat import Heartbeat
from calibrator.service.jobs.recalibration import Result, Work
from calibrator.service.jobs.ticks import due_tick
from calibrator.store import deployments, run_leases, runs, schedules
from calibrator.store.errors import DataRefusedError, LeaseLostError, StoreError, StoreUnavailableError
from calibrator.store.leases import database_now
from calibrator.store.runs import Run
from calibrator.store.schedules import Schedule
from calibrator.store.store import Store
from serving_adapter.ports import TransportError

log = logging.getLogger(__name__)

LEASE_SECONDS = 20.0
"""A service that died in a run is taken over after this; one that lives renews it three times meanwhile."""
POLL_SECONDS = 1.0
_MAX_REASON = 500


class JobRunner:
    """Queues the ticks that are due and works off what is queued.

    Parameters
    ----------
    store
        Where schedules and runs are.
    work
        What a run does.
    default_seconds
        Interval of deployments that have no schedule of their own.
    lease_seconds, poll_seconds
        How long a run is held between two signs of life; how often the queue is looked at.
    threads
        Runs at once in this service, each of another deployment.
    now
        Time of ticks and leases; the clock of the database unless a test has another.
    """

    def __init__(
        self,
        store: Store,
        work: Work,
        *,
        default_seconds: float,
        lease_seconds: float = LEASE_SECONDS,
        poll_seconds: float = POLL_SECONDS,
        threads: int = 1,
        now: Callable[[Connection], float] = database_now,
    ) -> None:
        self._store = store
        self._work = work
        self._default_seconds = default_seconds
        self._lease_seconds = lease_seconds
        self._poll_seconds = poll_seconds
        self._count = threads
        self._now = now
        self._holder = f"{socket.gethostname()[:80]}/{os.getpid()}/{uuid.uuid4().hex[:12]}"
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._held: dict[int, Run] = {}
        self.finished = 0
        self.failures = 0

    @property
    def holder(self) -> str:
        """Name of this runner in the rows that it holds."""
        return self._holder

    def start(self) -> None:
        """Work in threads until :meth:`stop`."""
        for number in range(self._count):
            thread = threading.Thread(target=self._loop, name=f"dspark-jobs-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self, timeout: float = 10.0) -> None:
        """Begin nothing more, wait for what has begun, and give back what takes longer than ``timeout`` s.

        What is given back another service takes over at once; here nothing more is written for it.
        """
        self._stop.set()
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        for run in list(self._held.values()):
            with contextlib.suppress(StoreError), self._store.write() as connection:
                if run_leases.give_back(connection, run, self._now(connection)):
                    log.info("run_given_back run=%d", run.id)

    def run_pending(self) -> int:
        """Queue the ticks that are due and work until nothing waits; return how many runs that were.

        Raises
        ------
        StoreError
            The database cannot be reached.
        """
        count = 0
        while not self._stop.is_set() and self.run_next():
            count += 1
        return count

    def run_next(self, deployment_id: int | None = None) -> bool:
        """Queue the ticks that are due and work on one run (of that deployment); False when none waits.

        Raises
        ------
        StoreError
            The database cannot be reached.
        """
        if deployment_id is None:
            self.add_due_ticks()
        run = self._claim(deployment_id)
        if run is None:
            return False
        self._execute(run)
        return True

    def work_until_finished(self, run: Run) -> Run:
        """Work on the runs of that deployment, or wait for those who do, until this one is over; return it.

        Raises
        ------
        StoreError
            The database cannot be reached.
        """
        while not run.finished:
            if not self.run_next(run.deployment_id):
                self._stop.wait(self._poll_seconds)
            with self._store.read() as connection:
                run = runs.get(connection, run.id) or run
        return run

    def add_due_ticks(self) -> int:
        """Queue the latest tick of every deployment that has one and no run for it; return how many.

        Raises
        ------
        StoreError
            The database cannot be reached.
        """
        with self._store.read() as connection:
            now = self._now(connection)
            known = deployments.every(connection)
            given = schedules.every(connection)
            latest = runs.latest_ticks(connection)
        added = 0
        for deployment in known:
            schedule = given.get(deployment.id, Schedule())
            try:
                tick = due_tick(schedule, self._default_seconds, deployment.created_at, now)
            except CronError as error:
                log.warning("schedule_not_usable deployment=%s reason=%r", deployment.name, str(error))
                continue
            if tick is None or round(tick * 1000.0) <= latest.get(deployment.id, -1):
                continue
            with self._store.write() as connection:
                added += runs.add_tick(connection, deployment.id, round(tick * 1000.0), now)
        return added

    def _claim(self, deployment_id: int | None) -> Run | None:
        try:
            with self._store.write() as connection:
                return run_leases.claim(
                    connection, self._holder, self._lease_seconds, self._now(connection), deployment_id
                )
        except DataRefusedError:
            return None  # another service took one of the same deployment at the same moment

    def _execute(self, run: Run) -> None:
        def hold(connection: Connection, refresh_id: int) -> None:
            run_leases.hold(connection, run, refresh_id)

        self._held[run.id] = run
        try:
            with bound_contextvars(run=run.id), Heartbeat(self._store, run, self._lease_seconds, self._now):
                state, result = self._result(run, hold)
                with self._store.write() as connection:
                    run_leases.finish(
                        connection,
                        run,
                        self._now(connection),
                        state,
                        outcome=result.outcome,
                        reasons=result.reasons,
                        rows_used=result.rows_used,
                        version=result.version,
                    )
        except LeaseLostError as error:
            log.warning("run_lost run=%d attempt=%d reason=%r", run.id, run.attempt, str(error))
            return
        except StoreUnavailableError as error:
            # The row still says "running". Its lease will end, and whoever reaches the database takes over.
            self.failures += 1
            log.warning("run_interrupted run=%d attempt=%d reason=%r", run.id, run.attempt, str(error))
            return
        finally:
            self._held.pop(run.id, None)
        self.finished += 1
        told = "run_finished run=%d attempt=%d trigger=%s state=%s outcome=%s"
        values = (run.id, run.attempt, run.trigger, state, result.outcome)
        if state == runs.FAILED:
            log.warning(f"{told} reason=%r", *values, "; ".join(result.reasons))
        else:
            log.info(told, *values)

    def _result(self, run: Run, hold: Callable[[Connection, int], None]) -> tuple[str, Result]:
        log.info(
            "run_begins run=%d attempt=%d trigger=%s dry_run=%s",
            run.id,
            run.attempt,
            run.trigger,
            run.dry_run,
        )
        try:
            return runs.DONE, self._work(run, hold)
        except (LeaseLostError, StoreUnavailableError):
            raise
        except (StoreError, TransportError) as error:
            log.warning("run_failed run=%d reason=%r", run.id, str(error))
            return runs.FAILED, _failure(error)
        except Exception as error:
            # Our mistake in one deployment must not end the runs of the others.
            log.exception("run_failed run=%d", run.id)
            return runs.FAILED, _failure(error)

    def _loop(self) -> None:
        while not self._stop.is_set():
            busy = False
            try:
                busy = self.run_next()
            except StoreError as error:
                self.failures += 1
                log.warning("jobs_wait reason=%r", str(error))
            except Exception:
                self.failures += 1
                log.exception("jobs_wait")
            if not busy:
                self._stop.wait(self._poll_seconds)


def _failure(error: Exception) -> Result:
    return Result("error", (f"{type(error).__name__}: {error}"[:_MAX_REASON],))
