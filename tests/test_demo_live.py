"""The demo on live generation, run as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from calibrator.cli.app import run
from calibrator.cli.demo_live import LiveRun, print_run
from calibrator.core.report import position_report
from calibrator.service.refresh import RefreshOutcome
from serving_adapter.parameters import Parameters
from tests.ingest_support import GAMMA, make_rounds


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rounds", "399"), "--rounds: got 399, expected at least 400"),
        (("--rounds", "0"), "--rounds: got 0"),
        (("--serve",), "--serve: does nothing with --live"),
        (("--out", "x"), "--out: does nothing with --live"),
        (("--seed", "0"), "--seed: does nothing with --live"),
        (("--host", "::"), "--host: does nothing with --live"),
        (("--port", "8080"), "--port: does nothing with --live"),
    ],
)
def test_what_a_live_demo_cannot_do_is_refused_before_anything_is_loaded(capsys, arguments, message):
    assert run(["demo", "--live", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_run_is_told_with_its_refreshes_their_reasons_and_its_ledger(capsys):
    judged, parameters = make_rounds(50), Parameters.identity(GAMMA)
    report = position_report(parameters.survival_of(judged), judged, 15)
    refreshes = [RefreshOutcome("published", ()), RefreshOutcome("unchanged", ("too few labels", "no gain"))]
    ledger = {"emitted": 1200, "folded": 1199, "lost": 1, "dead_lettered": 0}
    print_run(LiveRun(judged, report, report, parameters, refreshes, 1200, 3.0, ledger))
    told = capsys.readouterr().out
    assert "refresh 1: published\n" in told
    assert "refresh 2: unchanged: too few labels; no gain\n" in told
    assert "1,200 emitted, 1,199 folded, 1 lost, 0 dead-lettered" in told


def test_the_loop_improves_calibration_on_live_generation_of_another_domain():
    done = subprocess.run(
        [sys.executable, "-m", "calibrator.cli", "demo", "--live", "--rounds", "500", "--json"],
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)
    assert run["served_rounds"] >= 500
    assert run["judged_rounds"] >= 250
    # Every round that the engine emitted is in the store, and nothing else is.
    ledger = run["ledger"]
    assert ledger["emitted"] == ledger["folded"] + ledger["lost"] + ledger["dead_lettered"]
    assert ledger["lost"] == ledger["dead_lettered"] == 0
    # Fitted on mathematics and code while the scheduler hid labels, judged on chat.
    published = [refresh for refresh in run["refreshes"] if refresh["outcome"] == "published"]
    assert published
    assert run["version"] == published[-1]["version"]
    assert run["mean_ece_after"] < run["mean_ece_before"]
    assert len(run["positions"]) == 7
