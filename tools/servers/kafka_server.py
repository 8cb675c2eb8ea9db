"""Apache Kafka: one KRaft node that is broker and controller."""

import base64
import os
import re
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from kafka.admin import KafkaAdminClient

from tools.servers.base import Server, ServerFailed, free_port
from tools.servers.certificates import create_certificate

HERE = Path(__file__).resolve().parent
JAVA_OPTIONS = [
    "-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData",
    "-Djava.awt.headless=true", "-Dlog4j2.disableJmx=true",
    f"-Dlog4j2.configurationFile={HERE / 'log4j2.properties'}",
]  # fmt: skip
SECURE_LISTENERS = ("SASL_PLAINTEXT", "SSL", "SASL_SSL")


class KafkaServer(Server):
    """A single Kafka node; topics are not created by themselves.

    Parameters
    ----------
    secure
        Listen on SASL_PLAINTEXT, SSL and SASL_SSL too. SASL takes PLAIN and SCRAM-SHA-512.
    username, password
        The SASL account.
    settings
        Broker settings that override the ones below.
    """

    kind: ClassVar[str] = "Kafka"
    variable: ClassVar[str | None] = "DSPARK_TEST_KAFKA_BOOTSTRAP"

    def __init__(
        self,
        *,
        secure: bool = False,
        username: str = "dspark",
        password: str = "dspark-secret",
        settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self.username = username
        self.password = password
        self._settings = dict(settings or {})
        self._controller_port = free_port()
        self._ports = {"PLAINTEXT": self.port}
        if secure:
            self._ports |= {name: free_port() for name in SECURE_LISTENERS}
        self._java = ""
        self._jars: Path | None = None

    @property
    def bootstrap(self) -> str:
        """``host:port`` of the listener without security."""
        return self.bootstrap_for("PLAINTEXT")

    def bootstrap_for(self, protocol: str) -> str:
        """``host:port`` of the listener for PLAINTEXT, SASL_PLAINTEXT, SSL or SASL_SSL."""
        return f"{self.host}:{self._ports[protocol]}"

    @property
    def ca_file(self) -> Path:
        """The certificate that clients of SSL and SASL_SSL trust."""
        return self.folder / "tls-certificate.pem"

    def client_settings(self, protocol: str, mechanism: str = "SCRAM-SHA-512") -> dict[str, object]:
        """Keyword arguments for a kafka-python client of that listener."""
        settings: dict[str, object] = {
            "bootstrap_servers": self.bootstrap_for(protocol),
            "security_protocol": protocol,
        }
        if protocol.endswith("SSL"):
            settings["ssl_cafile"] = str(self.ca_file)
        if protocol.startswith("SASL"):
            settings |= {
                "sasl_mechanism": mechanism,
                "sasl_plain_username": self.username,
                "sasl_plain_password": self.password,
            }
        return settings

    def _prepare(self) -> None:
        if "SSL" in self._ports:
            create_certificate(self._program("openssl"), self.folder)
        (self.folder / "tmp").mkdir()
        (self.folder / "server.properties").write_text(
            "".join(f"{name}={value}\n" for name, value in self._broker_settings().items())
        )
        users = []
        if "SASL_SSL" in self._ports:
            users = ["--add-scram", f"SCRAM-SHA-512=[name={self.username},password={self.password}]"]
        cluster = base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=").replace("-", "_")
        self._run(
            *self._java_command("kafka.tools.StorageTool"),
            "format", "-t", cluster, "-c", str(self.folder / "server.properties"), *users,
        )  # fmt: skip

    def _command(self) -> list[str]:
        return [*self._java_command("kafka.Kafka"), str(self.folder / "server.properties")]

    def _probe(self) -> None:
        # The client retries and logs by itself, so it is asked only once the port is open.
        socket.create_connection((self.host, self.port), timeout=1).close()
        with KafkaAdminClient(bootstrap_servers=self.bootstrap, request_timeout_ms=10_000) as admin:
            if not admin.describe_cluster()["brokers"]:
                raise ServerFailed("Kafka has not taken up its work as a broker")

    def _java_command(self, main: str) -> list[str]:
        if self._jars is None:
            self._java = self._find_java()
            self._jars = self._find_jars()
        temporary = f"-Djava.io.tmpdir={self.folder / 'tmp'}"  # native libraries are unpacked there
        return [self._java, *JAVA_OPTIONS, temporary, "-cp", f"{self._jars}/*", main]

    def _find_java(self) -> str:
        java = self._program("java")
        said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
        version = re.search(r'version "(\d+)', said)
        if version is None or int(version[1]) < 17:
            found = version[1] if version else "an unknown version"
            raise self._unavailable(f"it needs Java 17 or newer and {java} is {found}")
        return java

    def _find_jars(self) -> Path:
        found = subprocess.run([HERE / "kafka-jars.sh"], capture_output=True, text=True, check=False)
        if found.returncode != 0:
            raise self._unavailable(found.stderr.strip())
        return Path(found.stdout.strip())

    def _broker_settings(self) -> dict[str, str]:
        listeners = ",".join(f"{name}://{self.host}:{port}" for name, port in self._ports.items())
        settings = {
            "node.id": "1",
            "process.roles": "broker,controller",
            "controller.quorum.voters": f"1@{self.host}:{self._controller_port}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listeners": f"{listeners},CONTROLLER://{self.host}:{self._controller_port}",
            "advertised.listeners": listeners,
            "listener.security.protocol.map": ",".join(
                [f"{name}:{name}" for name in self._ports] + ["CONTROLLER:PLAINTEXT"]
            ),
            "log.dirs": str(self.folder / "data"),
            "auto.create.topics.enable": "false",
            "default.replication.factor": "1",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "share.coordinator.state.topic.num.partitions": "1",
            "group.initial.rebalance.delay.ms": "0",
            "group.min.session.timeout.ms": "1000",  # so that a test sees a dead member leave soon
            # A node that comes back waits for the session of its former self to end: 9 s by default.
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "500",
            "log.cleaner.dedupe.buffer.size": str(16 * 2**20),  # 128 MiB of the heap by default
            "num.network.threads": "2",
            "num.io.threads": "4",
        }
        if "SSL" in self._ports:
            plain = "org.apache.kafka.common.security.plain.PlainLoginModule"
            scram = "org.apache.kafka.common.security.scram.ScramLoginModule"
            settings |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(self.folder / "tls-both.pem"),
                "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            }
            for listener in ("sasl_plaintext", "sasl_ssl"):
                prefix = f"listener.name.{listener}"
                settings[f"{prefix}.plain.sasl.jaas.config"] = (
                    f'{plain} required user_{self.username}="{self.password}";'
                )
                settings[f"{prefix}.scram-sha-512.sasl.jaas.config"] = f"{scram} required;"
        return settings | self._settings
