"""Reaching a Kafka cluster: TLS, accounts, wrong settings, nobody there."""

import threading
import time
from collections.abc import Iterator

import pytest

from serving_adapter.buses.kafka import KafkaConnection, KafkaSink, KafkaSource, TopicPlan, create_topics
from serving_adapter.ports import AssignmentListener, OutgoingMessage, TransportError
from tests.buses import read
from tools.servers import KafkaServer

DEADLINE = 90.0
FROM_THE_BEGINNING = AssignmentListener(lambda _partitions: {})


@pytest.fixture(scope="module")
def secure() -> Iterator[KafkaServer]:
    with KafkaServer(secure=True) as server:
        create_topics(KafkaConnection(server.bootstrap), [TopicPlan("events", 1, 3_600_000)])
        yield server


@pytest.mark.servers
@pytest.mark.parametrize(
    ("protocol", "mechanism"),
    [
        ("SSL", ""),
        ("SASL_PLAINTEXT", "SCRAM-SHA-512"),
        ("SASL_SSL", "PLAIN"),
        ("SASL_SSL", "SCRAM-SHA-512"),
    ],
)
def test_certificates_and_accounts_let_us_in(secure: KafkaServer, protocol: str, mechanism: str) -> None:
    connection = KafkaConnection(
        secure.bootstrap_for(protocol),
        security_protocol=protocol,
        sasl_mechanism=mechanism,
        username=secure.username if mechanism else "",
        password=secure.password if mechanism else "",
        ca_file=str(secure.ca_file) if protocol.endswith("SSL") else "",
    )
    sink = KafkaSink(connection, "events")
    value = f"{protocol} {mechanism}".encode()
    assert sink.publish([OutgoingMessage(b"k", value)]) == 1
    sink.close()
    source = KafkaSource(connection, "events", f"{protocol}-{mechanism}", FROM_THE_BEGINNING)
    found: list[bytes] = []
    deadline = time.monotonic() + DEADLINE
    while value not in found and time.monotonic() < deadline:
        found += [m.value for m in source.poll(0.2)]
    assert value in found
    source.close()


@pytest.mark.servers
@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"security_protocol": "SASL_SSL", "password": "mistaken"}, "wrong user, password or SASL mechanism"),
        ({"security_protocol": "SASL_SSL", "ca_file": ""}, "certificate verify failed"),
        ({"security_protocol": "SASL_SSL", "ca_file": "/none.pem"}, "certificate files /none.pem"),
        ({"security_protocol": "SASL_PLAINTEXT"}, "does not let us in"),
    ],
)
def test_a_connection_that_fails_says_how_far_it_got(
    secure: KafkaServer, settings: dict[str, str], complaint: str
) -> None:
    right = {
        "bootstrap": secure.bootstrap_for("SASL_SSL"),
        "sasl_mechanism": "SCRAM-SHA-512",
        "username": secure.username,
        "password": secure.password,
        "ca_file": str(secure.ca_file),
    }
    sink = KafkaSink(KafkaConnection(**(right | settings)), "events")
    before = threading.active_count()
    with pytest.raises(TransportError, match=complaint) as refused:
        sink.publish([OutgoingMessage(b"k", b"v")])
    assert "mistaken" not in str(refused.value)
    assert secure.password not in str(refused.value)
    assert threading.active_count() <= before


def test_a_cluster_that_nobody_runs_is_reported_in_bounded_time() -> None:
    nowhere = KafkaConnection("127.0.0.1:9")
    sink = KafkaSink(nowhere, "events")
    with pytest.raises(TransportError, match=r"127\.0\.0\.1:9: no connection"):
        sink.publish([OutgoingMessage(b"k", b"v")])
    source = KafkaSource(nowhere, "events", "g", FROM_THE_BEGINNING, unreachable_seconds=4.0)
    before = threading.active_count()
    assert source.poll(0.0) == []  # not yet: it may come back
    with pytest.raises(TransportError, match=r"127\.0\.0\.1:9: no connection"):
        read(source, 1)
    assert threading.active_count() <= before + 1
    source.close()


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"bootstrap": " , "}, "kafka_bootstrap: got ' , '"),
        ({"bootstrap": "host"}, "kafka_bootstrap: got 'host', expected host:port"),
        ({"bootstrap": "h:1,i:x"}, "kafka_bootstrap: got 'i:x'"),
        ({"bootstrap": "h:1", "security_protocol": "TLS"}, "kafka_security_protocol: got 'TLS'"),
        ({"bootstrap": "h:1", "sasl_mechanism": "GSSAPI"}, "kafka_sasl_mechanism: got 'GSSAPI'"),
        ({"bootstrap": "h:1", "compression": "rar"}, "kafka_compression: got 'rar'"),
    ],
)
def test_a_wrong_setting_is_named_with_its_value(settings: dict[str, str], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        KafkaConnection(**settings)


def test_the_password_is_not_shown() -> None:
    assert "secret" not in repr(KafkaConnection("h:1", username="me", password="secret"))
