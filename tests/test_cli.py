"""What a user types and what comes back: figures, files, one clear line on wrong input."""

import gzip
import io
import json
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from calibrator.cli import output
from calibrator.cli.app import COMMANDS, run
from tests.recorded import DATA

GOLDEN = json.loads((Path(__file__).parent / "data" / "golden.json").read_text())
TYPICAL = str(DATA / "rounds-typical.npz")


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """Run the command line; give exit code, stdout and stderr."""

    def command(*arguments: object) -> tuple[int, str, str]:
        from rich.console import Console

        monkeypatch.setattr(output, "out", Console(highlight=False, width=140))
        monkeypatch.setattr(output, "err", Console(stderr=True, highlight=False))
        code = run([str(a) for a in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return command


def as_json(call, *arguments: object) -> dict:
    code, out, err = call(*arguments, "--json")
    assert code == 0, err
    assert out.count("\n") == 1
    return json.loads(out)


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_fit_by_default_gives_what_sglangs_fitter_gives(call, name: str) -> None:
    peer = GOLDEN[name]["sglang_fit"]
    result = as_json(call, "fit", DATA / name)
    assert result["rows"] == GOLDEN[name]["rows"]
    assert result["form"] == "temperature"
    assert result["temperatures"] == pytest.approx(peer["temperatures"], rel=1e-6)
    assert [p["ece_before"] for p in result["positions"]] == pytest.approx(peer["ece_before"], abs=1e-9)
    assert [p["ece_after"] for p in result["positions"]] == pytest.approx(peer["ece_after"], abs=1e-6)
    assert [p["position"] for p in result["positions"]] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_evaluate_gives_what_deepspecs_evaluator_gives(call, name: str) -> None:
    result = as_json(call, "evaluate", DATA / name, "--bins", 20)
    for ours, peer in zip(result["positions"], GOLDEN[name]["deepspec_metrics"], strict=True):
        assert ours["n"] == peer["total_weight"]
        assert ours["ece"] == pytest.approx(peer["ece"], abs=1e-9)
        assert ours["brier"] == pytest.approx(peer["brier"], abs=1e-9)
        assert ours["predicted"] == pytest.approx(peer["pred_mean"], abs=1e-9)
        assert ours["observed"] == pytest.approx(peer["target_mean"], abs=1e-9)


def test_evaluate_names_every_figure(call) -> None:
    result = as_json(call, "evaluate", TYPICAL)
    assert {"rows", "gamma", "bins", "mean_ece", "positions"} <= set(result)
    assert result["bins"] == 15
    wanted = {
        "position",
        "n",
        "n_eff",
        "ece",
        "noise_floor",
        "gap",
        "brier",
        "auroc",
        "predicted",
        "observed",
    }
    assert all(wanted | {"status"} <= set(p) for p in result["positions"])


def test_a_fit_judged_on_other_prompts_holds_what_the_report_promises(call, tmp_path: Path) -> None:
    with np.load(TYPICAL) as rows:
        judging = rows["prompt"] % 2 == 0
        for name, mask in (("fit", ~judging), ("judge", judging)):
            np.savez(
                tmp_path / f"{name}.npz", **{k: rows[k][mask] for k in ("logits", "accepted", "request")}
            )
    fitted, judged, out = tmp_path / "fit.npz", tmp_path / "judge.npz", tmp_path / "p.json"
    before = as_json(call, "evaluate", judged)["mean_ece"]
    as_json(call, "fit", fitted, "--form", "affine", "--out", out)
    after = as_json(call, "evaluate", judged, "--parameters", out)["mean_ece"]
    assert after <= 0.27 * before


@pytest.mark.parametrize("file_format", ["native", "sglang", "tensorrt-llm"])
def test_a_written_file_is_read_back(call, tmp_path: Path, file_format: str) -> None:
    out = tmp_path / "p.json"
    fitted = as_json(call, "fit", TYPICAL, "--out", out, "--format", file_format)
    judged = as_json(call, "evaluate", TYPICAL, "--parameters", out)
    assert [p["ece"] for p in judged["positions"]] == pytest.approx(
        [p["ece_after"] for p in fitted["positions"]]
    )
    content = json.loads(out.read_text())
    if file_format == "tensorrt-llm":
        assert content["sts_temperatures"] == content["temperatures"]
        assert content["max_draft_len"] == 7


def test_the_gate_keeps_what_is_in_force_unless_it_is_beaten(call, tmp_path: Path) -> None:
    out = tmp_path / "p.json"
    first = as_json(call, "fit", TYPICAL, "--form", "auto", "--gate", "--out", out)
    assert first["publish"]
    assert first["form"] == "affine"
    again = as_json(call, "fit", TYPICAL, "--form", "auto", "--gate", "--current", out)
    assert not again["publish"]
    assert again["temperatures"] == pytest.approx(first["temperatures"])
    assert "no gain" in again["reasons"][-1]
    # What stays is the current set, and its error is told beside that of the raw head.
    assert again["mean_ece_current"] == again["mean_ece_after"] < again["mean_ece_before"]
    assert again["mean_ece_of_record_current"] == again["mean_ece_of_record_after"]
    assert all(p["ece_current"] == p["ece_after"] for p in again["positions"])
    assert "mean_ece_current" not in first


def test_a_fit_to_a_handful_of_rounds_warns(call, tmp_path: Path) -> None:
    with np.load(TYPICAL) as rows:
        columns = {name: rows[name] for name in ("logits", "accepted", "request")}
    for count, few in ((5, True), (299, True), (300, False)):
        np.savez(tmp_path / "few.npz", **{name: values[:count] for name, values in columns.items()})
        code, _, err = call("fit", tmp_path / "few.npz", "--out", tmp_path / "p.json")
        assert code == 0
        assert (f"FEW ROUNDS: these parameters rest on {count} rounds" in err) is few


def test_an_affine_set_that_stays_is_fitted_anew_for_a_file_of_temperatures(call, tmp_path: Path) -> None:
    native, out = tmp_path / "p.json", tmp_path / "sts.json"
    affine = as_json(call, "fit", TYPICAL, "--form", "affine", "--out", native)
    kept = as_json(
        call,
        "fit",
        TYPICAL,
        "--form",
        "auto",
        "--gate",
        "--current",
        native,
        "--out",
        out,
        "--format",
        "sglang",
    )
    written = json.loads(out.read_text())["temperatures"]
    assert (kept["publish"], kept["form"]) == (False, "affine")
    assert written != pytest.approx(affine["temperatures"])
    assert any("refitted in the temperature form" in note for note in kept["notes"])


def test_truncated_rows_without_exploration_say_whom_they_describe(call, tmp_path: Path) -> None:
    with np.load(TYPICAL) as rows:
        logits, accepted = rows["logits"], rows["accepted"]
    verified = np.where(logits[:, 0] > 1, 7, 2)
    records = tmp_path / "r.npz"
    np.savez(records, logits=logits, accepted=np.minimum(accepted, verified), verified=verified)
    assert as_json(call, "evaluate", records)["population"] == "verified traffic only"
    explored = np.random.default_rng(0).random(len(logits)) < 0.05
    np.savez(
        records,
        logits=logits,
        accepted=np.where(explored, accepted, np.minimum(accepted, verified)),
        verified=np.where(explored, 7, verified),
        scheduled=verified,
        explore=np.full(len(logits), 0.05),
    )
    result = as_json(call, "evaluate", records)
    assert result["population"] == "traffic"
    assert result["positions"][6]["n_eff"] < result["positions"][6]["n"]


def test_a_round_verified_two_of_five_teaches_nothing_about_the_rest(call, tmp_path: Path) -> None:
    records = tmp_path / "r.npz"
    random = np.random.default_rng(1)
    accepted = random.integers(0, 3, 400)
    np.savez(records, logits=random.normal(size=(400, 5)), accepted=accepted, verified=np.full(400, 2))
    result = as_json(call, "evaluate", records)
    assert [p["status"] for p in result["positions"]] == ["ok", "ok", "censored", "censored", "censored"]
    assert [p["n"] for p in result["positions"]] == [400, 400, 0, 0, 0]
    assert result["positions"][2]["ece"] is None
    fitted = as_json(call, "fit", records)
    assert fitted["temperatures"][2:] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("accepted", [0, 4])
def test_one_outcome_only_is_degenerate_and_changes_nothing(call, tmp_path: Path, accepted: int) -> None:
    records = tmp_path / "r.npz"
    logits = np.random.default_rng(5).normal(size=(500, 4))
    np.savez(records, logits=logits, accepted=np.full(500, accepted))
    for form in ("temperature", "affine"):
        result = as_json(call, "fit", records, "--form", form)
        assert {p["status"] for p in result["positions"][:1]} == {"degenerate"}
        assert all(np.isfinite(result["temperatures"]))
        assert all(np.isfinite(result["offsets"]))
    assert as_json(call, "fit", records)["temperatures"][0] == 1.0


@pytest.mark.parametrize("gamma", [1, 2, 31, 32])
def test_any_number_of_positions(call, tmp_path: Path, gamma: int) -> None:
    records = tmp_path / "r.npz"
    random = np.random.default_rng(2)
    np.savez(records, logits=random.normal(size=(300, gamma)), accepted=random.integers(0, gamma + 1, 300))
    assert len(as_json(call, "fit", records)["temperatures"]) == gamma
    assert as_json(call, "evaluate", records)["gamma"] == gamma


def test_three_rows_with_twenty_bins_and_logits_of_a_thousand(call, tmp_path: Path) -> None:
    records = tmp_path / "r.npz"
    np.savez(records, logits=np.array([[1000.0, -1000.0], [0.0, 0.0], [-1000.0, 1000.0]]), accepted=[2, 0, 1])
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        result = as_json(call, "evaluate", records, "--bins", 20)
        as_json(call, "fit", records, "--bins", 20)
        as_json(call, "fit", records, "--form", "affine")
    assert result["rows"] == 3
    assert result["positions"][0]["status"] == "insufficient"


def written(tmp_path: Path, name: str, content: bytes) -> Path:
    path = tmp_path / name
    path.write_bytes(content)
    return path


def npz(**arrays: object) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def header(descr: str, shape: tuple[int, ...]) -> bytes:
    """A .npy header that may claim anything."""
    text = str({"descr": descr, "fortran_order": False, "shape": shape}).ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def archive(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        for name, content in members.items():
            packed.writestr(f"{name}.npy", content)
    return buffer.getvalue()


NAN_ROW = np.array([[0.1, 0.2], [0.3, np.nan]])
LINE = b'{"logits": [0.5, -0.5], "labels": [1, 0]}\n'

HOSTILE = {
    "empty.npz": b"",
    "empty.jsonl": b"",
    "not-a-zip.npz": b"PK\x03\x04 nothing",
    "pickle.npz": npz(logits=np.array([{"a": 1}], dtype=object), accepted=[1]),
    "nan.npz": npz(logits=NAN_ROW, accepted=[0, 0]),
    "inf.jsonl": b'{"logits": [Infinity, 0.5], "labels": [1, 0]}\n',
    "no-logits.npz": npz(accepted=[1]),
    "short.npz": npz(logits=np.zeros((3, 2)), accepted=[1, 0]),
    "too-many.npz": npz(logits=np.zeros((1, 2)), accepted=[3]),
    "gamma.npz": npz(logits=np.zeros((2, 33)), accepted=[0, 0]),
    "truncated.jsonl.gz": gzip.compress(LINE * 1000)[:-20],
    "garbage.jsonl": b"\xff{" * 10,
    "labels.jsonl": b'{"logits": [0.5, 0.5], "labels": [0, 1]}\n',
    "ragged.jsonl": b'{"logits": [0.5], "labels": [1, 0]}\n',
    "deep.jsonl": b"[" * 100_000,
    "text.txt": b"hello",
    "no-bytes.npz": archive(logits=header("|S0", (10**12, 7)), accepted=header("|u1", (1,)) + b"\x01"),
    "void.npz": archive(logits=header("|V0", (10**12, 7)), accepted=header("|u1", (1,)) + b"\x01"),
    "complex.npz": npz(logits=np.zeros((2, 2), dtype=complex), accepted=[0, 0]),
    "claims.npz": archive(logits=header("<f8", (10**12, 7)), accepted=header("|u1", (1,)) + b"\x01"),
}


@pytest.mark.parametrize("name", sorted(HOSTILE))
@pytest.mark.parametrize("command", ["fit", "evaluate"])
def test_hostile_records_get_one_line_that_names_the_file(
    call, tmp_path: Path, name: str, command: str
) -> None:
    path = written(tmp_path, name, HOSTILE[name])
    code, out, err = call(command, path, "--json")
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert name in err
    assert "Traceback" not in err


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_plain_pickle_named_pt_is_one_line_and_is_not_run(call, tmp_path: Path, protocol: int) -> None:
    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    path = written(tmp_path, "evil.pt", pickle.dumps(Evil(), protocol=protocol))
    command = [sys.executable, "-m", "calibrator.cli", "fit", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "evil.pt" in done.stderr
    assert not (tmp_path / "ran").exists()


def test_nan_is_named_by_row_and_position(call, tmp_path: Path) -> None:
    _, _, err = call("fit", written(tmp_path, "nan.npz", HOSTILE["nan.npz"]))
    assert "row 1, position 2" in err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["fit"], "RECORDS"),
        (["fit", "nowhere.npz"], "nowhere.npz: no such file"),
        (["fit", TYPICAL, "--form", "spline"], "--form: got 'spline'"),
        (["fit", TYPICAL, "--objective", "mse"], "--objective: got 'mse'"),
        (["fit", TYPICAL, "--format", "vllm"], "--format: got 'vllm'"),
        (["fit", TYPICAL, "--bins", "0"], "--bins"),
        (["fit", TYPICAL, "--grid", "2:1:10"], "--grid"),
        (["fit", TYPICAL, "--grid", "nonsense"], "--grid"),
        (["fit", TYPICAL, "--form", "affine", "--format", "sglang"], "temperatures only"),
        (["fit", TYPICAL, "--form", "affine", "--objective", "ece"], "--objective"),
        (["fit", TYPICAL, "--current", "x.json"], "--current"),
        (["fit", TYPICAL, "--out", "/nowhere/at/all/p.json"], "/nowhere/at/all/p.json"),
        (["evaluate", TYPICAL, "--parameters", "nowhere.json"], "nowhere.json"),
        (["evaluate", TYPICAL, "--end-of-sequence", "never"], "--end-of-sequence"),
        (["demo", "--rounds", "10"], "--rounds: got 10"),
        (["no-such-command"], "no-such-command"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_two(call, arguments: list[str], told: str) -> None:
    code, out, err = call(*arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert told in err


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b'{"temperatures": [1.0, -2.0]}', "position 2: got -2.0"),
        (b'{"temperatures": [1.0, NaN]}', "position 2"),
        (b'{"temperatures": []}', "temperatures"),
        (b'{"temperatures": [1.0]}', "expected gamma = 7"),
        (b'{"schema": "dspark.parameters.v1"}', "deployment"),
        (b"[]", "expected an object"),
        (b"nonsense", "not JSON"),
    ],
)
def test_a_parameter_file_that_is_wrong_is_refused_by_name(
    call, tmp_path: Path, content: bytes, told: str
) -> None:
    path = written(tmp_path, "p.json", content)
    code, _, err = call("evaluate", TYPICAL, "--parameters", path)
    assert code == 2
    assert "p.json" in err
    assert told in err


def test_help_has_examples(call) -> None:
    for command in ("fit", "evaluate", "demo", "collect", "serve", "sidecar", "migrate", "doctor"):
        code, out, _ = call(command, "--help")
        assert code == 0
        assert "dspark-calibrator " + command in out.replace("DSPARK_KAFKA_BOOTSTRAP=broker:9092 ", "")


def test_a_table_for_people(call) -> None:
    code, out, _ = call("evaluate", TYPICAL)
    assert code == 0
    assert "13,821 rounds, 15 bins" in out
    assert "AUROC" in out


def test_the_console_script_and_a_reader_that_goes_away() -> None:
    command = f"{sys.executable} -m calibrator.cli evaluate {TYPICAL} | head -c 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_every_command_can_be_built_alone_and_all_are_in_the_help(call) -> None:
    code, out, _ = call("--help")
    assert code == 0
    for name in COMMANDS:
        assert f"\n  {name} " in out
        assert call(name, "--help")[0] == 0


def test_one_command_does_not_load_what_the_others_need() -> None:
    script = (
        "import sys; from calibrator.cli.app import run; run(['fit', '--help']); "
        "print('LOADED', [m for m in ('uvicorn', 'fastapi', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "LOADED []" in done.stdout


def test_the_version_is_told(call) -> None:
    code, out, _ = call("--version")
    assert code == 0
    assert out.startswith("dspark-calibrator ")


def test_nothing_typed_shows_the_help(call) -> None:
    assert call() == call("--help")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no disk that is always full")
def test_a_file_that_cannot_be_written_is_named(call, tmp_path) -> None:
    code, _, err = call("fit", TYPICAL, "--out", "/dev/full")
    assert (code, err.strip()) == (2, "error: /dev/full: not written: No space left on device")
    code, _, err = call("fit", TYPICAL, "--out", tmp_path)
    assert (code, err.strip()) == (2, f"error: {tmp_path}: not written: Is a directory")
    nowhere = tmp_path / "nowhere" / "a.json"
    code, _, err = call("fit", TYPICAL, "--out", nowhere)
    assert (code, err.strip()) == (2, f"error: {nowhere}: not written: No such file or directory")
