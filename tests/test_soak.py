"""The soak command: its last line is a ledger that balances, and its exit code says so."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def soak(*options: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "tools.soak", *options], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.servers
@pytest.mark.faults
def test_a_short_soak_ends_with_a_balanced_ledger() -> None:
    done = soak("--minutes", "0.2", "--seed", "3")
    assert done.returncode == 0, done.stderr
    ledger = json.loads(done.stdout.splitlines()[-1])
    assert list(ledger) == ["emitted", "lost", "folded", "dead_lettered", "duplicates_discarded", "balance"]
    assert ledger["emitted"] > 0
    assert ledger["balance"] == 0
    assert ledger["emitted"] == ledger["lost"] + ledger["folded"] + ledger["dead_lettered"]
    assert "seed 3" in done.stderr


def test_a_time_that_is_none_is_refused() -> None:
    done = soak("--minutes", "0")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "--minutes: got 0" in done.stderr
