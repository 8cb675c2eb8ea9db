"""The demo on live generation, run as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")


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
