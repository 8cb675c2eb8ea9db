"""``serve``, ``collect`` and ``token`` as real processes."""

import datetime as dt
import json
import re
import signal
import socket
import ssl

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from calibrator.service.access import Role
from calibrator.service.access.tokens import create
from calibrator.store import Store
from tests.service_process import ServiceProcess


def token_for(folder, role=Role.OPERATOR):
    store = Store(f"sqlite:///{folder / 'store.db'}")
    store.migrate()
    text, _ = create(store, role, 1_700_000_000.0)
    store.close()
    return text


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def test_it_serves_the_loop_the_api_and_the_dashboard_and_ends_on_sigterm(tmp_path):
    with ServiceProcess(tmp_path, "serve", "--port", "0") as service:
        address = service.address()
        assert httpx.get(f"{address}/v1/me").json()["role"] == "viewer"
        assert httpx.get(f"{address}/v1/deployments").json()["items"] == []
        assert "<html" in httpx.get(f"{address}/").text
        assert httpx.get(f"{address}/v1/me", headers={"Host": "evil.example"}).status_code == 421
        assert "server" not in httpx.get(f"{address}/v1/me").headers
        assert service.end() == 0
        assert "service_stopped" in service.output()


def test_an_open_event_stream_does_not_keep_it_from_ending(tmp_path):
    with ServiceProcess(tmp_path, "serve", "--port", "0") as service:
        address = service.address()
        with httpx.stream("GET", f"{address}/v1/events", timeout=60.0) as stream:
            assert stream.status_code == 200
            service.process.send_signal(signal.SIGTERM)
            for _ in stream.iter_bytes():
                pass
        assert service.ended() == 0


def test_it_does_not_start_where_others_could_reach_it_without_a_token(tmp_path):
    with ServiceProcess(tmp_path, "serve", "--host", "0.0.0.0", "--port", "0") as service:
        assert service.ended() == 2
        assert "token create --role operator" in service.output()
    token_for(tmp_path)
    with ServiceProcess(tmp_path, "serve", "--host", "0.0.0.0", "--port", "0") as service:
        service.until("serving http://0.0.0.0:")
        assert service.end() == 0


def test_a_port_that_is_taken_is_one_line_and_2(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with ServiceProcess(tmp_path, "serve", "--port", str(port)) as service:
            assert service.ended() == 2
            assert f"error: --port: got 127.0.0.1:{port}, which cannot be listened on" in service.output()


def test_tokens_never_reach_the_log(tmp_path):
    token = token_for(tmp_path, Role.ADMIN)
    secret = token.split("_", 2)[2]
    with ServiceProcess(tmp_path, "serve", "--port", "0", log_level="debug", log_format="json") as service:
        address = service.address()
        for headers in (
            {"Authorization": f"Bearer {token}"},
            {"Authorization": f"bearer  {token}"},
            {"Authorization": token},
            {"Authorization": f"Basic {token}"},
            {"Authorization": f"Bearer {token}x"},
            {"X-Request-ID": token},
            {"Cookie": f"token={token}"},
        ):
            httpx.get(f"{address}/v1/me", headers=headers)
            httpx.get(f"{address}/v1/deployments/{token}?token={token}", headers=headers)
            httpx.post(f"{address}/v1/deployments", json={"name": token, "gamma": token}, headers=headers)
        httpx.request(
            "GET", f"{address}/v1/audit?cursor={token}", headers={"Authorization": f"Bearer {token}"}
        )
        assert service.end() == 0
        text = service.output()
    assert "request_done" in text
    assert secret not in text


def test_logs_are_json_with_fixed_events_and_request_ids(tmp_path):
    with ServiceProcess(tmp_path, "serve", "--port", "0", log_format="json") as service:
        address = service.address()
        httpx.get(f"{address}/v1/deployments/nobody", headers={"X-Request-ID": "req-1"})
        assert service.end() == 0
        lines = [json.loads(line) for line in service.output().splitlines() if line.startswith("{")]
    events = {line["event"]: line for line in lines}
    assert {"service_started", "service_stopped", "calibrator_stopped"} <= set(events)
    done = next(line for line in lines if line["event"] == "request_done")
    assert (done["request_id"], done["status"], done["method"]) == ("req-1", 404, "GET")
    assert isinstance(done["seconds"], float)
    assert done["subject"] == "local"
    assert done["at"].endswith("Z")
    assert {"at", "level", "logger", "event"} <= set(lines[0])


def test_a_change_is_audited_and_survives_a_restart(tmp_path):
    token = token_for(tmp_path, Role.ADMIN)
    headers = {"Authorization": f"Bearer {token}"}
    given = {"name": "chat", "gamma": 7, "fingerprint": "f"}
    with ServiceProcess(tmp_path, "serve", "--port", "0") as service:
        assert (
            httpx.post(f"{service.address()}/v1/deployments", json=given, headers=headers).status_code == 201
        )
        assert service.end(signal.SIGINT) == 0
    with ServiceProcess(tmp_path, "serve", "--port", "0") as service:
        trail = httpx.get(f"{service.address()}/v1/audit", headers=headers).json()["items"]
        assert [(entry["method"], entry["status"]) for entry in trail] == [("POST", 201)]


def certificate(folder):
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    begin = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(begin)
        .not_valid_after(begin + dt.timedelta(days=36_500))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "tls.crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "tls.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )


def test_it_serves_tls(tmp_path):
    certificate(tmp_path)
    files = ("--tls-cert-file", str(tmp_path / "tls.crt"), "--tls-key-file", str(tmp_path / "tls.key"))
    trust = ssl.create_default_context(cafile=str(tmp_path / "tls.crt"))
    with ServiceProcess(tmp_path, "serve", "--port", "0", *files) as service:
        address = service.address()
        assert address.startswith("https://")
        answer = httpx.get(f"{address.replace('127.0.0.1', 'localhost')}/v1/me", verify=trust)
        assert answer.status_code == 200


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--tls-cert-file", "none.crt", "--tls-key-file", "none.key"), "expected a certificate and its key"),
        (("--tls-cert-file", "none.crt"), "certificate and key file together"),
        (("--host", "no such host"), "--host: got .no such host."),
        (("--port", "70000"), "--port"),
        (("--database-url", "sqlite:////nowhere/store.db"), "DSPARK_DATABASE_URL: .*nowhere.*unable to open"),
    ],
)
def test_what_cannot_be_served_is_one_line(tmp_path, arguments, told):
    port = () if "--port" in arguments else ("--port", "0")
    with ServiceProcess(tmp_path, "serve", *port, *arguments) as service:
        assert service.ended() in (1, 2)
        assert re.search(rf"^error: .*{told}", service.output(), re.MULTILINE), service.output()


@pytest.mark.parametrize("command", ["serve", "collect"])
def test_a_database_that_is_down_is_waited_for_and_the_wait_ends_on_sigterm(tmp_path, command):
    url = f"postgresql://u:hidden-word@127.0.0.1:{free_port()}/nobody"
    settings = {"listen_port": 0} if command == "serve" else {}
    with ServiceProcess(tmp_path, command, **{**settings, "database_url": url}) as waiting:
        waiting.until("waiting_for what=database")
        assert waiting.end() == 0
        assert "hidden-word" not in waiting.output()


def test_a_bus_that_is_down_is_waited_for(tmp_path):
    settings = {"kafka_bootstrap": f"127.0.0.1:{free_port()}"}
    with ServiceProcess(tmp_path, "collect", **settings) as waiting:
        waiting.until("waiting_for what=bus")
        assert waiting.end() == 0


def test_a_parameter_store_that_is_down_does_not_keep_the_api_from_starting(tmp_path):
    settings = {"redis_url": f"redis://127.0.0.1:{free_port()}/0"}
    with ServiceProcess(tmp_path, "serve", "--port", "0", **settings) as service:
        assert httpx.get(f"{service.address()}/v1/deployments").status_code == 200
        assert service.end() == 0


def test_tokens_are_made_listed_and_revoked(tmp_path):
    def call(*arguments):
        with ServiceProcess(tmp_path, "token", *arguments) as made:
            return made.ended(), made.output()

    code, out = call("create", "--role", "operator", "--name", "deploy", "--expires-days", "90")
    assert code == 0
    token = re.search(r"^dspark_([0-9a-f]{12})_\S{43}$", out, re.MULTILINE)
    assert token is not None, out
    code, out = call("list", "--json")
    (listed,) = json.loads(out)
    assert (listed["id"], listed["role"], listed["usable"]) == (token[1], "operator", True)
    assert token[0].split("_", 2)[2] not in out
    assert call("revoke", token[1])[0] == 0
    assert call("revoke", token[1])[0] == 2
    code, out = call("list")
    assert "revoked" in out
    assert call("create", "--role", "emperor")[0] == 2
