"""One set of statements, true of every parameter store."""

import multiprocessing
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from urllib.parse import quote

import pytest
import redis

from serving_adapter.contract import decode_document
from serving_adapter.parameter_stores.embedded import EmbeddedParameterStore
from serving_adapter.parameter_stores.redis import RedisParameterStore
from serving_adapter.parameter_stores.urls import connect
from serving_adapter.ports import ReplicaReport, TransportError, VersionConflictError
from serving_adapter.settings import mask_url
from tests.parameter_documents import DEADLINE, document, until
from tools.servers import RedisSentinel, RedisServer


@dataclass
class Place:
    """A server of some kind, and how to open a store on it."""

    url: str
    empty: Callable[[], None]
    restart: Callable[[], None]
    password: str = ""
    ca_file: str = ""

    def open(self) -> RedisParameterStore:
        return RedisParameterStore(self.url, self.ca_file)


KINDS = [
    "embedded",
    *(pytest.param(kind, marks=pytest.mark.servers) for kind in ("redis", "sentinel", "cluster", "tls")),
]


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[Place]:
    kind = request.param
    if kind == "embedded":
        embedded = EmbeddedParameterStore()

        def again() -> None:
            embedded.server.stop()
            embedded.server.start()

        yield Place(embedded.url, lambda: _flush(embedded.url), again)
        embedded.close()
        return
    password = "p@ss:w/rd"
    acl = "~dspark:* &dspark:* +@read +@write +@scripting +@pubsub +@connection +time +cluster|slots"
    with RedisServer(
        cluster=kind == "cluster",
        tls=kind == "tls",
        username="calibrator" if kind == "tls" else None,
        password=password if kind in ("tls", "sentinel") else None,
        acl=acl,
    ) as started:

        def empty() -> None:
            with started.client() as client:
                for key in client.scan_iter("*"):
                    client.delete(key)

        address = f"{started.host}:{started.port}"
        if kind == "redis":
            yield Place(started.url, empty, lambda: started.restart() and None)
        elif kind == "cluster":

            def restart() -> None:
                started.restart()

            yield Place(f"redis+cluster://{address}", empty, restart)
        elif kind == "tls":
            url = f"rediss://calibrator:{quote(password, safe='')}@{address}/0"
            yield Place(url, empty, lambda: started.restart() and None, password, str(started.ca_file))
        else:
            with RedisSentinel(started, name="primary") as sentinel:
                url = (
                    f"redis+sentinel://:{quote(password, safe='')}@{sentinel.host}:{sentinel.port}/primary/0"
                )
                yield Place(url, empty, lambda: started.restart() and None, password)


def _flush(url: str) -> None:
    with redis.Redis.from_url(url) as client:
        client.flushall()


@pytest.fixture
def place(server: Place) -> Place:
    server.empty()
    return server


@pytest.fixture
def store(place: Place) -> Iterator[RedisParameterStore]:
    opened = place.open()
    yield opened
    opened.close()


def test_an_empty_store_holds_no_document(store: RedisParameterStore) -> None:
    assert store.read("chat/eu-1") is None


def test_what_was_published_is_read_back_whole(store: RedisParameterStore) -> None:
    store.publish(document(1))
    stored = store.read("chat/eu-1")
    assert stored is not None
    assert decode_document(stored) == document(1)


def test_deployments_do_not_see_each_other(store: RedisParameterStore) -> None:
    store.publish(document(7, "one"))
    store.publish(document(1, "two"))
    assert decode_document(store.read("one") or b"").version == 7
    assert decode_document(store.read("two") or b"").version == 1


@pytest.mark.parametrize("version", [1, 4, 5])
def test_the_same_or_an_earlier_version_is_refused_naming_the_one_in_force(
    store: RedisParameterStore, version: int
) -> None:
    store.publish(document(5))
    with pytest.raises(VersionConflictError, match=f"version {version} was not published, 5 is in force"):
        store.publish(document(version, temperature=9.0))
    assert decode_document(store.read("chat/eu-1") or b"") == document(5)


def test_large_versions_compare_exactly(store: RedisParameterStore) -> None:
    store.publish(document(2**32 - 2))
    store.publish(document(2**32 - 1))
    with pytest.raises(VersionConflictError) as refused:
        store.publish(document(2**32 - 2))
    assert refused.value.in_force == 2**32 - 1


@pytest.mark.parametrize("rubbish", [b"\xff{", b"", b"[" * 5000, b'{"version": "9"}', b"[1]", b"null"])
def test_a_document_that_nobody_can_read_is_replaced(
    place: Place, store: RedisParameterStore, rubbish: bytes
) -> None:
    with connect(place.url, place.ca_file) as client:
        client.set("dspark:{chat/eu-1}:parameters", rubbish)
    store.publish(document(1))
    assert decode_document(store.read("chat/eu-1") or b"").version == 1


def test_of_threads_that_publish_the_same_version_one_wins(place: Place) -> None:
    outcomes: list[str] = []
    start = threading.Barrier(8)

    def publish(number: int) -> None:
        store = place.open()
        start.wait()
        try:
            store.publish(document(3, temperature=1.0 + number))
            outcomes.append(f"published {1.0 + number}")
        except VersionConflictError as conflict:
            outcomes.append(f"refused by {conflict.in_force}")
        store.close()

    threads = [threading.Thread(target=publish, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes)[1:] == ["refused by 3"] * 7
    reader = place.open()
    in_force = decode_document(reader.read("chat/eu-1") or b"")
    reader.close()
    assert sorted(outcomes)[0] == f"published {in_force.temperatures[0]}"


def _climb(url: str, ca_file: str, start: Event, counts: "multiprocessing.Queue[int]") -> None:
    store = RedisParameterStore(url, ca_file)
    start.wait()
    published = 0
    for version in range(1, 41):
        try:
            store.publish(document(version))
        except VersionConflictError:
            continue
        published += 1
    counts.put(published)
    store.close()


def test_of_processes_that_race_through_versions_each_version_has_one_publisher(place: Place) -> None:
    context = multiprocessing.get_context("spawn")
    start, counts = context.Event(), context.Queue()
    racers = [
        context.Process(target=_climb, args=(place.url, place.ca_file, start, counts), daemon=True)
        for _ in range(2)
    ]
    for racer in racers:
        racer.start()
    start.set()
    published = [counts.get(timeout=60) for _ in racers]
    for racer in racers:
        racer.join()
    assert 1 <= sum(published) <= 40
    reader = place.open()
    assert decode_document(reader.read("chat/eu-1") or b"").version == 40
    reader.close()


def test_a_waiting_subscriber_hears_of_a_publication(place: Place, store: RedisParameterStore) -> None:
    assert store.wait_for_change("chat/eu-1", DEADLINE)  # the subscription begins: look once
    assert not store.wait_for_change("chat/eu-1", 0.05)
    publisher = place.open()
    publisher.publish(document(1))
    assert store.wait_for_change("chat/eu-1", DEADLINE)
    publisher.publish(document(1, "another"))
    assert not store.wait_for_change("chat/eu-1", 0.05)
    publisher.close()


def test_a_refused_publication_is_not_heard(store: RedisParameterStore) -> None:
    store.publish(document(2))
    assert store.wait_for_change("chat/eu-1", DEADLINE)
    with pytest.raises(VersionConflictError):
        store.publish(document(2))
    assert not store.wait_for_change("chat/eu-1", 0.05)


def test_closing_ends_the_waiting(store: RedisParameterStore) -> None:
    heard: list[bool] = []

    def wait() -> None:
        while not heard or heard[-1]:
            heard.append(store.wait_for_change("chat/eu-1", 600))

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert until(lambda: heard == [True])
    store.close()
    waiter.join(DEADLINE)
    assert not waiter.is_alive()
    assert heard == [True, False]


def test_reports_are_kept_by_replica_and_the_last_one_counts(store: RedisParameterStore) -> None:
    first = ReplicaReport("pod-1", applied=1, reported_at=1_700_000_000.25)
    refused = ReplicaReport(
        "pod-1",
        applied=1,
        reported_at=1_700_000_001.5,
        fingerprint="abc",
        forms=("temperature", "affine"),
        refused=2,
        reason='gamma: got "7"\n\u00e9, expected 5',
        segment_sets=True,
    )
    other = ReplicaReport("pod {2}", applied=0, reported_at=1_700_000_000.0)
    store.report("chat/eu-1", first, 60)
    store.report("chat/eu-1", refused, 60)
    store.report("chat/eu-1", other, 60)
    store.report("another", first, 60)
    assert store.reports("chat/eu-1") == {"pod-1": refused, "pod {2}": other}


def test_a_report_that_is_not_repeated_disappears_alone(place: Place, store: RedisParameterStore) -> None:
    store.report("chat/eu-1", ReplicaReport("leaves", applied=1, reported_at=0.0), 0.05)
    store.report("chat/eu-1", ReplicaReport("stays", applied=1, reported_at=0.0), 60)
    assert until(lambda: set(store.reports("chat/eu-1")) == {"stays"})
    with connect(place.url, place.ca_file) as client:
        assert client.hkeys("dspark:{chat/eu-1}:applied") == [b"stays"]
        assert 0 < client.pttl("dspark:{chat/eu-1}:applied") <= 60_000


def test_the_reports_key_goes_with_its_last_report(place: Place, store: RedisParameterStore) -> None:
    store.report("chat/eu-1", ReplicaReport("leaves", applied=1, reported_at=0.0), 0.05)
    with connect(place.url, place.ca_file) as client:
        assert until(lambda: client.exists("dspark:{chat/eu-1}:applied") == 0)
    assert store.reports("chat/eu-1") == {}


@pytest.mark.parametrize("rubbish", [b"\xff", b"{}", b"[1, 2]", b'{"replica": 3}', b"[" * 5000])
def test_a_report_that_nobody_can_read_hides_no_other(
    place: Place, store: RedisParameterStore, rubbish: bytes
) -> None:
    report = ReplicaReport("pod-1", applied=1, reported_at=0.0)
    store.report("chat/eu-1", report, 60)
    with connect(place.url, place.ca_file) as client:
        client.hset("dspark:{chat/eu-1}:applied", "strange", rubbish)
    assert store.reports("chat/eu-1") == {"pod-1": report}


def test_a_candidate_stands_beside_the_document_in_force(store: RedisParameterStore) -> None:
    store.publish(document(1))
    assert store.wait_for_change("chat/eu-1", DEADLINE)
    store.offer(document(2), share=0.1)
    assert store.wait_for_change("chat/eu-1", DEADLINE)
    candidate = store.candidate("chat/eu-1")
    assert candidate is not None
    assert candidate.share == 0.1
    assert decode_document(candidate.document) == document(2)
    assert decode_document(store.read("chat/eu-1") or b"").version == 1
    store.withdraw("chat/eu-1")
    assert store.candidate("chat/eu-1") is None
    assert store.wait_for_change("chat/eu-1", DEADLINE)


def test_a_candidate_that_is_not_newer_is_refused(store: RedisParameterStore) -> None:
    store.publish(document(2))
    with pytest.raises(VersionConflictError, match="2 is in force"):
        store.offer(document(2), share=0.5)
    assert store.candidate("chat/eu-1") is None


def test_after_an_emptied_restart_the_document_in_force_can_be_published_again(
    place: Place, store: RedisParameterStore
) -> None:
    store.publish(document(5))
    assert store.wait_for_change("chat/eu-1", DEADLINE)
    place.restart()
    assert until(lambda: _reachable(store))
    assert store.read("chat/eu-1") is None
    assert until(lambda: store.wait_for_change("chat/eu-1", 0.2))  # a new subscription: look
    store.publish(document(5))
    assert until(lambda: store.wait_for_change("chat/eu-1", 0.2))
    assert decode_document(store.read("chat/eu-1") or b"").version == 5


def _reachable(store: RedisParameterStore) -> bool:
    try:
        store.ping()
    except TransportError:
        return False
    return True


def test_messages_never_show_the_password(place: Place) -> None:
    wrong = place.url.replace("127.0.0.1", "127.0.0.2") if "127.0.0.1" in place.url else "unix:///none"
    store = RedisParameterStore(wrong, place.ca_file)
    with pytest.raises(TransportError) as refused:
        store.read("chat/eu-1")
    assert mask_url(wrong) in str(refused.value)
    if place.password:
        assert place.password not in str(refused.value)
        assert quote(place.password, safe="") not in str(refused.value)
    store.close()


def test_a_closed_store_says_so(store: RedisParameterStore) -> None:
    store.close()
    with pytest.raises(TransportError, match="closed"):
        store.read("chat/eu-1")


def test_a_publication_whose_answer_was_lost_is_not_a_conflict(
    store: RedisParameterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = store._client()
    genuine, lost = client.eval, []

    def eval_and_lose(*arguments: object) -> object:
        answer = genuine(*arguments)
        if not lost:
            lost.append(answer)
            raise redis.ConnectionError("the connection broke before the answer came")
        return answer

    monkeypatch.setattr(client, "eval", eval_and_lose)
    store.publish(document(1))
    assert lost == [[1, 1]]
    with pytest.raises(VersionConflictError):
        store.publish(document(1))
