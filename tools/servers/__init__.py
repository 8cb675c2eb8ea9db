"""Real Kafka, Redis and PostgreSQL on free loopback ports, for the tests and for use by hand.

``python -m tools.servers`` (``make servers``) runs all three in the foreground; ``tools/servers/install.sh``
gets what they need.
"""

from tools.servers.base import Server, ServerFailed, ServerUnavailable
from tools.servers.environment import ExistingServer, from_environment
from tools.servers.kafka_server import KafkaServer
from tools.servers.postgres_server import PostgresServer
from tools.servers.redis_server import RedisSentinel, RedisServer

__all__ = [
    "ExistingServer",
    "KafkaServer",
    "PostgresServer",
    "RedisSentinel",
    "RedisServer",
    "Server",
    "ServerFailed",
    "ServerUnavailable",
    "from_environment",
]
