"""Every option of the product, once: the same name in environment, file and command line.

``DSPARK_KAFKA_BOOTSTRAP`` in the environment is ``kafka_bootstrap`` in the TOML file that ``DSPARK_CONFIG``
names and ``--kafka-bootstrap`` on a command line. A command line wins over the environment, that over the
file, and that over the default.
"""

from __future__ import annotations

import os
import re
import socket
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from serving_adapter.contract.events import DEAD_LETTER_TOPIC, TOPIC
from serving_adapter.redis_url import redis_url_problem
from serving_adapter.unknown_variables import warn_of_unknown_variables

PREFIX = "DSPARK_"
CONFIG_VARIABLE = "DSPARK_CONFIG"
MASK = "***"
_SECRETS = frozenset({"kafka_password", "signing_key", "salt"})
_URLS = frozenset({"database_url", "redis_url"})

Probability = Annotated[float, Meta(ge=0.0, le=1.0)]
Positive = Annotated[float, Meta(gt=0.0)]


class SettingsError(ValueError):
    """An option that cannot be used; the message names the variable and the value."""

    def __init__(self, name: str, value: object, problem: str) -> None:
        shown = MASK if name in _SECRETS else mask_url(str(value)) if name in _URLS else repr(value)
        super().__init__(f"{PREFIX}{name.upper()}: got {shown}, {problem}")
        self.name = name


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of pods, collectors and calibrator. Make one with :func:`load_settings`."""

    # Who this is.
    deployment: Annotated[
        str, Meta(description="Name of the deployment: replicas that share parameters.", min_length=1)
    ] = "default"
    replica: Annotated[str, Meta(description="Name of this replica.", min_length=1, max_length=128)] = (
        msgspec.field(default_factory=socket.gethostname)
    )
    ring: Annotated[
        str, Meta(description="Shared memory of engine and sidecar: a name, or a path.", min_length=1)
    ] = "dspark"
    salt: Annotated[
        str, Meta(description="Goes into request hashes and exploration; the same on all replicas.")
    ] = ""

    # Event bus.
    kafka_bootstrap: Annotated[
        str, Meta(description="Kafka brokers, host:port with commas; empty uses the embedded bus.")
    ] = ""
    kafka_topic: Annotated[str, Meta(description="Topic of verify events.", min_length=1)] = TOPIC
    kafka_dead_letter_topic: Annotated[
        str, Meta(description="Topic of messages that could not be decoded.", min_length=1)
    ] = DEAD_LETTER_TOPIC
    kafka_group: Annotated[str, Meta(description="Consumer group of the collectors.", min_length=1)] = (
        "dspark-collectors"
    )
    kafka_partitions: Annotated[int, Meta(description="Partitions of a topic we create.", ge=1)] = 12
    kafka_retention_hours: Annotated[Positive, Meta(description="Retention of a topic we create.")] = 24.0
    kafka_security_protocol: Annotated[
        Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"], Meta(description="How to talk to Kafka.")
    ] = "PLAINTEXT"
    kafka_sasl_mechanism: Annotated[
        Literal["", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"],
        Meta(description="SASL mechanism; empty takes SCRAM-SHA-512."),
    ] = ""
    kafka_username: Annotated[str, Meta(description="SASL user.")] = ""
    kafka_password: Annotated[str, Meta(description="SASL password.")] = ""
    kafka_ca_file: Annotated[str, Meta(description="Certificate authority of the brokers, PEM.")] = ""
    kafka_cert_file: Annotated[str, Meta(description="Client certificate, PEM.")] = ""
    kafka_key_file: Annotated[str, Meta(description="Key of the client certificate, PEM.")] = ""
    kafka_compression: Annotated[
        Literal["auto", "lz4", "zstd", "snappy", "gzip", "none"],
        Meta(description="Compression of messages; auto takes lz4 where it is installed, else gzip."),
    ] = "auto"
    bus_path: Annotated[str, Meta(description="File of the embedded bus.", min_length=1)] = "dspark-bus.db"

    # Parameter store.
    redis_url: Annotated[
        str,
        Meta(description="redis://, rediss://, or with +sentinel or +cluster; empty uses the embedded one."),
    ] = ""
    redis_ca_file: Annotated[str, Meta(description="Certificate authority of the Redis server, PEM.")] = ""
    signing_key: Annotated[
        str, Meta(description="HMAC key of parameter documents; when set, unsigned ones are refused.")
    ] = ""

    # Pod: sidecar loops.
    encoding: Annotated[Literal["msgpack", "json"], Meta(description="Encoding of verify events.")] = (
        "msgpack"
    )
    flush_seconds: Annotated[Positive, Meta(description="Send rows after this time ...")] = 0.05
    flush_bytes: Annotated[
        int, Meta(description="... or at this size, whichever comes first.", ge=1024, le=1048576)
    ] = 65536
    poll_seconds: Annotated[Positive, Meta(description="Read the parameter document this often.")] = 5.0
    report_seconds: Annotated[Positive, Meta(description="Repeat a replica's report this often.")] = 10.0
    report_expire_seconds: Annotated[
        Positive, Meta(description="Forget a replica that has not reported for this long.")
    ] = 60.0
    drain_seconds: Annotated[Positive, Meta(description="Time to finish after SIGTERM.")] = 10.0

    # Store and calibration.
    database_url: Annotated[str, Meta(description="SQLAlchemy URL of the store.", min_length=1)] = (
        "sqlite:///dspark.db"
    )
    window_seconds: Annotated[Positive, Meta(description="Length of a window of sums.")] = 60.0
    half_life_seconds: Annotated[Positive, Meta(description="Age at which a row counts half.")] = 3600.0
    sample_rows: Annotated[
        int, Meta(description="Rows kept per deployment, segment and sampling bucket.", ge=100)
    ] = 20_000
    retention_days: Annotated[Positive, Meta(description="Keep windows for this long.")] = 30.0
    audit_days: Annotated[Positive, Meta(description="Keep the audit for this long.")] = 400.0
    rollout_days: Annotated[Positive, Meta(description="Keep rollouts for this long after their end.")] = (
        400.0
    )
    refresh_seconds: Annotated[Positive, Meta(description="Time between two fits.")] = 300.0
    evaluate_seconds: Annotated[Positive, Meta(description="Time between two looks for drift.")] = 10.0
    job_lease_seconds: Annotated[
        float, Meta(description="Take over a run whose service has been silent for this long.", ge=1.0)
    ] = 20.0
    job_threads: Annotated[int, Meta(description="Runs at once in one service.", ge=1, le=64)] = 1
    explore: Annotated[Probability, Meta(description="Probability of verifying a round in full.")] = 0.01
    share: Annotated[
        float, Meta(description="Share of its requests that a replica emits.", gt=0.0, le=1.0)
    ] = 1.0
    bins: Annotated[int, Meta(description="Bins of the expected calibration error.", ge=1, le=1000)] = 15
    form: Annotated[
        Literal["auto", "temperature", "affine"],
        Meta(description="Form to fit; auto takes the affine one where it is better on held-out rows."),
    ] = "auto"
    max_step: Annotated[Positive, Meta(description="Largest change of log temperature in one refresh.")] = 0.5
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="Least severe events that are logged.")
    ] = "info"
    log_format: Annotated[
        Literal["text", "json"], Meta(description="One event per line for people, or as JSON.")
    ] = "text"

    # Service: REST API and dashboard. (No "port" or "host": Kubernetes sets DSPARK_PORT by itself where a
    # service is called dspark.)
    listen_host: Annotated[
        str, Meta(description="Address to listen on; anything but loopback needs tokens.", min_length=1)
    ] = "127.0.0.1"
    listen_port: Annotated[
        int, Meta(description="Port to listen on; 0 takes a free one.", ge=0, le=65535)
    ] = 8080
    allowed_hosts: Annotated[
        str,
        Meta(
            description="Host names, with commas, that are answered; empty: on loopback its names, else any."
        ),
    ] = ""
    local_role: Annotated[
        Literal["viewer", "operator", "admin"],
        Meta(description="Role of callers without a token, on loopback and while no token was ever made."),
    ] = "viewer"
    tls_cert_file: Annotated[str, Meta(description="Certificate of the service, PEM.")] = ""
    tls_key_file: Annotated[str, Meta(description="Key of that certificate, PEM.")] = ""
    oidc_issuer: Annotated[
        str, Meta(description="Identity provider whose JSON Web Tokens are taken (OpenID Connect).")
    ] = ""
    oidc_audience: Annotated[str, Meta(description="Audience that those tokens must name.")] = ""
    oidc_jwks_url: Annotated[
        str, Meta(description="Keys of the identity provider; empty asks its discovery document.")
    ] = ""
    oidc_role_claim: Annotated[
        str, Meta(description="Claim with viewer, operator or admin; dots go down.", min_length=1)
    ] = "roles"
    database_pool: Annotated[int, Meta(description="Database connections of the service.", ge=1, le=500)] = 10
    database_wait_seconds: Annotated[
        Positive, Meta(description="Wait for a free connection this long, then answer 503.")
    ] = 2.0

    @property
    def bootstrap_servers(self) -> list[str]:
        """Kafka brokers as a list."""
        return [server.strip() for server in self.kafka_bootstrap.split(",") if server.strip()]

    @property
    def signing_key_bytes(self) -> bytes | None:
        """HMAC key, None when none is set."""
        return self.signing_key.encode() or None

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.masked().items())
        return f"Settings({shown})"

    def __rich_repr__(self) -> Any:
        yield from self.masked().items()

    def masked(self) -> dict[str, Any]:
        """All options by name, with secrets and passwords in URLs replaced."""
        shown: dict[str, Any] = {}
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if name in _SECRETS and value:
                value = MASK
            elif name in _URLS:
                value = mask_url(value)
            shown[name] = value
        return shown


def load_settings(
    overrides: Mapping[str, Any] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """Settings from overrides, environment, the file named in ``DSPARK_CONFIG``, and defaults.

    A variable with our prefix that is no option is ignored, with a warning in the log.

    Parameters
    ----------
    overrides
        Options of a command line by name; None stands for one that was not given.
    environment
        ``os.environ`` when left out.

    Raises
    ------
    SettingsError
        Naming the variable and the value.
    """
    environment = os.environ if environment is None else environment
    given: dict[str, Any] = {}
    if environment.get(CONFIG_VARIABLE):
        given.update(_from_file(environment[CONFIG_VARIABLE]))
    variables = {PREFIX + name.upper(): name for name in Settings.__struct_fields__}
    given.update({name: environment[v] for v, name in variables.items() if v in environment})
    warn_of_unknown_variables(environment, variables)
    for name, value in (overrides or {}).items():
        if name not in Settings.__struct_fields__:
            raise SettingsError(name, value, "expected a known option")
        if value is not None:
            given[name] = value
    types = option_types()
    settings = Settings(**{name: _convert(name, value, types[name]) for name, value in given.items()})
    _check(settings)
    return settings


def option_types() -> dict[str, Any]:
    """Type of every option, with its constraints."""
    return get_type_hints(Settings, include_extras=True)


def option_description(name: str) -> str:
    """What an option means."""
    kind = option_types()[name]
    while get_origin(kind) is Annotated:
        inner, *marks = get_args(kind)
        for mark in marks:
            if isinstance(mark, Meta) and mark.description:
                return mark.description
        kind = inner
    return ""


def mask_url(url: str) -> str:
    """Replace the passwords in a URL.

    >>> mask_url("redis://me:secret@host:6379/0")
    'redis://me:***@host:6379/0'
    """
    hidden = re.sub(r"(://[^/@:]*):.*@", rf"\1:{MASK}@", url)
    return re.sub(r"(password=)[^&]*", rf"\1{MASK}", hidden, flags=re.IGNORECASE)


def _from_file(path: str) -> dict[str, Any]:
    try:
        with Path(path).open("rb") as file:
            table = tomllib.load(file)
    except OSError as error:
        raise SettingsError("config", path, f"expected a file that can be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError("config", path, f"expected TOML ({error})") from error
    for name, value in table.items():
        if name not in Settings.__struct_fields__:
            raise SettingsError(name, value, f"expected a known option in {path}")
    return table


def _convert(name: str, value: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        expected = str(error).replace("Expected", "expected", 1).replace("`", "")
        if expected.startswith("Invalid enum value"):
            choices = (repr(choice) for choice in get_args(get_args(kind)[0]))
            expected = f"expected one of {', '.join(choices)}"
        raise SettingsError(name, value, expected) from None


def _check(settings: Settings) -> None:
    """Relations between options."""
    names = (("deployment", settings.deployment), ("replica", settings.replica))
    for name, text in names:
        if len(text) > 128 or any(ord(c) < 33 or c in "{}" for c in text):
            raise SettingsError(name, text, "expected 1 to 128 printable characters, no spaces or braces")
    sasl = settings.kafka_security_protocol.startswith("SASL")
    if sasl and not (settings.kafka_username and settings.kafka_password):
        raise SettingsError(
            "kafka_username", settings.kafka_username, "expected a user and a password for SASL"
        )
    if bool(settings.kafka_cert_file) != bool(settings.kafka_key_file):
        raise SettingsError(
            "kafka_key_file", settings.kafka_key_file, "expected certificate and key file together"
        )
    if bool(settings.tls_cert_file) != bool(settings.tls_key_file):
        raise SettingsError(
            "tls_key_file", settings.tls_key_file, "expected certificate and key file together"
        )
    if bool(settings.oidc_issuer) != bool(settings.oidc_audience):
        raise SettingsError("oidc_audience", settings.oidc_audience, "expected issuer and audience together")
    problem = redis_url_problem(settings.redis_url) if settings.redis_url else ""
    if problem:
        raise SettingsError("redis_url", settings.redis_url, problem)
    if settings.report_expire_seconds <= settings.report_seconds:
        raise SettingsError(
            "report_expire_seconds",
            settings.report_expire_seconds,
            f"expected more than report_seconds = {settings.report_seconds:g}",
        )
