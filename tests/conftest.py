"""The real servers: each starts when the first test asks for it, once per session (and per xdist worker)."""

import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
import redis
from hypothesis import settings
from sqlalchemy import make_url

from calibrator.store import Store
from serving_adapter.parameter_stores.embedded import EmbeddedParameterStore
from tests.web_support import Service, open_service
from tools.servers import ExistingServer, KafkaServer, PostgresServer, RedisServer, from_environment

settings.register_profile("untimed", deadline=None)  # a busy machine is no failure
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaServer | ExistingServer]:
    with from_environment("kafka") as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer | ExistingServer]:
    with from_environment("redis") as server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer | ExistingServer]:
    with from_environment("postgres") as server:
        yield server


@pytest.fixture
def kafka_topic() -> Callable[[str], str]:
    """Make a topic name that nobody else uses; creating the topic is up to the test."""

    def unique(prefix: str = "test") -> str:
        return f"{prefix}-{secrets.token_hex(6)}"

    return unique


@pytest.fixture
def redis_url(redis_server: RedisServer | ExistingServer) -> Iterator[str]:
    """An empty Redis database, emptied again after the test."""
    url = redis_server.url
    if isinstance(redis_server, ExistingServer):  # somebody's: take a free database, one per xdist worker
        worker = re.sub(r"\D", "", os.environ.get("PYTEST_XDIST_WORKER", "")) or "0"
        url = re.sub(r"^(\w+://[^/?]+)(/\d*)?", rf"\g<1>/{1 + int(worker) % 15}", url)
    with redis.Redis.from_url(url) as client:
        if isinstance(redis_server, ExistingServer) and client.dbsize():
            pytest.fail(f"database {url.rsplit('/', 1)[1]} of the Redis in DSPARK_TEST_REDIS_URL is in use")
        client.flushdb()
        yield url
        client.flushdb()


@pytest.fixture
def postgres_url(postgres: PostgresServer | ExistingServer) -> Iterator[str]:
    """An empty PostgreSQL database, dropped after the test."""
    administrator, name = postgres.url.replace("+psycopg", ""), f"test_{secrets.token_hex(6)}"
    with psycopg.connect(administrator, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    yield make_url(postgres.url).set(database=name).render_as_string(hide_password=False)
    with psycopg.connect(administrator, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def valkey() -> Iterator[EmbeddedParameterStore]:
    """One embedded parameter store; tests empty it before they use it."""
    store = EmbeddedParameterStore()
    yield store
    store.close()


@pytest.fixture(scope="session")
def migrated_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with all tables and no rows, to copy: migrating takes longer than most tests."""
    path = tmp_path_factory.mktemp("migrated") / "store.db"
    store = Store(f"sqlite:///{path}")
    store.migrate()
    store.close()
    return path


@pytest.fixture
def service(tmp_path: Path, valkey: EmbeddedParameterStore, migrated_database: Path) -> Iterator[Service]:
    """The application over an empty store (``service.fill()`` replays traffic into it)."""
    shutil.copy(migrated_database, tmp_path / "store.db")
    with open_service(f"sqlite:///{tmp_path / 'store.db'}", valkey, tmp_path) as opened:
        yield opened


@pytest.fixture(scope="module")
def filled_service(
    tmp_path_factory: pytest.TempPathFactory, valkey: EmbeddedParameterStore
) -> Iterator[Service]:
    """One filled application for a whole module that only reads."""
    folder = tmp_path_factory.mktemp("service")
    with open_service(f"sqlite:///{folder / 'store.db'}", valkey, folder) as opened:
        opened.fill()
        yield opened
