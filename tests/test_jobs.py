"""Runs: once per tick with any number of services, never two of a deployment, taken over after a crash."""

import threading
import time
from collections import Counter

import pytest

from calibrator.service.jobs import JobRunner, Result
from calibrator.service.refresh import Hold
from calibrator.store import Store, retention, run_leases, runs, schedules
from calibrator.store.errors import LeaseLostError, StaleReadError, StoreUnavailableError
from calibrator.store.runs import Run
from calibrator.store.schedules import Schedule
from serving_adapter.ports import TransportError
from tests.jobs_support import INTERVAL, LEASE, KilledError, Office, at_once, succeed
from tests.store_fixtures import store, store_url  # noqa: F401  fixtures


@pytest.fixture
def office(store: Store) -> Office:  # noqa: F811
    return Office(store)


def set_schedule(office: Office, deployment: int, schedule: Schedule) -> None:
    with office.store.write() as connection:
        revision = schedules.get(connection, deployment).revision
        schedules.put(connection, deployment, schedule, revision=revision)


def until(condition) -> None:
    deadline = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < deadline, "waited for a minute"
        time.sleep(0.01)


def test_three_services_at_once_run_every_tick_once(office: Office) -> None:
    names = [office.deployment(name) for name in ("a", "b")]
    services = [office.runner() for _ in range(3)]
    for _ in range(8):
        office.clock.advance(INTERVAL)
        at_once(*(service.run_pending for service in services))
    # Whoever was turned away by another of the same deployment looks again at its next poll.
    services[0].run_pending()
    rows = office.rows()
    assert Counter((row.deployment_id, row.tick) for row in rows) == {
        (name, (1_700_000_040 + 60 * step) * 1000): 1 for name in names for step in range(1, 9)
    }
    assert all((row.state, row.attempt, row.trigger) == ("done", 1, "schedule") for row in rows)
    assert sorted(run.id for run in office.worked) == sorted(row.id for row in rows)


def test_a_tick_is_run_once_however_often_it_is_looked_at(office: Office) -> None:
    office.deployment()
    service = office.runner()
    assert service.add_due_ticks() == 1
    assert service.run_pending() == 1
    with office.store.write() as connection:
        tick = office.rows()[0].tick
        assert tick is not None
        assert not runs.add_tick(connection, office.rows()[0].deployment_id, tick, office.clock.now())
    office.clock.advance(INTERVAL / 2)
    assert service.run_pending() == 0
    assert office.runner().run_pending() == 0


def test_a_service_that_was_down_for_an_hour_runs_once(office: Office) -> None:
    office.deployment()
    office.runner().run_pending()
    office.clock.advance(3600.0 + 1.0)
    assert office.runner().run_pending() == 1
    assert [row.tick for row in office.rows()] == [1_700_000_040_000, 1_700_003_640_000]


def test_a_tick_during_a_run_waits_and_later_ones_take_its_place(office: Office) -> None:
    deployment = office.deployment()
    other = office.runner()

    def slowly(run: Run, hold: Hold) -> Result:
        for _ in range(3):
            office.clock.advance(INTERVAL / 20)
            other.add_due_ticks()
            assert not other.run_next(deployment), "a second run of the deployment"
        office.clock.advance(INTERVAL)
        return succeed(run, hold)

    first = office.runner(slowly, lease=10_000.0)
    assert first.run_next()
    office.clock.advance(INTERVAL)
    other.add_due_ticks()
    assert [(row.state, row.tick) for row in office.rows()][1:] == [("waiting", 1_700_000_160_000)]
    assert other.run_pending() == 1


def test_the_rows_tell_what_came_of_a_run(office: Office) -> None:
    office.deployment()

    def work(run: Run, hold: Hold) -> Result:
        office.clock.advance(2.5)
        with office.store.write() as connection:
            hold(connection, 12)
        return Result("published", ("better", "much"), 5000, 3)

    service = office.runner(work)
    service.run_pending()
    (row,) = office.rows()
    assert (row.kind, row.trigger, row.dry_run, row.state) == ("recalibrate", "schedule", False, "done")
    assert (row.outcome, row.reasons, row.rows_used, row.version, row.refresh_id) == (
        "published", ["better", "much"], 5000, 3, 12,
    )  # fmt: skip
    assert row.started_at is not None
    assert row.finished_at == row.started_at + 2.5
    assert row.holder == service.holder
    assert row.finished


def test_a_request_is_worked_off_by_any_service_and_asking_twice_is_one_run(office: Office) -> None:
    deployment = office.deployment()
    set_schedule(office, deployment, Schedule(paused=True))
    first = office.request(deployment)
    assert office.request(deployment).id == first.id
    assert office.request(deployment, dry_run=True).id != first.id
    alarm = office.request(deployment, trigger=runs.ALARM)
    assert alarm.id != first.id
    services = [office.runner() for _ in range(3)]
    at_once(*(service.run_pending for service in services))
    services[0].run_pending()
    assert [(row.trigger, row.dry_run, row.state) for row in office.rows()] == [
        ("manual", False, "done"), ("manual", True, "done"), ("alarm", False, "done"),
    ]  # fmt: skip
    assert len(office.worked) == 3
    assert office.request(deployment).id > alarm.id


def test_requests_at_the_same_moment_are_one_run(office: Office) -> None:
    deployment = office.deployment()
    at_once(*(lambda: office.request(deployment) for _ in range(4)))
    assert len(office.rows()) == 1


def test_a_crashed_run_is_taken_over_once_and_not_before_its_lease_ends(office: Office) -> None:
    office.deployment()

    def die(run: Run, hold: Hold) -> Result:
        raise KilledError

    with pytest.raises(KilledError):
        office.runner(die).run_pending()
    (row,) = office.rows()
    assert (row.state, row.attempt) == ("running", 1)
    services = [office.runner() for _ in range(3)]
    office.clock.advance(LEASE - 1.0)
    assert sum(service.run_pending() for service in services) == 0
    office.clock.advance(2.0)
    at_once(*(service.run_pending for service in services))
    (row,) = office.rows()
    assert (row.state, row.attempt) == ("done", 2)
    assert len(office.worked) == 2


def test_a_service_that_died_before_it_took_what_it_had_queued_leaves_it_to_others(office: Office) -> None:
    office.deployment()
    assert office.runner().add_due_ticks() == 1
    assert office.runner().run_pending() == 1


def test_a_run_that_ends_its_services_is_given_up_and_the_next_tick_runs(
    office: Office,
) -> None:
    office.deployment()

    def die(run: Run, hold: Hold) -> Result:
        raise KilledError

    for _ in range(run_leases.MAX_ATTEMPTS):
        with pytest.raises(KilledError):
            office.runner(die).run_next()
        office.clock.advance(LEASE + 1.0)
    assert office.runner().run_pending() == 1
    given_up, next_one = office.rows()
    assert (given_up.state, given_up.attempt) == ("abandoned", 3)
    assert "given up: 3 services" in given_up.reasons[0]
    assert given_up.finished_at is not None
    assert (next_one.state, next_one.attempt) == ("done", 1)


def test_a_service_that_was_only_slow_writes_nothing_after_it_was_taken_over(office: Office) -> None:
    office.deployment()
    fenced = []

    def stall(run: Run, hold: Hold) -> Result:
        office.clock.advance(LEASE + 1.0)
        office._busy.clear()  # the two overlap in time, which is the point: only one of them may write
        assert office.runner().run_next(run.deployment_id)
        with pytest.raises(LeaseLostError), office.store.write() as connection:
            hold(connection, 1)
        fenced.append(run)
        return Result("published", version=1)

    service = office.runner(stall)
    service.run_next()
    assert fenced
    (row,) = office.rows()
    assert (row.state, row.outcome, row.version, row.attempt) == ("done", "unchanged", None, 2)
    assert service.finished == 0


def test_a_lease_is_renewed_while_the_work_goes_on(office: Office) -> None:
    office.deployment()
    held = []

    def work(run: Run, hold: Hold) -> Result:
        office.clock.advance(0.2)
        until(lambda: (office.rows()[0].acquired_until or 0.0) >= office.clock.now() + 0.3)
        held.append(run)
        return succeed(run, hold)

    office.runner(work, lease=0.3).run_next()
    assert held
    assert office.rows()[0].attempt == 1


def test_a_stop_finishes_what_has_begun(office: Office) -> None:
    office.deployment()
    begun, go_on = threading.Event(), threading.Event()

    def work(run: Run, hold: Hold) -> Result:
        begun.set()
        go_on.wait(60.0)
        return succeed(run, hold)

    service = office.runner(work, poll=0.01)
    service.start()
    assert begun.wait(60.0)
    stopping = threading.Thread(target=service.stop, args=(60.0,))
    stopping.start()
    go_on.set()
    stopping.join()
    assert [row.state for row in office.rows()] == ["done"]


def test_a_stop_gives_back_what_takes_too_long(office: Office) -> None:
    office.deployment()
    begun, go_on = threading.Event(), threading.Event()

    def work(run: Run, hold: Hold) -> Result:
        begun.set()
        go_on.wait(60.0)
        return Result("published", version=1)

    service = office.runner(work, poll=0.01)
    service.start()
    assert begun.wait(60.0)
    service.stop(timeout=0.0)
    office._busy.clear()
    # At once, not when the lease would have ended, and it does not count as a crash.
    assert office.runner().run_next()
    go_on.set()
    for thread in service._threads:
        thread.join(60.0)
    (row,) = office.rows()
    assert (row.state, row.outcome, row.attempt) == ("done", "unchanged", 1)


@pytest.mark.parametrize("error", [TransportError("no route"), ZeroDivisionError("by zero")])
def test_a_run_that_fails_says_why_and_others_go_on(office: Office, error: Exception) -> None:
    failing = office.deployment("a")
    office.deployment("b")

    def work(run: Run, hold: Hold) -> Result:
        if run.deployment_id == failing:
            raise error
        return succeed(run, hold)

    assert office.runner(work).run_pending() == 2
    first, second = office.rows()
    assert (first.state, first.outcome) == ("failed", "error")
    assert str(error) in first.reasons[0]
    assert second.state == "done"


def test_a_service_that_loses_the_database_midway_is_taken_over(office: Office) -> None:
    office.deployment()

    def work(run: Run, hold: Hold) -> Result:
        raise StoreUnavailableError("server closed the connection")

    service = office.runner(work)
    assert service.run_next()
    assert [row.state for row in office.rows()] == ["running"]
    office.clock.advance(LEASE + 1.0)
    assert office.runner().run_next()
    assert [(row.state, row.attempt) for row in office.rows()] == [("done", 2)]


def test_a_schedule_of_its_own_wins_over_the_default(office: Office) -> None:
    hourly, nightly, paused = (office.deployment(name) for name in ("hourly", "nightly", "paused"))
    set_schedule(office, hourly, Schedule(interval_seconds=3600.0))
    set_schedule(office, nightly, Schedule(cron="0 3 * * *"))
    set_schedule(office, paused, Schedule(paused=True))
    service = office.runner()
    service.run_pending()
    for _ in range(4):
        office.clock.advance(900.0)
        service.run_pending()
    ticks = {row.deployment_id: 0 for row in office.rows()}
    counts = Counter(row.deployment_id for row in office.rows())
    assert set(ticks) == {hourly, nightly}
    assert counts == {hourly: 2, nightly: 1}


def test_a_schedule_that_goes_on_makes_up_for_nothing(office: Office) -> None:
    deployment = office.deployment()
    set_schedule(office, deployment, Schedule(paused=True))
    office.clock.advance(3600.0 + 10.0)
    set_schedule(office, deployment, Schedule(since=office.clock.now()))
    service = office.runner()
    assert service.run_pending() == 0
    office.clock.advance(INTERVAL)
    assert service.run_pending() == 1


def test_a_schedule_is_changed_by_whoever_has_seen_the_latest(office: Office) -> None:
    deployment = office.deployment()
    with office.store.write() as connection:
        assert schedules.get(connection, deployment) == Schedule()
        first = schedules.put(connection, deployment, Schedule(interval_seconds=5.0), revision=0)
        assert first == Schedule(interval_seconds=5.0, revision=1)
        second = schedules.put(connection, deployment, Schedule(cron="0 3 * * *", since=9.0), revision=1)
        assert second == Schedule(cron="0 3 * * *", since=9.0, revision=2)
    for stale in (0, 1):
        with pytest.raises(StaleReadError), office.store.write() as connection:
            schedules.put(connection, deployment, Schedule(), revision=stale)


def test_an_expression_that_cannot_be_used_stops_nobody_else(office: Office) -> None:
    broken = office.deployment("a")
    office.deployment("b")
    set_schedule(office, broken, Schedule(cron="not a cron"))
    assert office.runner().run_pending() == 1


def test_the_history_is_read_newest_first_a_page_at_a_time(office: Office) -> None:
    deployment = office.deployment()
    service = office.runner()
    for _ in range(5):
        service.run_pending()
        office.clock.advance(INTERVAL)
    ids = [row.id for row in office.rows()]
    with office.store.read() as connection:
        page = runs.recent(connection, deployment_id=deployment, limit=2)
        rest = runs.recent(connection, deployment_id=deployment, before=page[-1].id)
        assert [row.id for row in (*page, *rest)] == ids[::-1]
        assert runs.recent(connection, state="failed") == []
        assert runs.latest(connection, [deployment]) == {deployment: page[0]}
        assert runs.get(connection, ids[0]) == rest[-1]
        assert runs.get(connection, 10**9) is None


def test_retention_keeps_what_says_that_a_tick_was_run(office: Office) -> None:
    deployment = office.deployment()
    service = office.runner()
    for _ in range(3):
        service.run_pending()
        office.clock.advance(INTERVAL)
    office.request(deployment)
    set_schedule(office, deployment, Schedule(paused=True))
    service.run_pending()
    waiting = office.request(deployment)
    latest = max(row.tick or 0 for row in office.rows())
    deleted = retention.apply(office.store, office.clock.now() + 101 * retention.DAY)
    assert deleted["runs"] == 3
    assert [(row.tick, row.state) for row in office.rows()] == [(latest, "done"), (None, waiting.state)]


def test_time_is_the_databases_unless_a_test_says_otherwise(office: Office) -> None:
    office.deployment()
    worked = []

    def work(run: Run, hold: Hold) -> Result:
        worked.append(run)
        return succeed(run, hold)

    services = [JobRunner(office.store, work, default_seconds=86_400.0) for _ in range(2)]
    at_once(*(service.run_pending for service in services))
    ticks = {run.tick for run in worked}
    assert len(ticks) == len(worked) >= 1
    assert all(tick is not None and tick % 86_400_000 == 0 for tick in ticks)
    assert abs(office.rows()[0].created_at - time.time()) < 3600.0
