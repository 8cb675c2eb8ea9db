"""Runners with a clock that is set by hand, and work that does what a test wants."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from calibrator.service.jobs import JobRunner, Result
from calibrator.service.refresh import Hold
from calibrator.store import Store, deployments, runs
from calibrator.store.runs import Run
from serving_adapter.clock import ManualClock

LEASE = 20.0
INTERVAL = 60.0


class KilledError(BaseException):
    """The service ends here, as by SIGKILL: nothing of it goes on."""


def succeed(run: Run, hold: Hold) -> Result:
    """Do nothing, well."""
    return Result("unchanged", ("no gain",), 1000)


@dataclass
class Office:
    """One database, one clock, and what the runners on it have worked on."""

    store: Store
    clock: ManualClock = field(default_factory=lambda: ManualClock(1_700_000_040.0))
    worked: list[Run] = field(default_factory=list)
    _guard: threading.Lock = field(default_factory=threading.Lock)
    _busy: set[int] = field(default_factory=set)

    def deployment(self, name: str = "chat") -> int:
        """Make a deployment that has gathered rows for long."""
        with self.store.write() as connection:
            return deployments.register(connection, name, 7, "f", 0.0).id

    def runner(
        self, work: Callable[[Run, Hold], Result] = succeed, *, lease: float = LEASE, poll: float = 1.0
    ) -> JobRunner:
        """One more service."""

        def noted(run: Run, hold: Hold) -> Result:
            with self._guard:
                self.worked.append(run)
                assert run.deployment_id not in self._busy, "two runs of one deployment at once"
                self._busy.add(run.deployment_id)
            try:
                return work(run, hold)
            finally:
                with self._guard:
                    self._busy.discard(run.deployment_id)

        return JobRunner(
            self.store,
            noted,
            default_seconds=INTERVAL,
            lease_seconds=lease,
            poll_seconds=poll,
            now=lambda _: self.clock.now(),
        )

    def rows(self) -> list[Run]:
        """All runs, oldest first."""
        with self.store.read() as connection:
            return runs.recent(connection, limit=10_000)[::-1]

    def request(self, deployment_id: int, *, dry_run: bool = False, trigger: str = runs.MANUAL) -> Run:
        """Ask for a run."""
        with self.store.write() as connection:
            return runs.request_run(connection, deployment_id, trigger, dry_run, now=self.clock.now())


def at_once(*calls: Callable[[], object]) -> None:
    """Make these calls at the same moment and wait for all of them; what one raises is raised."""
    barrier = threading.Barrier(len(calls))
    errors: list[BaseException] = []

    def go(call: Callable[[], object]) -> None:
        barrier.wait()
        try:
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=go, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        raise error
