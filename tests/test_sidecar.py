"""The sidecar: both loops as threads, and as a process that drains when it is told to end."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from serving_adapter.adapter import ServingAdapter
from serving_adapter.contract import ParameterDocument, encode_document, seal
from serving_adapter.contract.events import CONTENT_TYPE_MSGPACK, decode
from serving_adapter.ports import TransportError
from serving_adapter.settings import load_settings
from serving_adapter.sidecar import OPTIONS, Sidecar, main
from tests.rings import GAMMA, IDENTITY, a_ring_name, wait_until

ROOT = Path(__file__).parent.parent


class Sink:
    def __init__(self):
        self.rows = []

    def publish(self, messages):
        for message in messages:
            batch = decode(message.value, CONTENT_TYPE_MSGPACK)
            if batch.rounds is not None:
                self.rows += batch.rounds.request.tolist()
        return len(messages)

    def close(self):
        pass


class Store:
    def __init__(self, payload=None):
        self.payload = payload
        self.reports = []

    def read(self, deployment):
        return self.payload

    def candidate(self, deployment):
        return None

    def wait_for_change(self, deployment, timeout):
        return False

    def report(self, deployment, report, expire_seconds):
        self.reports.append(report)

    def close(self):
        pass


@pytest.fixture
def ring():
    with a_ring_name() as name:
        yield name


def an_adapter(ring):
    return ServingAdapter(IDENTITY, "chat", "pod-1", ring, rounds_capacity=4096, steps_capacity=64)


def observe(adapter, first, rows):
    adapter.observe(
        np.zeros((rows, GAMMA), np.float32),
        np.zeros(rows, np.uint8),
        request=np.arange(first, first + rows, dtype=np.uint64),
    )


def settings(ring, **options):
    return load_settings({"ring": ring, "deployment": "chat", "replica": "pod-1", **options}, environment={})


def test_rows_out_and_parameters_in(ring):
    document = ParameterDocument(
        deployment="chat",
        fingerprint="",
        version=4,
        gamma=GAMMA,
        form="temperature",
        temperatures=[2.0] * GAMMA,
        offsets=[0.0] * GAMMA,
        created_at="2026-01-01T00:00:00Z",
    )
    sink, store = Sink(), Store(encode_document(seal(document)))
    sidecar = Sidecar(settings(ring), open_sink=lambda: sink, open_store=lambda: store)
    sidecar.start()
    adapter = an_adapter(ring)
    observe(adapter, 0, 10)
    wait_until(lambda: adapter.current().version == 4)
    adapter.applied(4)
    wait_until(lambda: store.reports and store.reports[-1].applied == 4)
    observe(adapter, 10, 10)
    assert sidecar.stop()
    assert sink.rows == list(range(20))
    assert sidecar.counters()["forwarder"]["rounds"] == 20
    assert sidecar.counters()["subscriber"]["mirrored"] == 1


def test_transports_that_are_not_there_yet_are_tried_again(ring):
    sink, tries = Sink(), []

    def later():
        tries.append(1)
        if len(tries) < 3:
            raise TransportError("not yet")
        return sink

    sidecar = Sidecar(settings(ring), open_sink=later, open_store=Store)
    sidecar.start()
    observe(an_adapter(ring), 0, 5)
    wait_until(lambda: sink.rows == list(range(5)))
    assert sidecar.stop()


def test_a_sidecar_whose_bus_stays_away_still_ends(ring):
    def never():
        raise TransportError("never")

    sidecar = Sidecar(settings(ring, drain_seconds=0.2), open_sink=never, open_store=never)
    sidecar.start()
    observe(an_adapter(ring), 0, 5)
    sidecar.stop()


def test_wrong_options_end_with_one_line_and_code_2(capsys, monkeypatch):
    monkeypatch.setenv("DSPARK_FLUSH_BYTES", "few")
    assert main([]) == 2
    assert capsys.readouterr().err.startswith("DSPARK_FLUSH_BYTES: got 'few'")


def test_help_names_every_option_and_no_secret(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    for name in OPTIONS:
        assert f"--{name.replace('_', '-')}" in shown
    assert "password" not in shown.lower().replace("passwords", "")


@pytest.mark.faults
def test_a_process_told_to_end_drains_first(ring, tmp_path):
    bus = tmp_path / "bus.db"
    command = [sys.executable, "-m", "serving_adapter.sidecar", "--ring", ring, "--deployment", "chat"]
    environment = os.environ | {
        "DSPARK_BUS_PATH": str(bus),
        "DSPARK_FLUSH_SECONDS": "3600",
        "DSPARK_REDIS_URL": "redis://127.0.0.1:1/0",
    }
    adapter = an_adapter(ring)
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) as sidecar:
        try:
            # Attached once the lock of the reader is taken; it would flush in an hour.
            wait_until(lambda: adapter.ring.layout.segment.is_locked(1))
            observe(adapter, 0, 100)
            sidecar.send_signal(signal.SIGTERM)
            said = sidecar.communicate(timeout=60)[1]
        finally:
            sidecar.kill()
    assert sidecar.returncode == 0, said
    assert "rounds=100" in said
    assert bus.exists()


def test_a_pod_loads_no_service_library():
    code = (
        "import sys, serving_adapter.sidecar, serving_adapter.adapter\n"
        "print([m for m in ('scipy', 'sklearn', 'sqlalchemy', 'fastapi', 'typer', 'kafka', 'redis', \n"
        "       'torch', 'calibrator', 'collectors') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://cache:6379", "expected a URL such as redis://host:6379/0"),
        ("redis://cache:port", "expected host:port with a number for the port, not 'port'"),
        ("redis://cache:99999/0", "expected a port in 1 to 65535, not 99999"),
    ],
)
def test_a_store_that_can_never_be_reached_ends_the_sidecar_with_the_reason(ring, capsys, url, reason):
    assert main(["--ring", ring, "--redis-url", url]) == 2
    assert capsys.readouterr().err.startswith(f"DSPARK_REDIS_URL: got {url}, {reason}")


def test_a_file_that_is_no_ring_ends_the_sidecar_with_the_reason(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("mine")
    assert main(["--ring", str(tmp_path / "notes.txt")]) == 2
    assert "got a file that is no event ring" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
