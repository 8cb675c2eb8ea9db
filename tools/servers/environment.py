"""Servers that exist already, named in the environment."""

import os
from typing import Literal, Self, overload

from tools.servers.base import Server, ServerFailed
from tools.servers.kafka_server import KafkaServer
from tools.servers.postgres_server import PostgresServer
from tools.servers.redis_server import RedisServer

SERVERS: dict[str, type[Server]] = {"kafka": KafkaServer, "redis": RedisServer, "postgres": PostgresServer}


class ExistingServer:
    """The address of a server that somebody else runs: nothing here starts or stops it."""

    def __init__(self, kind: str, variable: str, address: str) -> None:
        self.kind = kind
        self.variable = variable
        self.address = address

    @property
    def bootstrap(self) -> str:
        """The address, as a Kafka server has it."""
        return self.address

    @property
    def url(self) -> str:
        """The address, as Redis and PostgreSQL servers have it."""
        return self.address

    @property
    def running(self) -> bool:
        return True

    def start(self) -> Self:
        """Do nothing: it runs."""
        return self

    def close(self) -> None:
        """Do nothing: it is not ours."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        pass

    def __repr__(self) -> str:
        return f"<ExistingServer {self.kind} named in {self.variable}>"

    def _refuse(self) -> None:
        raise ServerFailed(
            f"the {self.kind} named in {self.variable} is not ours to stop: unset that for this test"
        )

    stop = kill = pause = resume = restart = _refuse


@overload
def from_environment(kind: Literal["kafka"]) -> KafkaServer | ExistingServer: ...
@overload
def from_environment(kind: Literal["redis"]) -> RedisServer | ExistingServer: ...
@overload
def from_environment(kind: Literal["postgres"]) -> PostgresServer | ExistingServer: ...
def from_environment(kind: str) -> Server | ExistingServer:
    """The server that DSPARK_TEST_KAFKA_BOOTSTRAP, DSPARK_TEST_REDIS_URL or DSPARK_TEST_DATABASE_URL names.

    Without the variable it is a new server of our own, not yet started. Either way it is a context manager
    with `.bootstrap` (kafka) or `.url` (redis, postgres).
    """
    server = SERVERS[kind]
    address = os.environ.get(server.variable or "", "")
    return ExistingServer(server.kind, str(server.variable), address) if address else server()
