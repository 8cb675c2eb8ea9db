"""The closed loop in one command: error halves before and after a drift, and the ledger balances."""

import json
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, Path]:
    out = tmp_path_factory.mktemp("demo")
    done = subprocess.run(
        [sys.executable, "-m", "calibrator.cli", "demo", "--rounds", "24000", "--out", str(out), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), out


def test_error_falls_to_at_most_half_before_and_again_after_the_drift(demo) -> None:
    result, _ = demo
    assert len(result["phases"]) == 2
    for phase in result["phases"]:
        assert phase["mean_ece_after"] <= 0.5 * phase["mean_ece_before"], phase["name"]
        assert phase["mean_noise_floor"] > 0


def test_parameters_were_published_and_applied_while_it_served(demo) -> None:
    result, _ = demo
    first, second = result["phases"]
    assert 1 <= first["version"] < second["version"]
    assert len(result["refreshes"]) >= 2
    published = [r["version"] for r in result["refreshes"] if r["version"] is not None]
    assert published == sorted(published)
    assert second["version"] == published[-1]


def test_the_drift_raises_an_alarm_that_a_refit_ends(demo) -> None:
    result, out = demo
    found = [e for e in result["episodes"] if e["kind"] == "calibration" and e["ended_rounds"] is not None]
    assert found
    first = found[0]
    # The set fitted before the drift is what is wrong: it expects more than is accepted.
    assert (first["version"], first["direction"]) == (result["phases"][0]["version"], "below")
    assert first["gap"] > 0
    assert result["drift_at_rounds"] < first["alarm_rounds"] < first["ended_rounds"]
    assert first["began_rounds"] < first["alarm_rounds"]
    assert first["remedy"].startswith("refit")
    asked = [r for r in result["refreshes"] if r["trigger"] == "alarm"]
    assert asked[0]["outcome"] == "published"
    assert first["alarm_rounds"] <= asked[0]["rounds"] < first["ended_rounds"]
    assert asked[0]["version"] == first["ended_by_version"]
    page = (out / "report.html").read_text()
    assert f"{first['alarm_rounds']:,}" in page
    assert first["remedy"] in page


def test_every_refresh_says_why(demo) -> None:
    result, _ = demo
    assert all(refresh["reasons"] for refresh in result["refreshes"])


def test_labels_were_truncated_as_in_production(demo) -> None:
    result, _ = demo
    for phase in result["phases"]:
        coverage = [p["coverage"] for p in phase["positions"]]
        assert coverage == sorted(coverage, reverse=True)
        assert coverage[-1] < 0.5


def test_the_ledger_balances(demo) -> None:
    result, _ = demo
    ledger = result["ledger"]
    assert ledger["emitted"] >= 24000
    assert ledger["emitted"] == ledger["folded"] + ledger["lost"] + ledger["dead_lettered"]


def test_the_report_stands_alone(demo) -> None:
    _, out = demo
    page = (out / "report.html").read_text()
    assert "http://" not in page
    assert "https://" not in page
    assert page.count("data:image/png;base64,") == 2
    for name in ("reliability-1.png", "reliability-2.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")


def test_the_report_of_the_deployment_is_there_too(demo) -> None:
    _, out = demo
    page = (out / "deployment.html").read_text()
    assert "Calibration of demo" in page
    for answer in ("Is recalibrating worth it?", "0 open, ", "refreshes published"):
        assert answer in page
    assert "http" not in page.replace("http-equiv", "")


def test_with_serve_the_dashboard_opens_on_a_loop_that_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "calibrator.cli", "demo", "--rounds", "4000", "--serve", "--port", "0"]
    with subprocess.Popen(
        [*command, "--out", str(tmp_path)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stderr is not None
        store = next(found for line in running.stderr if (found := re.search(r"sqlite:///(\S+)", line)))
        assert Path(store[1]).is_file()
        told = next(line for line in running.stderr if "dashboard: " in line)
        found = re.search(r"http://[^ ]+/", told)
        assert found
        address = found[0]
        assert '<main id="page"' in httpx.get(address).text

        def rounds() -> int:
            return httpx.get(f"{address}v1/deployments/demo", timeout=60).json()["rounds"]

        before, deadline = rounds(), time.monotonic() + 120
        while rounds() <= before:
            assert time.monotonic() < deadline, "no row came in any more"
            time.sleep(0.2)
        assert httpx.get(f"{address}v1/me").json()["role"] == "operator"
        running.send_signal(signal.SIGTERM)
        assert running.wait(timeout=120) == 0
        assert "stopping" in running.stderr.read()


def test_a_port_that_is_taken_is_told_before_the_run(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "calibrator.cli", "demo", "--serve", "--port", port]
        done = subprocess.run([*command, "--out", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "cannot be listened on" in done.stderr
    assert not list(tmp_path.iterdir())
