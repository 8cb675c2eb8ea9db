"""Server-sent events: what changes is told, to the right clients, and nobody can make the service wait."""

import asyncio
import json
import socket
import threading

import httpx
import pytest
import uvicorn

from calibrator.service.web import event_hub
from calibrator.service.web.event_hub import QUEUE, Event, EventHub, TooManyClientsError, stream
from calibrator.service.web.server import EndingServer
from calibrator.store import Store, deployments, episodes, refreshes
from calibrator.store.episodes import Episode
from serving_adapter.parameter_stores.embedded import EmbeddedParameterStore
from tests.parameter_documents import until
from tests.recorded import recorded
from tests.web_support import open_service


@pytest.fixture
def service(tmp_path):
    parameter_store = EmbeddedParameterStore()
    with open_service(f"sqlite:///{tmp_path}/store.db", parameter_store, tmp_path) as opened:
        yield opened
    parameter_store.close()


class Ticking:
    """A monotonic clock that moves when told."""

    def __init__(self):
        self.at = 0.0

    def __call__(self):
        return self.at


@pytest.fixture
def clock():
    return Ticking()


@pytest.fixture
def hub(service, clock):
    made = EventHub(service.context.store, monotonic=clock)
    made.poll()
    yield made
    made.close()


def told(events):
    return [(e.name, e.deployment, e.data.get("id")) for e in events]


def test_the_first_look_tells_nothing_and_neither_does_one_without_a_change(service):
    service.ingest(recorded("typical").take(slice(0, 200)))
    fresh = EventHub(service.context.store)
    assert fresh.poll() == []
    assert fresh.poll() == []


def test_a_refresh_and_its_version_are_told(service, hub):
    service.fill(6000)
    events = hub.poll()
    assert ("refresh", "chat", 1) in told(events)
    assert ("version", "chat", 1) in told(events)
    assert hub.poll() == []


def test_a_refresh_that_ends_is_told_again(service, hub):
    with service.context.store.write() as connection:
        own = deployments.register(connection, "chat", 7, "f", 0.0)
        refresh = refreshes.start(connection, own.id, 1.0)
    assert ("refresh", "chat", refresh) in told(hub.poll())
    with service.context.store.write() as connection:
        refreshes.finish(connection, refresh, 2.0, "unchanged", [], {})
    (event,) = hub.poll()
    assert (event.name, event.data["outcome"]) == ("refresh", "unchanged")


def test_an_episode_is_told_when_it_begins_and_when_it_ends(service, hub):
    with service.context.store.write() as connection:
        own = deployments.register(connection, "chat", 7, "f", 0.0)
        begun = episodes.start(
            connection, own.id,
            Episode("cost", None, None, None, None, "slower", 1.0, 2.0, None, 0.2, "s", "r", None),
        )  # fmt: skip
    events = hub.poll()
    assert ("episode", "chat", begun) in told(events)
    with service.context.store.write() as connection:
        episodes.end(connection, begun, 1_700_000_000.0)
    (event,) = hub.poll()
    assert event.data == {"id": begun, "kind": "cost", "ended_at": "2023-11-14T22:13:20.000Z"}


def test_settings_of_an_operator_are_told_without_their_content(service, hub):
    with service.context.store.write() as connection:
        own = deployments.register(connection, "chat", 7, "f", 0.0)
    hub.poll()
    with service.context.store.write() as connection:
        deployments.set_settings(connection, own.id, {"share": 0.5})
    (event,) = hub.poll()
    assert (event.name, event.deployment) == ("deployment", "chat")
    assert "settings" not in event.data


def test_rows_are_told_at_most_every_two_seconds_and_the_last_ones_are_not_forgotten(service, hub, clock):
    rows = recorded("typical")
    service.ingest(rows.take(slice(0, 100)))
    assert [e.data["rounds"] for e in hub.poll() if "rounds" in e.data] == [100]
    service.ingest(rows.take(slice(100, 150)))
    clock.at = 1.0
    assert hub.poll() == []
    clock.at = 2.0
    assert [e.data["rounds"] for e in hub.poll()] == [150]
    clock.at = 9.0
    assert hub.poll() == []


def test_a_store_that_is_away_is_waited_for(tmp_path):
    store = Store(f"sqlite:///{tmp_path}/empty.db")
    hub = EventHub(store)
    assert hub.poll() == []
    store.migrate()
    assert hub.poll() == []
    with store.write() as connection:
        deployments.register(connection, "chat", 7, "f", 0.0)
    assert [e.name for e in hub.poll()] == ["deployment"]
    store.close()


def event(number, deployment="chat"):
    return Event(number, "run", deployment, {"id": number})


def frames(blob):
    parsed = []
    for frame in blob.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in frame.splitlines() if not line.startswith(":"))
        if "event" in fields:
            parsed.append((fields["event"], json.loads(fields["data"]), fields.get("id")))
    return parsed


async def read_to_the_end(hub, subscription, reconnected=False):
    return b"".join([part async for part in stream(hub, subscription, reconnected)])


def test_a_client_gets_what_it_asked_for_in_order(hub):
    async def play():
        subscription = hub.subscribe("chat")
        for number in range(5):
            subscription.put(event(number, "chat" if number % 2 == 0 else "other"))
        asyncio.get_running_loop().call_later(0.05, subscription.close)
        return await read_to_the_end(hub, subscription)

    assert frames(asyncio.run(play())) == [
        ("run", {"deployment": "chat", "id": n}, str(n)) for n in (0, 2, 4)
    ]
    assert hub.clients == 0


def test_a_client_that_comes_back_is_told_to_read_again(hub):
    async def play():
        subscription = hub.subscribe()
        subscription.close()
        return await read_to_the_end(hub, subscription, reconnected=True)

    assert frames(asyncio.run(play())) == [("reset", {"reason": "reconnected"}, None)]


def test_a_slow_client_is_dropped_and_told_so(hub):
    async def play():
        slow, quick = hub.subscribe(), hub.subscribe()
        for number in range(QUEUE + 10):
            slow.put(event(number))
        quick.put(event(1))
        asyncio.get_running_loop().call_later(0.05, quick.close)
        return await read_to_the_end(hub, slow), await read_to_the_end(hub, quick)

    slow, quick = asyncio.run(play())
    assert frames(slow) == [("reset", {"reason": "too slow"}, None)]
    assert [name for name, _, _ in frames(quick)] == ["run"]


def test_there_are_only_so_many_places(hub, monkeypatch):
    monkeypatch.setattr(event_hub, "MAX_CLIENTS", 2)

    async def play():
        first, _ = hub.subscribe(), hub.subscribe()
        with pytest.raises(TooManyClientsError):
            hub.subscribe()
        hub.unsubscribe(first)
        hub.subscribe()

    asyncio.run(play())


def test_one_poller_serves_all_and_none_is_left_after_the_end(service):
    hub = EventHub(service.context.store)

    def pollers():
        return [t for t in threading.enumerate() if t.name == "dspark-events" and t.is_alive()]

    before = len(pollers())

    async def play():
        for _ in range(3):
            hub.subscribe()
        assert len(pollers()) == before + 1
        hub.close()
        late = hub.subscribe()
        return await read_to_the_end(hub, late)

    assert frames(asyncio.run(play())) == []
    assert until(lambda: len(pollers()) == before)


def test_head_is_answered_without_a_stream_and_takes_no_place(service, monkeypatch):
    def head(path):
        return service.client.head(path, headers=service.headers())

    with service.context.store.write() as connection:
        deployments.register(connection, "chat", 7, "f", service.clock.now())
    assert [head(f"/v1/events{query}").status_code for query in ("", "?deployment=chat")] == [200, 200]
    assert service.app.state.live.events.clients == 0
    for path, status in (("/v1/events?deployment=other", 404), ("/v1/events?nonsense=1", 422)):
        assert (head(path).status_code, head(path).content) == (status, b"")
    assert service.client.head("/v1/events").status_code == 401
    monkeypatch.setattr(event_hub, "MAX_CLIENTS", 0)
    assert head("/v1/events").status_code == 503


def test_events_travel_over_http_and_end_with_the_service(service):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(service.app, log_config=None, timeout_graceful_shutdown=60)
        server = EndingServer(config, service.app.state.live.close)
        thread = threading.Thread(target=lambda: server.run(sockets=[listener]), daemon=True)
        thread.start()
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert until(lambda: server.started)
        headers = service.headers()
        assert httpx.get(f"{address}/v1/events").status_code == 401
        unknown = httpx.get(f"{address}/v1/events?deployment=chat", headers=headers)
        assert unknown.status_code == 404
        with service.context.store.write() as connection:
            deployments.register(connection, "chat", 7, "f", service.clock.now())
        with httpx.stream(
            "GET", f"{address}/v1/events?deployment=chat", headers=headers, timeout=30
        ) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            head = httpx.head(f"{address}/v1/events?deployment=chat", headers=headers)
            changing = ("date", "x-request-id")
            assert [each for each in head.headers.items() if each[0] not in changing] == [
                each for each in answer.headers.items() if each[0] not in changing
            ]
            lines = answer.iter_lines()
            assert next(lines) == "retry: 2000"
            assert until(lambda: service.app.state.live.events._seen is not None)
            service.ingest(recorded("typical").take(slice(0, 100)), "other")
            service.ingest(recorded("typical").take(slice(0, 100)), "chat")
            data = next(line for line in lines if line.startswith("data: "))
            assert json.loads(data.removeprefix("data: "))["deployment"] == "chat"
            server.should_exit = True
            # The stream ends by itself: the server would wait for it for a minute.
            assert "event: reset" not in list(lines)
        thread.join(timeout=30)
        assert not thread.is_alive()
