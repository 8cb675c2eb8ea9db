"""``evaluate`` and ``fit`` show the figure of record, bounds without one, and doubt a wrong exploration."""

import json

import numpy as np
import pytest

from calibrator.cli.app import run
from tests.recorded import recorded


def write(path, truth, claim):
    rounds = recorded("typical").take(slice(0, 6000))
    chosen = np.random.default_rng(0).random(6000) < truth
    verified = np.where(chosen, 7, np.where(rounds.logits[:, 0] > 1, 4, 2))
    np.savez(
        path,
        logits=rounds.logits,
        accepted=np.minimum(rounds.accepted, verified),
        verified=verified,
        scheduled=np.where(rounds.logits[:, 0] > 1, 4, 2) if claim else verified,
        request=rounds.request,
        explore=np.full(6000, claim),
    )
    return str(path)


@pytest.mark.parametrize("command", ["evaluate", "fit"])
def test_with_exploration_the_doubly_robust_figure_stands_beside_the_plain_one(tmp_path, capsys, command):
    records = write(tmp_path / "r.npz", 0.1, 0.1)
    assert run([command, records, "--json"]) == 0
    last = json.loads(capsys.readouterr().out)["positions"][6]
    figure = last["record"] if command == "evaluate" else last["record_after"]
    assert figure["ece_low"] <= figure["ece"] <= figure["ece_high"]
    assert last["ece" if command == "evaluate" else "ece_after"] is not None
    assert run([command, records]) == 0
    assert "figure of record" in capsys.readouterr().out


def test_without_exploration_bounds_are_shown_and_nothing_trimmed_is_ok(tmp_path, capsys):
    records = write(tmp_path / "r.npz", 0.1, 0.0)
    assert run(["evaluate", records, "--json"]) == 0
    positions = json.loads(capsys.readouterr().out)["positions"]
    assert {p["status"] for p in positions[2:]} == {"censored"}
    assert run(["evaluate", records]) == 0
    assert "bounds [" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["evaluate", "fit"])
def test_a_wrong_explore_column_is_named_and_not_ok(tmp_path, capsys, command):
    records = write(tmp_path / "r.npz", 0.1, 0.01)
    assert run([command, records, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert any("claim a probability of 0.01" in note for note in result["notes"])
    assert all(p["status"] != "ok" for p in result["positions"][4:])
