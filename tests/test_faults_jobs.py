"""Three services on one PostgreSQL, a schedule of two seconds, one of them killed and one frozen in a run."""

import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
import redis

from calibrator.core.candidate import ProposalOptions
from calibrator.service.publisher import Publisher
from calibrator.service.refresh import Refresher
from calibrator.store import Store, deployments, parameters, refreshes, runs, schedules
from calibrator.store.leases import database_now
from calibrator.store.runs import Run
from calibrator.store.schedules import Schedule
from serving_adapter.clock import SystemClock
from serving_adapter.parameter_stores.embedded import EmbeddedParameterStore
from tests.recorded import recorded
from tests.refresh_support import Place
from tools.fault_rig.process import RigProcess

pytestmark = [pytest.mark.servers, pytest.mark.faults, pytest.mark.timeout(600)]

INTERVAL = 2.0
SPAN_SECONDS = 40.0
"""From the first tick to the last, as the rows say."""
PATIENCE_SECONDS = 180.0


@dataclass
class Fleet:
    """Services of one database, and the deployment that they recalibrate."""

    store: Store
    deployment: int
    services: list[RigProcess]

    def rows(self) -> list[Run]:
        """All runs, oldest first."""
        with self.store.read() as connection:
            return runs.recent(connection, limit=10_000)[::-1]

    def until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            fallen = [service for service in self.services if service.wanted and not service.running]
            assert not fallen, self.failure(f"while waiting for: {what}: {fallen} ended by themselves")
            assert time.monotonic() < deadline, self.failure(f"waited in vain for: {what}")
            time.sleep(0.02)

    def done(self, more: int) -> None:
        """Wait until so many more runs are done."""
        target = self._done() + more
        self.until(lambda: self._done() >= target, f"{more} more runs are done")

    def caught_in_a_run(
        self, strike: Callable[[RigProcess], None], mend: Callable[[RigProcess], None]
    ) -> Run:
        """Strike the service that is in a run until one is struck in the middle; returns its run."""
        for _ in range(50):
            found: list[Run] = []
            self.until(lambda: found.extend(self._running()) or found, "a run is under way")  # noqa: B023
            holder = next(s for s in self.services if s.running and self._holds(s, found[-1]))
            strike(holder)
            with self.store.read() as connection:
                struck = runs.get(connection, found[-1].id)
            assert struck is not None
            if struck.state == runs.RUNNING and self._holds(holder, struck):
                return struck
            mend(holder)  # it had finished just before
        raise AssertionError(self.failure("no service was struck in the middle of a run"))

    def failure(self, what: str) -> str:
        listed = [f"{r.id} {r.tick} {r.state} {r.attempt} {r.holder} {r.outcome}" for r in self.rows()[-20:]]
        return "\n".join([what, *listed, *(service.log_tail() for service in self.services)])

    def _done(self) -> int:
        return sum(row.state == runs.DONE for row in self.rows())

    def _running(self) -> list[Run]:
        with self.store.read() as connection:
            return runs.recent(connection, state=runs.RUNNING)

    @staticmethod
    def _holds(service: RigProcess, run: Run) -> bool:
        return run.holder is not None and run.holder.split("/")[1] == str(service.pid)


@pytest.fixture
def fleet(
    postgres_url: str,
    valkey: EmbeddedParameterStore,
    tmp_path: Path,
) -> Iterator[Fleet]:
    redis.Redis.from_url(valkey.url).flushall()
    store, clock = Store(postgres_url), SystemClock()
    store.migrate()
    publisher = Publisher(store, valkey, clock)
    refresher = Refresher(store, valkey, publisher, clock, ProposalOptions())
    place = Place(store, valkey, publisher, refresher, clock)  # type: ignore[arg-type]
    place.ingest(recorded("typical").take(slice(0, 1500)))
    with store.write() as connection:
        known = deployments.get(connection, "chat")
        assert known is not None
        wanted = Schedule(interval_seconds=INTERVAL, since=database_now(connection))
        schedules.put(connection, known.id, wanted, revision=0)
    own = {
        "DATABASE_URL": postgres_url,
        "REDIS_URL": valkey.url,
        "LISTEN_PORT": "0",
        "JOB_LEASE_SECONDS": "8",
        "DATABASE_POOL": "4",
    }
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("DSPARK_")}
    environment = {
        **inherited, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
        **{f"DSPARK_{name}": value for name, value in own.items()},
    }  # fmt: skip
    services = [
        RigProcess(f"service-{n}", ["calibrator.cli", "serve"], environment, tmp_path) for n in range(3)
    ]
    for service in services:
        service.start()
    yield Fleet(store, known.id, services)
    for service in services:
        service.kill()
    store.close()


def test_every_tick_is_run_once_by_three_services_of_which_one_is_killed_and_one_frozen(fleet: Fleet) -> None:
    fleet.done(4)

    killed = fleet.caught_in_a_run(RigProcess.kill, RigProcess.start)
    fleet.until(lambda: taken_over(fleet, killed), "the killed service's run is done")
    fleet.done(2)
    for service in fleet.services:
        if not service.running:
            service.start()

    frozen = fleet.caught_in_a_run(RigProcess.freeze, RigProcess.thaw)
    fleet.until(lambda: taken_over(fleet, frozen), "the frozen service's run is done")
    (asleep,) = [s for s in fleet.services if Fleet._holds(s, frozen)]
    asleep.thaw()
    fleet.done(2)

    fleet.until(lambda: span(fleet) >= SPAN_SECONDS, f"ticks over {SPAN_SECONDS} s")
    with fleet.store.write() as connection:
        revision = schedules.get(connection, fleet.deployment).revision
        schedules.put(connection, fleet.deployment, Schedule(paused=True), revision=revision)
    fleet.until(lambda: all(row.finished for row in fleet.rows()), "what has begun is done")
    assert [service.terminate() for service in fleet.services] == [0, 0, 0]

    rows = fleet.rows()
    assert max(Counter(row.tick for row in rows).values()) == 1, fleet.failure("a tick has two runs")
    assert all(row.trigger == runs.SCHEDULE and (row.tick or 1) % (1000 * INTERVAL) == 0 for row in rows)
    assert {row.state for row in rows} == {runs.DONE}, fleet.failure("a run is not done")
    struck = {killed.id, frozen.id}
    # A service that the machine starves may lose a run too: it is taken over all the same.
    assert {row.id for row in rows if row.attempt > 1} >= struck, fleet.failure("attempts")
    for before, after in itertools.pairwise(rows):
        assert before.tick < after.tick  # type: ignore[operator]
        assert before.finished_at <= after.started_at, fleet.failure("two runs at once")  # type: ignore[operator]

    with fleet.store.read() as connection:
        verdicts = {r.id: r.outcome for r in refreshes.recent(connection, fleet.deployment, limit=10_000)}
        versions = [v.document.version for v in parameters.history(connection, fleet.deployment)]
    # One refresh came to a verdict per run; what was begun by the services that were struck is closed.
    judged = [number for number, outcome in verdicts.items() if outcome not in (None, refreshes.ABANDONED)]
    assert sorted(judged) == sorted(row.refresh_id for row in rows if row.refresh_id is not None)
    assert len(judged) == len(rows)
    assert sorted(versions) == sorted(row.version for row in rows if row.version is not None)


def taken_over(fleet: Fleet, struck: Run) -> bool:
    """Whether another service has finished the run of the one that was struck."""
    with fleet.store.read() as connection:
        now = runs.get(connection, struck.id)
    assert now is not None
    return now.state == runs.DONE and now.attempt > struck.attempt and now.holder != struck.holder


def span(fleet: Fleet) -> float:
    """Seconds between the first and the last tick that have a run."""
    ticks = [row.tick for row in fleet.rows() if row.tick is not None]
    return (max(ticks) - min(ticks)) / 1000.0


def test_a_database_that_goes_away_in_a_run_costs_no_tick_two_runs(fleet: Fleet, postgres_url: str) -> None:
    fleet.done(2)
    for _ in range(3):
        fleet.until(lambda: any(row.state == runs.RUNNING for row in fleet.rows()), "a run is under way")
        with psycopg.connect(postgres_url.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        fleet.store.close()  # our own connections were ended too
        fleet.done(2)
    rows = fleet.rows()
    assert max(Counter(row.tick for row in rows).values()) == 1, fleet.failure("a tick has two runs")
    with fleet.store.read() as connection:
        verdicts = {r.id: r.outcome for r in refreshes.recent(connection, fleet.deployment, limit=10_000)}
    judged = [number for number, outcome in verdicts.items() if outcome not in (None, refreshes.ABANDONED)]
    finished = [row.refresh_id for row in rows if row.state == runs.DONE]
    assert len(set(finished)) == len(finished)
    assert set(finished) <= set(judged)
