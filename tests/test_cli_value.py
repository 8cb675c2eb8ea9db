"""``dspark-calibrator value`` as typed."""

import json

import numpy as np
import pytest

from calibrator.cli.app import run
from calibrator.formats.sglang_cost import encode_sglang_table
from serving_adapter.engines.replay.cost import knee_curve
from serving_adapter.step_cost import StepCost
from tests.recorded import DATA, recorded

TYPICAL, SAMPLES = DATA / "rounds-typical.npz", DATA / "cost-samples.csv"


@pytest.fixture
def call(capsys):
    def command(*arguments):
        code = run(["value", *(str(a) for a in arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return command


def test_the_report_names_every_policy_and_load(call):
    code, out, err = call(TYPICAL, "--cost", SAMPLES, "--concurrency", "4,32", "--resamples", "50", "--json")
    assert code == 0, err
    report = json.loads(out)
    assert report["rounds"] == 13821
    values = {(v["policy"], v["concurrency"]): v for v in report["values"]}
    assert set(values) == {
        (policy, load)
        for policy in ("verify all", "verify none", "identity", "best monotone map", "perfect foresight")
        for load in (4, 32)
    }
    assert values["verify all", 32]["against_identity"]["estimate"] < 0.85
    interval = values["identity", 4]["tokens_per_second"]
    assert interval["low"] < interval["estimate"] < interval["high"]


def test_parameters_are_replayed_under_the_name_of_their_file(call, tmp_path):
    (tmp_path / "mine.json").write_text(json.dumps({"temperatures": [1.2] * 7}))
    (tmp_path / "sps.json").write_bytes(encode_sglang_table(StepCost.from_curve(knee_curve(last=1024))))
    code, out, err = call(
        *(TYPICAL, "--cost", tmp_path / "sps.json", "--parameters", tmp_path / "mine.json"),
        *("--concurrency", "32", "--resamples", "20", "--scheduler", "early-stop"),
    )
    assert code == 0, err
    assert "mine.json" in out
    assert "early-stop" in out


def test_truncated_records_say_that_they_cannot_know(call, tmp_path):
    random = np.random.default_rng(0)
    np.savez(
        tmp_path / "cut.npz",
        logits=random.normal(0, 1, (300, 4)),
        accepted=random.integers(0, 3, 300),
        verified=np.full(300, 2),
    )
    code, _, err = call(tmp_path / "cut.npz", "--cost", SAMPLES, "--concurrency", "2", "--resamples", "20")
    assert code == 0
    assert "note: verified traffic only" in err.replace("\n", " ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--concurrency", "4,x"], "--concurrency: got '4,x'"),
        (["--concurrency", "0"], "--concurrency: got '0'"),
        (["--scheduler", "best"], "--scheduler: got 'best'"),
        (["--parameters", "{folder}/short.json"], "expected gamma = 7 as in the records"),
    ],
)
def test_wrong_input_is_one_line_and_code_two(call, tmp_path, arguments, message):
    (tmp_path / "short.json").write_text(json.dumps({"temperatures": [1.0]}))
    code, out, err = call(TYPICAL, "--cost", SAMPLES, *(a.format(folder=tmp_path) for a in arguments))
    assert code == 2
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def test_a_cost_file_that_is_none_is_named(call, tmp_path):
    (tmp_path / "flat.csv").write_text("batch_tokens,seconds\n" + "1,0.1\n" * 20)
    code, _, err = call(TYPICAL, "--cost", tmp_path / "flat.csv")
    assert code == 2
    assert "flat.csv: no usable curve" in err


def test_with_a_contradicted_exploration_no_policy_has_more_than_the_machine_can_do(call, tmp_path):
    """A probability of one in a hundred million is claimed, and one round in twenty was explored."""
    full = recorded("typical").take(slice(0, 4000))
    seen = np.random.default_rng(0).random(len(full)) < 0.05
    verified = np.where(seen, full.gamma, 2)
    columns = {
        "logits": full.logits,
        "accepted": np.minimum(full.accepted, verified),
        "verified": verified,
        "scheduled": np.full(len(full), 2),
        "request": full.request,
        "explore": np.full(len(full), 1e-6),
    }
    np.savez(tmp_path / "claimed.npz", **columns)
    code, out, err = call(
        tmp_path / "claimed.npz", "--cost", SAMPLES, "--concurrency", "8", "--resamples", "50", "--json"
    )
    assert code == 0, err
    report = json.loads(out)
    assert any("claim" in note for note in report["notes"])
    for value in report["values"]:
        interval = value["tokens_per_second"]
        assert interval["high"] < 5000, value
        assert interval["low"] >= 0, value
