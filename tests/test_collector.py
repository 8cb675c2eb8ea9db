"""The collector's loop: to the end of the log, whatever comes and goes on the way."""

import threading
from contextlib import contextmanager

import numpy as np
import pytest

from calibrator.store import Store, StoreUnavailableError, positions, windows
from collectors.collector import Collector
from collectors.pipeline import IngestPipeline
from serving_adapter.buses.embedded import EmbeddedSink, EmbeddedSource
from serving_adapter.clock import ManualClock, SystemClock
from serving_adapter.contract import Rounds
from serving_adapter.contract.events import CONTENT_TYPE_MSGPACK, TOPIC, encode_msgpack
from serving_adapter.ports import Message, OutgoingMessage, TransportError
from tests.ingest_support import (
    NOW,
    ListSink,
    cut,
    expected_sums,
    ledger,
    make_batch,
    make_rounds,
    message,
    stored_sums,
)
from tools.servers import PostgresServer

pytest_plugins = ["tests.store_fixtures"]


class MemorySource:
    """A log per partition that a test writes into; faults on demand."""

    def __init__(self, listener, log):
        self.listener, self.log = listener, log
        self.at = {}
        self.committed = {}
        self.failures = []
        self.closed = False

    def poll(self, timeout, max_messages=500):
        if self.failures:
            raise self.failures.pop()
        if not self.at:
            partitions = frozenset(self.log)
            given = self.listener.assigned(partitions)
            self.at = {p: given.get(p, 0) for p in partitions}
        found = []
        for partition, messages in self.log.items():
            end = messages[-1].offset + 1 if messages else 0
            if self.at[partition] > end:
                self.at[partition] = 0
            mine = [m for m in messages if m.offset >= self.at[partition]][:max_messages]
            found += mine
            if mine:
                self.at[partition] = mine[-1].offset + 1
        return found

    def seek(self, partition, offset):
        if partition not in self.at:
            raise ValueError(partition)
        self.at[partition] = offset

    def commit(self, positions):
        self.committed.update(positions)

    def lag(self):
        return {p: sum(m.offset >= at for m in self.log[p]) for p, at in self.at.items()}

    def close(self):
        self.listener.revoked(frozenset(self.at))
        self.closed = True


class Rig:
    """A collector over a memory source that stops when everything is read, or after many turns."""

    def __init__(self, store, log, clock=None, **options):
        self.log = log
        self.source = None
        self.stop = threading.Event()
        self.turns = 0
        self.want = lambda: not any(self.source.lag().values())
        self.pipeline = IngestPipeline(store, ListSink(), clock or ManualClock(NOW))
        self.collector = Collector(
            self.pipeline, TOPIC, self.open, ManualClock(NOW), self.progress,
            poll_seconds=0, first_pause_seconds=0.001, **options,
        )  # fmt: skip

    def open(self, listener):
        self.source = MemorySource(listener, self.log)
        return self.source

    def progress(self, _statistics):
        self.turns += 1
        if self.want() or self.turns > 1_000:
            self.stop.set()

    def run(self):
        return self.collector.run(self.stop)


def logs(rounds, parts=2):
    """The rounds spread over partitions, one replica each."""
    size = -(-len(rounds) // parts)
    return {
        p: [
            Message(TOPIC, p, m.offset, m.key, m.value, m.headers)
            for m in cut(rounds.take(slice(p * size, (p + 1) * size)), 20, replica=f"pod-{p}")
        ]
        for p in range(parts)
    }


def test_a_collector_reads_to_the_end_and_says_what_it_did(store):
    rounds = make_rounds(400)
    rig = Rig(store, logs(rounds), max_messages=3)
    statistics = rig.run()
    assert stored_sums(store) == expected_sums(rounds)
    assert statistics.ingested.folded == 400
    assert statistics.to_dict()["lag"] == 0
    assert statistics.rebalances == 2  # assigned and given up
    assert rig.source.committed == {0: 10, 1: 10}
    assert rig.source.closed


def test_a_second_collector_goes_on_where_the_first_stopped(store):
    rounds = make_rounds(400)
    log = logs(rounds)
    first = Rig(store, log, max_messages=4)
    first.want = lambda: True
    assert first.run().ingested.folded == 160
    second = Rig(store, log).run()
    assert second.ingested.folded == 240
    assert second.ingested.duplicates_discarded == 0
    assert stored_sums(store) == expected_sums(rounds)


def test_a_store_that_is_away_is_waited_for(store, monkeypatch):
    rounds = make_rounds(400)
    rig = Rig(store, logs(rounds), max_messages=3)
    write, away = store.write, iter([True, True, False, True, False, True, True])

    @contextmanager
    def flaky():
        if next(away, False):
            raise StoreUnavailableError("database is locked")
        with write() as connection:
            yield connection

    monkeypatch.setattr(store, "write", flaky)
    statistics = rig.run()
    assert statistics.store_errors == 5
    assert statistics.ingested.duplicates_discarded == 0
    assert stored_sums(store) == expected_sums(rounds)
    assert ledger(store).in_flight == 0


def test_a_commit_whose_answer_was_lost_is_not_made_twice(store, monkeypatch):
    rounds = make_rounds(200)
    rig = Rig(store, logs(rounds), max_messages=3)
    write, lost = store.write, iter([False, True, False, True])

    @contextmanager
    def forgetful():
        with write() as connection:
            yield connection
        if next(lost, False):
            raise StoreUnavailableError("server closed the connection unexpectedly")

    monkeypatch.setattr(store, "write", forgetful)
    rig.run()
    assert stored_sums(store) == expected_sums(rounds)
    assert ledger(store).duplicates_discarded == 0


def test_partitions_are_not_taken_while_the_store_is_away(store, monkeypatch):
    rounds = make_rounds(100)
    rig = Rig(store, logs(rounds))
    read, away = store.read, iter([True, True])

    @contextmanager
    def flaky():
        if next(away, False):
            raise StoreUnavailableError("connection refused")
        with read() as connection:
            yield connection

    monkeypatch.setattr(store, "read", flaky)
    statistics = rig.run()
    assert statistics.store_errors == 2
    assert stored_sums(store) == expected_sums(rounds)


def test_a_bus_that_is_away_is_waited_for(store):
    rounds = make_rounds(100)
    rig = Rig(store, logs(rounds))
    opened, tries = rig.open, iter([True, True])

    def open_late(listener):
        if next(tries, False):
            raise TransportError("no broker")
        source = opened(listener)
        source.failures = [TransportError("gone"), TransportError("gone")]
        return source

    rig.collector._open_source = open_late
    statistics = rig.run()
    assert statistics.transport_errors == 4
    assert stored_sums(store) == expected_sums(rounds)


def test_a_fenced_collector_reads_its_positions_again(store):
    rounds = make_rounds(400)
    log = logs(rounds)
    rig = Rig(store, log, max_messages=2)
    rival = IngestPipeline(store, ListSink(), ManualClock(NOW))
    interfered = []

    def interfere():
        if not interfered:
            interfered.append(rival.ingest(log[0][2:6]))
        return not any(rig.source.lag().values())

    rig.want = interfere
    statistics = rig.run()
    assert statistics.fenced == 1
    assert interfered[0].folded == 80
    assert statistics.ingested.folded == 320
    assert stored_sums(store) == expected_sums(rounds)


def test_a_log_that_was_made_anew_is_read_from_its_beginning(store):
    old, new = make_rounds(100), make_rounds(60, seed=1)
    Rig(store, {0: cut(old, 10)}).run()
    statistics = Rig(store, {0: cut(new, 20, boot="boot-2")}).run()
    assert statistics.rewinds == 1
    assert statistics.ingested.folded == 60
    assert stored_sums(store) == expected_sums(Rounds.concatenate([old, new]))
    with store.read() as connection:
        assert positions.read(connection, "dspark-calibrator") == {(TOPIC, 0): 3}


def test_a_stopped_collector_finishes_what_it_holds(store):
    rounds = make_rounds(400)
    rig = Rig(store, logs(rounds), max_messages=2)
    ingest = rig.pipeline.ingest

    def ingest_and_stop(messages):
        rig.stop.set()
        return ingest(messages)

    rig.pipeline.ingest = ingest_and_stop
    statistics = rig.run()
    assert statistics.ingested.folded == 80
    assert ledger(store).folded == 80
    assert rig.source.closed


def test_collectors_of_different_partitions_give_the_sums_of_one_machine(store_url):
    Store(store_url).migrate()
    columns = {"segment": np.arange(3_000) % 3, "segments": ("math", "code", "chat")}
    rounds = make_rounds(3_000, **columns)
    log = logs(rounds, parts=3)
    failures = []

    def collect(partition):
        own = Store(store_url)
        try:
            Rig(own, {partition: log[partition]}, SystemClock(), max_messages=5).run()
        except Exception as error:
            failures.append(error)
        finally:
            own.close()

    threads = [threading.Thread(target=collect, args=(p,)) for p in log]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    store = Store(store_url)
    assert stored_sums(store) == expected_sums(rounds)
    assert ledger(store).folded == 3_000
    store.close()


def test_the_embedded_bus_feeds_a_collector(store, tmp_path):
    rounds = make_rounds(300)
    sink = EmbeddedSink(tmp_path / "bus.db", TOPIC, partitions=3)
    headers = (("content-type", CONTENT_TYPE_MSGPACK.encode()),)
    for i in range(0, 300, 20):
        batch = make_batch(rounds.take(slice(i, i + 20)), i, replica=f"pod-{i % 4}")
        sink.publish([OutgoingMessage(batch.replica.encode(), encode_msgpack(batch), headers)])
    stop = threading.Event()

    def progress(statistics):
        if statistics.ingested.folded == 300:
            stop.set()

    pipeline = IngestPipeline(store, ListSink(), ManualClock(NOW))
    collector = Collector(
        pipeline, TOPIC, lambda listener: EmbeddedSource(tmp_path / "bus.db", TOPIC, listener, partitions=3),
        ManualClock(NOW), progress, poll_seconds=0.01,
    )  # fmt: skip
    collector.run(stop)
    sink.close()
    assert stored_sums(store) == expected_sums(rounds)


def test_a_message_without_a_content_type_is_taken_for_msgpack(store):
    rounds = make_rounds(10)
    bare = message(make_batch(rounds), 0)
    bare = Message(bare.topic, 0, 0, b"", bare.value)
    Rig(store, {0: [bare]}).run()
    assert stored_sums(store) == expected_sums(rounds)


@pytest.mark.servers
@pytest.mark.faults
def test_a_postgresql_that_dies_inside_a_transaction_costs_a_retry_and_no_row(monkeypatch):
    rounds = make_rounds(600)
    with PostgresServer() as server:
        store = Store(server.url)
        store.migrate()
        rig = Rig(store, logs(rounds), max_messages=3)
        add, faults = windows.add, {4: server.kill, 9: server.stop}
        calls, restarts = [], []

        def add_among_faults(*arguments, **options):
            calls.append(1)
            fault = faults.pop(len(calls), None)
            if fault is not None:
                fault()
                restarts.append(threading.Thread(target=server.start))
                restarts[-1].start()
            return add(*arguments, **options)

        monkeypatch.setattr(windows, "add", add_among_faults)
        statistics = rig.run()
        for restart in restarts:
            restart.join()
        assert faults == {}
        assert statistics.store_errors >= 2
        assert stored_sums(store) == expected_sums(rounds)
        assert ledger(store).in_flight == 0
        store.close()
