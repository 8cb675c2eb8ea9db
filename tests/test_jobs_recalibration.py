"""A run of a real refresh: dry or not, and killed between any two of its steps."""

import pytest
import redis

from calibrator.core.candidate import ProposalOptions
from calibrator.service.jobs import JobRunner, Recalibration, Result
from calibrator.service.publisher import Publisher
from calibrator.service.refresh import Hold, Refresher
from calibrator.store import Store, deployments, parameters, refreshes, runs
from calibrator.store.runs import Run
from serving_adapter.clock import ManualClock
from serving_adapter.contract import ParameterDocument
from serving_adapter.parameter_stores.embedded import EmbeddedParameterStore
from serving_adapter.ports import TransportError
from tests.jobs_support import LEASE, KilledError
from tests.recorded import recorded
from tests.refresh_fixtures import parameter_server  # noqa: F401  fixture
from tests.refresh_support import Place
from tests.store_fixtures import store, store_url  # noqa: F401  fixtures

DAY = 86_400.0


@pytest.fixture
def place(store: Store, parameter_server: EmbeddedParameterStore) -> Place:  # noqa: F811
    redis.Redis.from_url(parameter_server.url).flushall()
    clock = ManualClock()
    publisher = Publisher(store, parameter_server, clock)
    refresher = Refresher(store, parameter_server, publisher, clock, ProposalOptions(resamples=50))
    made = Place(store, parameter_server, publisher, refresher, clock)
    made.ingest(recorded("typical").take(slice(0, 4000)))
    made.report()
    return made


def service(place: Place, refresher: Refresher | None = None, work=None) -> JobRunner:
    """A runner whose only runs are those that are asked for."""
    return JobRunner(
        place.store,
        work or Recalibration(place.store, refresher or place.refresher),
        default_seconds=400 * DAY,
        lease_seconds=LEASE,
        now=lambda _: place.clock.now(),
    )


def request(place: Place, *, dry_run: bool = False) -> Run:
    with place.store.write() as connection:
        known = deployments.get(connection, "chat")
        assert known is not None
        return runs.request_run(connection, known.id, runs.MANUAL, dry_run, now=place.clock.now())


def run_of(place: Place, run: Run) -> Run:
    with place.store.read() as connection:
        found = runs.get(connection, run.id)
    assert found is not None
    return found


def versions(place: Place) -> list[int]:
    with place.store.read() as connection:
        known = deployments.get(connection, "chat")
        assert known is not None
        return [version.document.version for version in parameters.history(connection, known.id)]


def test_a_run_publishes_and_tells_version_rows_and_refresh(place: Place) -> None:
    asked = request(place)
    assert service(place).run_pending() == 1
    run = run_of(place, asked)
    assert (run.state, run.outcome, run.version, run.rows_used) == ("done", "published", 1, 4000)
    assert run.reasons
    assert run.refresh_id is not None
    with place.store.read() as connection:
        refresh = refreshes.get(connection, run.refresh_id)
    assert refresh is not None
    assert (refresh.outcome, refresh.version) == ("published", 1)
    assert place.served() == 1


def test_a_dry_run_says_what_it_would_do_with_its_evidence_and_changes_nothing(place: Place) -> None:
    asked = request(place, dry_run=True)
    service(place).run_pending()
    run = run_of(place, asked)
    assert (run.state, run.outcome, run.version, run.rows_used) == ("done", "would_publish", None, 4000)
    assert run.refresh_id is not None
    with place.store.read() as connection:
        refresh = refreshes.get(connection, run.refresh_id)
    assert refresh is not None
    assert (refresh.outcome, refresh.version, refresh.evidence["rows"]) == ("would_publish", None, 4000)
    assert versions(place) == []
    assert place.served() == 0
    # What it promised is what a real run does.
    request(place)
    service(place).run_pending()
    assert versions(place) == [1]
    again = request(place, dry_run=True)
    service(place).run_pending()
    assert run_of(place, again).outcome == "unchanged"


class DyingStore:
    """A parameter store of a service that is killed before or after its n-th publication."""

    def __init__(self, inner: EmbeddedParameterStore, *, before: bool) -> None:
        self._inner = inner
        self._before = before

    def __getattr__(self, name: str):
        return getattr(self._inner, name)

    def publish(self, document: ParameterDocument) -> None:
        if not self._before:
            self._inner.publish(document)
        raise KilledError


def killed(place: Place, moment: str) -> JobRunner:
    """A service that is killed at that moment of its first run."""

    def refresher(parameter_store=None, publisher_class: type[Publisher] = Publisher) -> Refresher:
        served = parameter_store or place.parameter_store
        publisher = publisher_class(place.store, served, place.clock)
        return Refresher(place.store, served, publisher, place.clock, ProposalOptions(resamples=50))

    class BeforeAnything(Publisher):
        def reconcile(self, deployment: str) -> int:
            raise KilledError

    class BeforeWriting(Publisher):
        def seal(self, document: ParameterDocument) -> ParameterDocument:
            raise KilledError

    def before_finishing(run: Run, hold: Hold) -> Result:
        Recalibration(place.store, place.refresher)(run, hold)
        raise KilledError

    match moment:
        case "before the refresh":
            return service(place, refresher(publisher_class=BeforeAnything))
        case "before the version is written":
            return service(place, refresher(publisher_class=BeforeWriting))
        case "before the version is published":
            return service(place, refresher(DyingStore(place.parameter_store, before=True)))
        case "after the version is published":
            return service(place, refresher(DyingStore(place.parameter_store, before=False)))
        case _:
            return service(place, work=before_finishing)


@pytest.mark.parametrize(
    "moment",
    [
        "before the refresh",
        "before the version is written",
        "before the version is published",
        "after the version is published",
        "before the run is finished",
    ],
)
def test_a_run_killed_between_any_two_steps_publishes_once(place: Place, moment: str) -> None:
    asked = request(place)
    with pytest.raises(KilledError):
        killed(place, moment).run_pending()
    assert run_of(place, asked).state == "running"
    assert service(place).run_pending() == 0
    place.clock.advance(LEASE + 1.0)
    # New rows must not make the second attempt publish another version of the same run.
    place.ingest(recorded("hard").take(slice(0, 4000)), boot="b1")
    survivors = [service(place) for _ in range(2)]
    assert sum(survivor.run_pending() for survivor in survivors) == 1
    run = run_of(place, asked)
    assert (run.state, run.outcome, run.version, run.attempt) == ("done", "published", 1, 2)
    assert versions(place) == [1]
    place.publisher.reconcile("chat")  # as the service's loop does every two seconds
    assert place.served() == 1


def test_a_service_that_slept_through_its_lease_publishes_nothing(place: Place) -> None:
    asked = request(place)

    class Sleepy(Publisher):
        def next_version(self, deployment: deployments.Deployment) -> int:
            place.clock.advance(LEASE + 1.0)
            assert service(place).run_next()
            return super().next_version(deployment)  # one more than what the other has published

    publisher = Sleepy(place.store, place.parameter_store, place.clock)
    sleepy = Refresher(
        place.store, place.parameter_store, publisher, place.clock, ProposalOptions(resamples=50)
    )
    late = service(place, sleepy)
    late.run_next()
    assert late.finished == 0
    run = run_of(place, asked)
    assert (run.state, run.version, run.attempt) == ("done", 1, 2)
    assert versions(place) == [1]
    assert place.served() == 1


def test_a_parameter_store_that_is_away_fails_the_run_and_the_next_one_works(place: Place) -> None:
    class Away:
        def read(self, deployment: str) -> bytes | None:
            raise TransportError("connection refused")

    away = Publisher(place.store, Away(), place.clock)  # type: ignore[arg-type]
    refresher = Refresher(
        place.store, place.parameter_store, away, place.clock, ProposalOptions(resamples=50)
    )
    asked = request(place)
    service(place, refresher).run_pending()
    run = run_of(place, asked)
    assert (run.state, run.outcome) == ("failed", "error")
    assert "connection refused" in run.reasons[0]
    asked = request(place)
    service(place).run_pending()
    assert run_of(place, asked).outcome == "published"


def test_a_refresh_that_fails_says_so_with_its_reason(place: Place, monkeypatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr("calibrator.service.refresh.decide", fail)
    with pytest.raises(ZeroDivisionError):
        place.refresher.refresh("chat")
    with place.store.read() as connection:
        (found,) = refreshes.recent(connection, 1)
    assert (found.outcome, found.reasons) == ("failed", ["ZeroDivisionError: by zero"])


def test_a_frozen_deployment_ends_its_runs_at_once(place: Place) -> None:
    with place.store.write() as connection:
        known = deployments.get(connection, "chat")
        assert known is not None
        deployments.set_frozen(connection, known.id, True)
    asked = request(place)
    service(place).run_pending()
    assert (run_of(place, asked).state, run_of(place, asked).outcome) == ("done", "frozen")
