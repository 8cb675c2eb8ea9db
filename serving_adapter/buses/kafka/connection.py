"""How to reach a Kafka cluster: addresses, TLS, SASL."""

from __future__ import annotations

import importlib.util
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from kafka import errors
from kafka.net.compat import KafkaNetClient

from serving_adapter.buses.kafka.diagnosis import why_unreachable
from serving_adapter.ports import TransportError

Client = TypeVar("Client")

BOOTSTRAP_MS = 3_000
"""How long a new client looks for the cluster before the call that needed it gives up."""

SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SASL_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
COMPRESSIONS = ("auto", "lz4", "zstd", "gzip", "snappy", "none")

REFUSED_FOR_GOOD = (
    errors.SaslAuthenticationFailedError,
    errors.AuthorizationError,
    errors.TopicAuthorizationFailedError,
    errors.GroupAuthorizationFailedError,
    errors.ClusterAuthorizationFailedError,
    errors.KafkaConfigurationError,
    errors.UnsupportedSaslMechanismError,
    errors.UnsupportedVersionError,
    errors.UnsupportedCodecError,
    FileNotFoundError,
    PermissionError,
    ValueError,
)
"""Waiting does not mend these: somebody has to change a setting or a permission."""


@dataclass(frozen=True, slots=True)
class KafkaConnection:
    """Where the cluster is and who we are.

    Parameters
    ----------
    bootstrap
        ``host:port``, several separated by commas.
    security_protocol
        ``PLAINTEXT``, ``SSL``, ``SASL_PLAINTEXT`` or ``SASL_SSL``.
    sasl_mechanism
        ``PLAIN``, ``SCRAM-SHA-256`` or ``SCRAM-SHA-512``.
    ca_file, cert_file, key_file
        PEM files; without a CA file the machine's own authorities are trusted.
    compression
        ``lz4``, ``zstd``, ``gzip``, ``snappy``, ``none``, or ``auto``: lz4 where its package is there,
        else gzip.
    """

    bootstrap: str
    security_protocol: str = "PLAINTEXT"
    sasl_mechanism: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    compression: str = "auto"

    def __post_init__(self) -> None:
        if not self.servers():
            raise ValueError(f"kafka_bootstrap: got {self.bootstrap!r}, expected host:port, ...")
        for name, value, allowed in (
            ("kafka_security_protocol", self.security_protocol, SECURITY_PROTOCOLS),
            ("kafka_sasl_mechanism", self.sasl_mechanism, ("", *SASL_MECHANISMS)),
            ("kafka_compression", self.compression, ("", *COMPRESSIONS)),
        ):
            if value not in allowed:
                raise ValueError(f"{name}: got {value!r}, expected one of {', '.join(filter(None, allowed))}")

    def servers(self) -> list[tuple[str, int]]:
        """Hosts and ports to begin with; ValueError naming the address that is none."""
        found = []
        for address in filter(None, (part.strip() for part in self.bootstrap.split(","))):
            host, _, port = address.rpartition(":")
            if not host or not port.isdigit():
                raise ValueError(f"kafka_bootstrap: got {address!r}, expected host:port")
            found.append((host.strip("[]"), int(port)))
        return found

    @property
    def tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.security_protocol.endswith("SSL")

    @property
    def sasl(self) -> bool:
        """Whether we log in with an account."""
        return self.security_protocol.startswith("SASL")

    def client_settings(self) -> dict[str, Any]:
        """Keyword arguments that every kafka-python client takes."""
        settings: dict[str, Any] = {
            "bootstrap_servers": [part.strip() for part in self.bootstrap.split(",") if part.strip()],
            "client_id": f"dspark-{socket.gethostname()}",
            "security_protocol": self.security_protocol,
            "bootstrap_timeout_ms": BOOTSTRAP_MS,
            # 30 s by default: a broker that is back would be noticed late.
            "reconnect_backoff_max_ms": 1_000,
        }
        files = {"ssl_cafile": self.ca_file, "ssl_certfile": self.cert_file, "ssl_keyfile": self.key_file}
        settings |= {name: file for name, file in files.items() if file}
        if self.sasl:
            settings |= {
                "sasl_mechanism": self.sasl_mechanism or "SCRAM-SHA-512",
                "sasl_plain_username": self.username,
                "sasl_plain_password": self.password,
            }
        return settings

    def compression_type(self) -> str | None:
        """What kafka-python calls the compression."""
        if self.compression in ("", "auto"):
            return "lz4" if importlib.util.find_spec("lz4") else "gzip"
        return None if self.compression == "none" else self.compression

    def open(self, client: Callable[..., Client], **settings: Any) -> Client:
        """Make a kafka-python client and connect it.

        A constructor that fails leaves its network thread behind, so the parts are kept in sight and
        closed here.

        Raises
        ------
        TransportError
            The cluster cannot be reached, or does not let us in.
        """
        networks: list[KafkaNetClient] = []

        def network(*args: Any, **kwargs: Any) -> KafkaNetClient:
            networks.append(KafkaNetClient(*args, **kwargs))
            return networks[-1]

        try:
            return client(**(self.client_settings() | {"kafka_client": network} | settings))
        except (errors.KafkaError, OSError, ValueError, RuntimeError, AssertionError) as error:
            for started in networks:
                started.close()
            if not isinstance(error, errors.KafkaTimeoutError):
                raise self.trouble(error) from error
            raise TransportError(f"Kafka cannot be reached: {self.why_unreachable()}") from error

    def why_unreachable(self) -> str:
        """Say how far a connection gets with each server, after an attempt has failed."""
        return why_unreachable(
            self.servers(),
            tls=self.tls,
            sasl=self.sasl,
            ca_file=self.ca_file,
            cert_file=self.cert_file,
            key_file=self.key_file,
        )

    def trouble(self, error: BaseException, doing: str = "") -> TransportError:
        """Describe an error for whoever reads the log; the password is never part of it."""
        what = f" ({doing})" if doing else ""
        return TransportError(f"Kafka at {self.bootstrap}{what}: {error or type(error).__name__}")
