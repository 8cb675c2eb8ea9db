"""Traces go where the usual variables say, and nowhere without them."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
import pytest

from calibrator.service.web.traces import set_up_traces
from tests.service_process import ServiceProcess


@pytest.fixture
def collector():
    """A receiver of OTLP over HTTP."""
    received = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            received.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", received
    server.shutdown()
    server.server_close()


def test_requests_are_traced_to_the_collector_that_the_environment_names(tmp_path, monkeypatch, collector):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    endpoint, received = collector
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    with ServiceProcess(tmp_path, "serve", "--port", "0") as service:
        address = service.address()
        httpx.get(f"{address}/v1/deployments", headers={"Authorization": "Bearer dspark_0_hidden-word"})
        assert service.end() == 0
        assert "traces_on" in service.output()
    assert {path for path, _ in received} == {"/v1/traces"}
    sent = b"".join(body for _, body in received)
    assert b"dspark-calibrator" in sent
    assert b"/healthz" in sent
    assert b"hidden-word" not in sent


def test_without_an_endpoint_nothing_is_set_up():
    assert set_up_traces({}) is False
    disabled = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"}
    assert set_up_traces(disabled) is False
