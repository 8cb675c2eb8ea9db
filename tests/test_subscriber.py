"""The loop from store to mirror: versions only rise, bad documents change nothing, reports go back."""

import random
import threading

import pytest

from serving_adapter.clock import ManualClock
from serving_adapter.contract import ParameterDocument, encode_document, seal
from serving_adapter.mirror import EngineReport, ParameterMirror
from serving_adapter.ports import TransportError
from serving_adapter.subscriber import Subscriber
from tests.rings import a_ring, a_ring_name, wait_until

KEY = b"key"


class Store:
    """Holds one document; hints and fails as told."""

    def __init__(self, clock=None):
        self.clock = clock
        self.payload = None
        self.hints = 0
        self.down = False
        self.read_count = 0
        self.reported = []
        self.closed = False

    def _reach(self):
        if self.down:
            raise TransportError("no Redis")

    def read(self, deployment):
        self._reach()
        self.read_count += 1
        return self.payload

    def candidate(self, deployment):
        return None

    def wait_for_change(self, deployment, timeout):
        self._reach()
        if self.hints:
            self.hints -= 1
            return True
        if self.clock is not None:
            self.clock.advance(timeout)
        return False

    def report(self, deployment, report, expire_seconds):
        self._reach()
        self.reported.append((deployment, report, expire_seconds))

    def close(self):
        self.closed = True


@pytest.fixture
def ring():
    with a_ring_name() as name:
        yield name


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def store(clock):
    return Store(clock)


@pytest.fixture
def subscriber(ring, store, clock):
    subscriber = a_subscriber(ring, store, clock)
    yield subscriber
    subscriber.close()


def a_subscriber(ring, store, clock, **options):
    return Subscriber(ring, lambda: store, "chat", "pod-1", clock=clock, jitter=random.Random(1), **options)


def payload(version, key=None, **fields):
    body = {
        "deployment": "chat",
        "fingerprint": "f",
        "version": version,
        "gamma": 2,
        "form": "temperature",
        "temperatures": [1.5, 1.0],
        "offsets": [0.0, 0.0],
        "created_at": "2026-01-01T00:00:00Z",
    }
    return encode_document(seal(ParameterDocument(**body | fields), key))


def mirrored(ring):
    mirror = ParameterMirror.open(ring)
    found = mirror.read()
    mirror.close()
    return found


def test_the_document_is_read_on_start(ring, store, subscriber):
    store.payload = payload(3)
    assert subscriber.step()
    assert (mirrored(ring).version, mirrored(ring).payload) == (3, payload(3))
    assert subscriber.version == 3


def test_an_empty_store_leaves_the_mirror_empty(ring, store, subscriber):
    assert subscriber.step()
    assert mirrored(ring) is None


def test_a_hint_has_the_document_read_at_once(ring, store, subscriber):
    subscriber.step()
    store.payload, store.hints = payload(1), 1
    subscriber.step()
    assert mirrored(ring).version == 1


def test_a_missed_hint_costs_one_period_of_the_timer(ring, store, clock, subscriber):
    subscriber.step()
    store.payload = payload(1)
    start = clock.monotonic()
    while mirrored(ring) is None:
        assert subscriber.step()
    assert clock.monotonic() - start <= 5.5


def test_the_key_is_read_again_when_the_store_is_back(ring, store, clock, subscriber):
    subscriber.step()
    store.down = True
    assert not subscriber.step()
    assert subscriber.last_error == "no Redis"
    store.payload, store.down = payload(1), False
    reads = store.read_count
    clock.advance(0.2)
    assert subscriber.step()
    assert store.read_count == reads + 1
    assert mirrored(ring).version == 1


def test_pauses_between_failures_grow(store, clock, subscriber):
    store.down, tries = True, []
    for _ in range(600):
        before = subscriber.counters.failures
        subscriber.step()
        if subscriber.counters.failures > before:
            tries.append(clock.monotonic())
        clock.advance(0.05)
    assert tries[1] - tries[0] <= 0.15
    assert 2.5 <= tries[-1] - tries[-2] <= 5.05


@pytest.mark.parametrize("older", [1, 2])
def test_versions_only_rise(ring, store, subscriber, older):
    store.payload = payload(2)
    subscriber.step()
    store.payload, store.hints = payload(older, temperatures=[9.0, 9.0]), 1
    subscriber.step()
    assert mirrored(ring).payload == payload(2)
    assert subscriber.refusal[0] == older
    assert subscriber.refusal[1].startswith("version")
    store.payload, store.hints = payload(3), 1
    subscriber.step()
    assert mirrored(ring).version == 3
    assert subscriber.refusal == (0, "")


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (payload(2).replace(b"1.5", b"1.6"), "digest"),
        (payload(2, deployment="code"), "deployment"),
        (b"\xff{", "document"),
        (b"", "document"),
        (b"[1]", "document"),
        (b"x" * 300_000, "document"),
    ],
)
def test_a_bad_document_is_refused_once_with_its_reason_and_the_old_one_stays(
    ring, store, clock, subscriber, bad, reason
):
    store.payload = payload(1)
    subscriber.step()
    store.payload = bad
    for _ in range(60):
        subscriber.step()
    assert mirrored(ring).version == 1
    assert subscriber.refusal[1].startswith(reason)
    assert subscriber.counters.refused == 1


def test_with_a_key_unsigned_and_wrongly_signed_documents_are_refused(ring, store, clock):
    subscriber = a_subscriber(ring, store, clock, key=KEY)
    for document, reason in ((payload(1), "signature"), (payload(2, b"other"), "signature")):
        store.payload, store.hints = document, 1
        subscriber.step()
        assert mirrored(ring) is None
        assert subscriber.refusal[1].startswith(reason)
    store.payload, store.hints = payload(3, KEY), 1
    subscriber.step()
    assert mirrored(ring).version == 3


def test_a_restarted_sidecar_goes_on_from_the_mirror(ring, store, clock):
    first = a_subscriber(ring, store, clock)
    store.payload = payload(5)
    first.step()
    sequence = ParameterMirror.open(ring).sequence
    first.close()
    second = a_subscriber(ring, store, clock)
    second.step()
    assert (second.version, second.counters.mirrored) == (5, 0)
    assert ParameterMirror.open(ring).sequence == sequence
    store.payload, store.hints = payload(4), 1
    second.step()
    assert mirrored(ring).version == 5


def test_a_store_that_was_emptied_takes_nothing_away(ring, store, subscriber):
    store.payload = payload(5)
    subscriber.step()
    store.payload, store.hints = None, 1
    subscriber.step()
    assert mirrored(ring).version == 5


def test_one_sidecar_writes_a_mirror(ring, store, clock, subscriber):
    subscriber.step()
    second = a_subscriber(ring, store, clock)
    assert not second.step()
    assert "another sidecar" in second.last_error
    subscriber.close()
    clock.advance(1)
    assert second.step()


def test_the_engines_report_goes_to_the_store_when_it_changes_and_again_in_time(
    ring, store, clock, subscriber
):
    subscriber.step()
    assert store.reported == []
    engine = ParameterMirror.open(ring)
    engine.write_report(EngineReport(applied=1, forms=("temperature", "affine"), fingerprint="f"))
    subscriber.step()
    ((deployment, report, expire),) = store.reported
    assert (deployment, expire) == ("chat", 60.0)
    assert (report.replica, report.applied, report.refused, report.reason) == ("pod-1", 1, 0, "")
    assert (report.forms, report.fingerprint) == (("temperature", "affine"), "f")
    subscriber.step()
    assert len(store.reported) == 1
    engine.write_report(EngineReport(applied=2))
    subscriber.step()
    assert store.reported[1][1].applied == 2
    while clock.monotonic() < 20:
        subscriber.step()
    assert 3 <= len(store.reported) <= 4
    assert store.reported[-1][1].reported_at > report.reported_at


def test_the_report_of_an_engine_that_has_ended_is_not_repeated(ring, store, clock, caplog):
    subscriber = a_subscriber(ring, store, clock, report_seconds=10.0)
    boot = a_ring(ring)
    ParameterMirror.open(ring).write_report(EngineReport(applied=1))
    subscriber.step()
    clock.advance(11.0)
    subscriber.step()
    assert len(store.reported) == 2
    boot.close()
    for _ in range(3):
        clock.advance(11.0)
        subscriber.step()
    assert len(store.reported) == 2
    assert [r.getMessage().split()[0] for r in caplog.records].count("engine_gone") == 1
    again = a_ring(ring)
    subscriber.step()
    assert len(store.reported) == 3
    again.close()
    subscriber.close()


def test_a_refusal_of_the_engine_is_reported(ring, store, subscriber):
    ParameterMirror.open(ring).write_report(EngineReport(applied=1, refused=2, reason="gamma"))
    subscriber.step()
    report = store.reported[0][1]
    assert (report.applied, report.refused, report.reason) == (1, 2, "gamma")


def test_a_refusal_of_the_sidecar_is_reported_for_the_engine(ring, store, subscriber):
    ParameterMirror.open(ring).write_report(EngineReport(applied=1))
    store.payload = payload(2).replace(b"1.5", b"1.6")
    subscriber.step()
    report = store.reported[-1][1]
    assert (report.applied, report.refused) == (1, 2)
    assert report.reason.startswith("digest")


def test_an_unexpected_error_does_not_end_the_loop(ring, store, clock, subscriber):
    store.read = lambda deployment: 1 / 0
    assert not subscriber.step()
    del store.read
    store.payload = payload(1)
    clock.advance(1)
    assert subscriber.step()
    assert mirrored(ring).version == 1


def test_the_loop_runs_until_it_is_stopped(ring):
    store = Store()
    store.payload = payload(1)
    subscriber = Subscriber(ring, lambda: store, "chat", "pod-1")
    thread = threading.Thread(target=subscriber.run)
    thread.start()
    wait_until(lambda: mirrored(ring) is not None)
    subscriber.stop()
    thread.join(60)
    assert not thread.is_alive()
    assert store.closed
