"""Kafka, Redis and PostgreSQL under fault, with real processes: nothing lost, nothing twice.

After every fault the sums in the store equal the engines' own ledgers minus the counted ring loss. That
``observe()`` was never held up is asserted by what it did: the engine counts on while others are frozen.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest

from collectors import dead_letters
from serving_adapter.contract.events import (
    CONTENT_TYPE_HEADER,
    CONTENT_TYPE_JSON,
    CONTENT_TYPE_MSGPACK,
    encode_msgpack,
)
from tests.ingest_support import make_batch, make_rounds
from tools.fault_rig import Rig, bus
from tools.servers import KafkaServer, PostgresServer, RedisServer

pytestmark = [pytest.mark.servers, pytest.mark.faults, pytest.mark.timeout(400)]

JSON_TYPE = [(CONTENT_TYPE_HEADER, CONTENT_TYPE_JSON.encode())]
PACKED_TYPE = [(CONTENT_TYPE_HEADER, CONTENT_TYPE_MSGPACK.encode())]


@dataclass(frozen=True)
class Servers:
    """Servers of our own: others could not be killed."""

    kafka: KafkaServer
    redis: RedisServer
    postgres: PostgresServer


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    found = Servers(KafkaServer(), RedisServer(), PostgresServer())
    with ExitStack() as stack:
        with ThreadPoolExecutor(3) as starters:
            started = [starters.submit(server.start) for server in vars(found).values()]
        for server in vars(found).values():
            stack.callback(server.close)
        stack.callback(found.kafka.kill)  # it would take ten seconds to part with data that nobody needs
        for each in started:
            each.result()
        yield found


@pytest.fixture
def rig(servers: Servers, tmp_path: Path) -> Iterator[Rig]:
    for server in vars(servers).values():
        if not server.running:
            server.start()
    name = f"faults_{time.time_ns()}"
    with administrator(servers) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    settings = {
        "kafka_bootstrap": servers.kafka.bootstrap,
        "redis_url": servers.redis.url,
        "database_url": servers.postgres.url_for(name),
        "kafka_topic": name,
        "kafka_dead_letter_topic": f"{name}.refused",
        "kafka_group": name,
    }
    with Rig(tmp_path, settings) as rig:
        yield rig
        print("\n".join(rig.history))


def administrator(servers: Servers) -> "psycopg.Connection[Any]":
    return psycopg.connect(servers.postgres.url.replace("+psycopg", ""), autocommit=True)


def database(rig: Rig, **options: Any) -> "psycopg.Connection[Any]":
    return psycopg.connect(rig.settings.database_url.replace("+psycopg", ""), **options)


def blocked(servers: Servers, rig: Rig, statement: str = "") -> Callable[[], bool]:
    """Whether one of the rig's processes waits for a lock, with a statement that holds this."""
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND wait_event_type = 'Lock' "
        "AND application_name = 'dspark-calibrator' AND strpos(query, %s) > 0"
    )
    name = rig.settings.database_url.rpartition("/")[2]

    def ask() -> bool:
        with administrator(servers) as connection:
            row = connection.execute(query, (name, statement)).fetchone()
        return row is not None and row[0] > 0

    return ask


def test_a_collector_killed_between_poll_and_commit(servers: Servers, rig: Rig) -> None:
    pod, collector, successor = rig.pod(), rig.collector(), rig.collector()
    pod.start()
    collector.start()
    rig.fold(500)
    with closing(database(rig)) as holder:
        holder.execute("LOCK TABLE raw_windows IN EXCLUSIVE MODE")
        rig.until(blocked(servers, rig), "the collector is in the middle of its transaction")
        collector.kill()
        pod.serve(500)
    successor.start()
    rig.fold(500)
    found = rig.assert_exact()
    assert found.totals.lost == 0


def test_a_collector_frozen_inside_its_transaction_until_another_has_taken_over(
    servers: Servers, rig: Rig
) -> None:
    pod, zombie, successor = rig.pod(pace=800), rig.collector(), rig.collector()
    pod.start()
    zombie.start()
    rig.fold(500)
    with closing(database(rig)) as holder:
        holder.execute("LOCK TABLE raw_windows IN EXCLUSIVE MODE")
        rig.until(blocked(servers, rig), "the collector is in the middle of its transaction")
        zombie.freeze()
    successor.start()
    # Kafka's group gives the partitions away, and PostgreSQL ends the transaction that nobody goes on with.
    rig.fold(500)
    zombie.thaw()
    pod.serve(500)
    rig.fold(500)
    found = rig.assert_exact()
    assert found.totals.lost == 0
    assert [zombie.terminate(), successor.terminate()] == [0, 0]


def test_a_sidecar_killed_in_the_middle_of_a_batch(servers: Servers, rig: Rig) -> None:
    pod, collector = rig.pod(), rig.collector()
    pod.start()
    collector.start()
    rig.fold(500)
    for rows in (1, 300, 3000):
        # Sent and not acknowledged: whether Kafka will have taken it, the sidecar never learns.
        servers.kafka.pause()
        pod.serve(rows)
        pod.sidecar.kill()
        servers.kafka.resume()
        pod.sidecar.start()
        pod.serve(300)
    for _ in range(2):
        pod.sidecar.kill()
        pod.sidecar.start()
        rig.fold(500)
    found = rig.assert_exact()
    assert found.totals.lost == 0


def test_a_service_killed_in_the_middle_of_publishing(servers: Servers, rig: Rig) -> None:
    pod, collector = rig.pod(), rig.collector()
    pod.start()
    collector.start()
    rig.fold(6000)
    first, second, third = rig.service(), rig.service(), rig.service()
    writes = blocked(servers, rig, "INSERT INTO parameter_versions")

    # Killed while the version is being written to SQL: neither store has it.
    with closing(database(rig)) as holder:
        holder.execute("LOCK TABLE parameter_versions IN EXCLUSIVE MODE")
        first.start()
        rig.until(writes, "the service writes a version")
        first.kill()
    rig.until(lambda: not writes(), "the database has let go of the dead")
    assert (rig.stored_version(), rig.served_version()) == (0, 0)
    with closing(database(rig, autocommit=True)) as connection:
        # It would run out within DSPARK_JOB_LEASE_SECONDS.
        rig.until(
            lambda: connection.execute(
                "UPDATE runs SET acquired_until = 0 WHERE state = 'running' RETURNING id"
            ).fetchall(),
            "the run of the dead is there to be taken over",
        )

    # Killed when SQL has it and Redis has not.
    with closing(database(rig)) as holder:
        holder.execute("LOCK TABLE parameter_versions IN EXCLUSIVE MODE")
        second.start()
        rig.until(writes, "the service writes a version")
        servers.redis.kill()
    rig.until(lambda: rig.stored_version() == 1, "the version is in SQL")
    second.kill()
    servers.redis.start()
    assert (rig.stored_version(), rig.served_version()) == (1, 0)
    third.start()
    rig.until(lambda: rig.served_version() == 1, "the next service publishes it")
    rig.until(lambda: pod.progress().version == 1, "the engine applies it")
    pod.serve(500)
    rig.assert_exact()
    assert rig.books()[0].ledger["versions"] == [0, 1]


def test_kafka_stopped_for_half_a_minute(servers: Servers, rig: Rig) -> None:
    patient, overrun = rig.pod(pace=800), rig.pod(pace=800, ring_rounds=4096, ring_steps=128)
    collector = rig.collector()
    for each in (patient, overrun, collector):
        each.start()
    rig.fold(500)
    servers.kafka.kill()
    steps = [pod.steps for pod in (patient, overrun)]
    time.sleep(30)  # the fault itself
    servers.kafka.start()
    for pod, before in zip((patient, overrun), steps, strict=True):
        assert pod.steps > before + 500
    rig.fold(2000)
    found = rig.assert_exact()
    lost = {replica: boot.rounds.lost for (replica, _), boot in found.boots.items()}
    assert lost[patient.replica] == 0
    assert lost[overrun.replica] > 4096


def test_redis_emptied_and_restarted(servers: Servers, rig: Rig) -> None:
    pod, collector, service = rig.pod(), rig.collector(), rig.service()
    for each in (pod, collector, service):
        each.start()
    rig.until(lambda: pod.progress().version > 0, "the engine applies a version")
    seen = [pod.progress().version]
    for empty in (servers.redis.client().flushall, servers.redis.kill):
        empty()
        if not servers.redis.running:
            pod.goes_on()
            servers.redis.start()
        assert rig.stored_version() >= seen[-1]
        rig.until(lambda: rig.served_version() >= seen[-1], "the version in force is published again")
        seen.append(rig.served_version())
        rig.until(lambda: pod.progress().version >= seen[-1], "the engine has it")
        pod.serve(300)
    rig.assert_exact()
    versions = rig.books()[0].ledger["versions"]
    assert versions == sorted(set(versions))
    assert versions[0] == 0


def test_postgresql_restarted_while_rows_flow(servers: Servers, rig: Rig) -> None:
    pod, collector, service = rig.pod(), rig.collector(), rig.service()
    for each in (pod, collector, service):
        each.start()
    rig.fold(500)
    for stop in (servers.postgres.kill, servers.postgres.stop):
        stop()
        pod.serve(1000)
        servers.postgres.start()
        rig.fold(1000)
    found = rig.assert_exact()
    assert found.totals.lost == 0
    assert service.running


def test_collectors_that_come_and_go_while_rows_flow(rig: Rig) -> None:
    pods = [rig.pod(pace=800) for _ in range(3)]
    one, two, three = rig.collector(), rig.collector(), rig.collector()
    for each in (*pods, one):
        each.start()
    rig.fold(500)
    two.start()
    rig.until(lambda: "collector assigned [" in two.log.read_text(), "the second has partitions")
    rig.fold(1000)
    assert one.terminate() == 0
    rig.fold(500)
    three.start()
    rig.until(lambda: "collector assigned [" in three.log.read_text(), "the third has partitions")
    two.kill()  # its partitions wait for the end of its session
    one.start()
    rig.fold(1000)
    found = rig.assert_exact()
    assert found.totals.lost == 0
    assert len(found.boots) == 3
    assert [three.terminate(), one.terminate()] == [0, 0]


def test_everything_delivered_twice(rig: Rig) -> None:
    pod, collector = rig.pod(), rig.collector()
    pod.start()
    collector.start()
    rig.fold(3000)
    before = rig.assert_exact()
    again = bus.everything(rig.settings, rig.settings.kafka_topic)
    bus.send(rig.settings, [(m.partition, m.key, m.value, list(m.headers)) for m in again])
    after = rig.assert_exact()
    twice = after.totals.duplicates_discarded - before.totals.duplicates_discarded
    assert twice == before.totals.folded + before.totals.duplicates_discarded
    assert after.raw == before.raw
    assert after.in_force == before.in_force


def test_poison_between_good_messages(rig: Rig) -> None:
    pods = [rig.pod(), rig.pod()]
    collector = rig.collector()
    for each in (*pods, collector):
        each.start()
    rig.fold(500)
    stranger = make_batch(
        make_rounds(10, gamma=5), deployment=rig.settings.deployment, replica="stranger", boot="b"
    )
    noise = np.random.default_rng(0).bytes(5 * 1024 * 1024)
    poison: list[tuple[bytes, list[tuple[str, bytes]], str]] = [
        (b"\xff{", JSON_TYPE, "JSON"),
        (b"\xff{", PACKED_TYPE, ""),
        (b"", PACKED_TYPE, ""),
        (b"", [], ""),
        (noise, PACKED_TYPE, "at most 4194304 bytes"),
        (b"[1, 2, 3]", JSON_TYPE, ""),
        (b'{"schema": 5}', JSON_TYPE, "schema"),
        (b'"a string"', JSON_TYPE, ""),
        (encode_msgpack(stranger), PACKED_TYPE, "gamma: got 5, expected 7"),
    ]
    keys = []
    for number, (value, headers, _) in enumerate(poison):
        marks = [f"{number}/{partition}".encode() for partition in range(rig.settings.kafka_partitions)]
        bus.send(
            rig.settings,
            [(partition, mark, value, [*headers, ("mark", mark)]) for partition, mark in enumerate(marks)],
        )
        keys += [mark.decode() for mark in marks]
        pods[number % 2].serve(50)
    rig.fold(500)
    # The strangers' rows are the same in all partitions: booked once.
    found = rig.assert_exact(strangers=10)
    assert found.totals.lost == 0

    refused = bus.everything(rig.settings, rig.settings.kafka_dead_letter_topic)
    letters = {message.header("mark"): message for message in refused}
    assert sorted(letters) == sorted(keys)
    for number, (value, _, reason) in enumerate(poison):
        letter = letters[f"{number}/0"]
        assert letter.header(dead_letters.REASON_HEADER)
        assert reason in letter.header(dead_letters.REASON_HEADER)
        assert letter.header(dead_letters.TOPIC_HEADER) == rig.settings.kafka_topic
        assert letter.header(dead_letters.PARTITION_HEADER) == "0"
        assert letter.header(dead_letters.SIZE_HEADER) == str(len(value))
        assert value.startswith(letter.value)
        assert letter.value == value or len(value) > 1024 * 1024


def test_a_store_that_turns_read_only(rig: Rig) -> None:
    pod, collector, service = rig.pod(), rig.collector(), rig.service()
    for each in (pod, collector, service):
        each.start()
    rig.fold(500)
    name = rig.settings.database_url.rpartition("/")[2]

    def read_only(value: str) -> None:
        with closing(database(rig, autocommit=True)) as connection:
            connection.execute("SET default_transaction_read_only = off")
            connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = {value}")
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = %s AND pid <> pg_backend_pid()",
                (name,),
            )

    read_only("on")
    rig.until(lambda: "read-only transaction" in collector.log.read_text(), "the collector is refused")
    folded = rig.folded()
    pod.serve(1000)
    assert rig.folded() == folded
    read_only("off")
    rig.fold(1000)
    found = rig.assert_exact()
    assert found.totals.lost == 0


def test_a_pod_whose_clock_is_an_hour_ahead(rig: Rig) -> None:
    right, ahead = rig.pod(), rig.pod(ahead=3600.0)
    collector = rig.collector()
    for each in (right, ahead, collector):
        each.start()
    rig.fold(2000)
    found = rig.assert_exact()
    emitted = {book.replica: book.rounds for book in rig.books()}
    misdated = {replica: boot.misdated for (replica, _), boot in found.boots.items()}
    assert misdated == {right.replica: 0, ahead.replica: emitted[ahead.replica]}
    with closing(database(rig)) as connection:
        latest = connection.execute("SELECT max(start) FROM raw_windows").fetchone()
    assert latest is not None
    assert latest[0] <= time.time()
