"""The servers that every other test relies on: they start, crash, come back and leave nothing behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import psycopg
import pytest
import redis
from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.errors import KafkaError
from redis.cluster import RedisCluster
from redis.sentinel import MasterNotFoundError, Sentinel

from tools.servers import (
    ExistingServer,
    KafkaServer,
    PostgresServer,
    RedisSentinel,
    RedisServer,
    ServerFailed,
    ServerUnavailable,
    from_environment,
)

pytestmark = pytest.mark.servers
ROOT = Path(__file__).parent.parent


def create_topic(settings: dict[str, object], topic: str) -> None:
    with KafkaAdminClient(**settings) as admin:
        admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])
        admin.wait_for_topics([topic])


def produce(settings: dict[str, object], topic: str, value: bytes) -> None:
    producer = KafkaProducer(**settings, acks="all")
    producer.send(topic, value).get(30)
    producer.close()


def consume(settings: dict[str, object], topic: str, count: int) -> list[bytes]:
    consumer = KafkaConsumer(
        topic,
        **settings,
        group_id=f"{topic}-readers",
        auto_offset_reset="earliest",
        consumer_timeout_ms=20_000,
    )
    try:
        return [next(consumer).value for _ in range(count)]
    finally:
        consumer.close()


def query(url: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url.replace("+psycopg", ""), connect_timeout=5) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def wait_until(condition: Callable[[], bool], seconds: float = 15) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def test_kafka_keeps_messages_over_a_crash_and_a_restart(kafka_topic: Callable[[str], str]) -> None:
    topic = kafka_topic("survives")
    with KafkaServer() as server:
        bootstrap, settings = server.bootstrap, server.client_settings("PLAINTEXT")
        create_topic(settings, topic)
        produce(settings, topic, b"before the crash")
        server.kill()
        assert not server.running
        server.restart()
        produce(settings, topic, b"before the restart")
        server.restart()
        assert server.bootstrap == bootstrap
        assert consume(settings, topic, 2) == [b"before the crash", b"before the restart"]


def test_kafka_does_not_create_topics_by_itself(
    kafka: KafkaServer, kafka_topic: Callable[[str], str]
) -> None:
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap, max_block_ms=1_000)
    with pytest.raises(KafkaError):
        producer.send(kafka_topic("unknown"), b"lost").get(5)
    producer.close()


@pytest.fixture(scope="module")
def secure_kafka():
    with KafkaServer(secure=True) as server:
        yield server


@pytest.mark.parametrize(
    ("protocol", "mechanism"),
    [
        ("PLAINTEXT", ""),
        ("SSL", ""),
        ("SASL_PLAINTEXT", "PLAIN"),
        ("SASL_PLAINTEXT", "SCRAM-SHA-512"),
        ("SASL_SSL", "PLAIN"),
        ("SASL_SSL", "SCRAM-SHA-512"),
    ],
)
def test_kafka_takes_messages_on_each_listener(
    secure_kafka: KafkaServer, kafka_topic: Callable[[str], str], protocol: str, mechanism: str
) -> None:
    topic = kafka_topic("listener")
    settings = secure_kafka.client_settings(protocol, mechanism)
    create_topic(settings, topic)
    produce(settings, topic, b"hello")
    assert consume(settings, topic, 1) == [b"hello"]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_kafka_refuses_a_wrong_password(secure_kafka: KafkaServer, mechanism: str) -> None:
    settings = secure_kafka.client_settings("SASL_PLAINTEXT", mechanism) | {"sasl_plain_password": "wrong"}
    with pytest.raises(KafkaError):
        KafkaAdminClient(**settings, bootstrap_timeout_ms=2_000).list_topics()
    assert "failed authentication" in secure_kafka.log.read_text().lower()


def test_postgres_keeps_rows_over_a_crash_and_a_restart() -> None:
    with PostgresServer() as server:
        url = server.url
        query(url, "CREATE TABLE kept (number int)")
        query(url, "INSERT INTO kept VALUES (1)")
        server.kill()
        with pytest.raises(psycopg.OperationalError):
            query(url, "SELECT 1")
        server.restart()
        query(url, "INSERT INTO kept VALUES (2)")
        server.restart()
        assert server.url == url
        assert query(url, "SELECT number FROM kept ORDER BY 1") == [(1,), (2,)]


def test_a_paused_postgres_answers_no_open_connection_until_it_is_resumed() -> None:
    with PostgresServer() as server, psycopg.connect(server.url.replace("+psycopg", "")) as connection:
        server.pause()
        descriptor = connection.fileno()
        connection.pgconn.send_query(b"SELECT 1")
        os.set_blocking(descriptor, False)
        time.sleep(0.3)
        connection.pgconn.consume_input()
        assert connection.pgconn.is_busy()
        server.resume()

        def answered() -> bool:
            connection.pgconn.consume_input()
            return not connection.pgconn.is_busy()

        wait_until(answered)
        connection.close()


def test_each_test_has_an_empty_postgres_database(postgres_url: str) -> None:
    assert query(postgres_url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == [(0,)]
    assert query(postgres_url, "SELECT current_database() LIKE 'test\\_%'") == [(True,)]


def test_each_test_has_an_empty_redis_database(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0
        client.set("left", "behind")


def test_redis_is_empty_after_a_restart() -> None:
    with RedisServer() as server, server.client() as client:
        client.set("key", "value")
        server.restart()
        assert client.get("key") is None


def test_redis_that_persists_keeps_keys_over_a_crash() -> None:
    with RedisServer(persist=True) as server, server.client() as client:
        client.set("key", "value")
        server.kill()
        server.restart()
        assert client.get("key") == b"value"


def test_redis_with_tls_password_and_user_answers_only_those_who_have_them() -> None:
    with RedisServer(tls=True, username="dspark", password="a b/c", acl="~dspark:* &* +@all") as server:
        with server.client() as client:
            client.set("dspark:key", "value")
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.set("other", "value")
        anonymous = f"rediss://127.0.0.1:{server.port}?ssl_ca_certs={server.ca_file}"
        with redis.Redis.from_url(anonymous) as client, pytest.raises(redis.exceptions.AuthenticationError):
            client.ping()
        stranger = server.url.split("?")[0]
        with redis.Redis.from_url(stranger) as client, pytest.raises(redis.exceptions.ConnectionError):
            client.ping()


def test_redis_cluster_serves_all_slots_and_keeps_them_over_a_restart() -> None:
    with RedisServer(cluster=True, password="secret") as server:
        server.restart()
        client = RedisCluster.from_url(server.url)
        for number in range(50):
            assert client.set(f"key-{number}", number)
        client.close()


def test_sentinel_names_the_replica_after_the_master_died() -> None:
    account = {"username": "dspark", "password": "secret"}
    with (
        RedisServer(**account) as master,
        RedisServer(**account, replica_of=master) as replica,
        RedisSentinel(master) as sentinel,
    ):
        names = Sentinel([(sentinel.host, sentinel.port)], **account)
        assert names.discover_master(sentinel.name) == (master.host, master.port)
        wait_until(lambda: names.discover_slaves(sentinel.name) == [(replica.host, replica.port)])
        master.kill()
        wait_until(lambda: sentinel.master_address() == (replica.host, replica.port), 30)

        def promoted() -> bool:
            with suppress(MasterNotFoundError):  # until the Sentinel sees the new master as one
                return names.master_for(sentinel.name).role()[0] == b"master"
            return False

        wait_until(promoted)


def test_a_server_that_cannot_start_shows_its_log() -> None:
    with pytest.raises(ServerFailed, match="no_such_setting"):
        PostgresServer(settings={"no_such_setting": "1"}).start()


def test_a_missing_program_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ServerUnavailable, match=r"Kafka.*java.*install\.sh.*DSPARK_TEST_KAFKA_BOOTSTRAP"):
        KafkaServer().start()


def test_a_server_named_in_the_environment_is_used_and_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSPARK_TEST_REDIS_URL", "redis://example:1/0")
    with from_environment("redis") as server:
        assert isinstance(server, ExistingServer)
        assert server.url == "redis://example:1/0"
        with pytest.raises(ServerFailed, match="DSPARK_TEST_REDIS_URL"):
            server.kill()


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_servers_run_by_hand_end_with_their_parent(end: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "tools.servers", "--json"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        variables = json.loads(parent.stdout.readline())
        assert list(variables) == ["DSPARK_KAFKA_BOOTSTRAP", "DSPARK_REDIS_URL", "DSPARK_DATABASE_URL"]
        assert query(variables["DSPARK_DATABASE_URL"], "SELECT 1") == [(1,)]
        children = psutil.Process(parent.pid).children(recursive=True)
        assert len(children) >= 3
        parent.send_signal(end)
        parent.wait(60)
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive
    assert parent.returncode == (0 if end == signal.SIGTERM else -signal.SIGKILL)
