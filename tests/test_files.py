"""Records files: what is read, and that hostile files are refused in one line."""

import gzip
import io
import json
import math
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from calibrator.core.labels import drafted, included
from collectors.errors import RecordError
from collectors.files import read_records
from serving_adapter.engines import replay

DATA = Path(replay.__file__).parent / "data"
DEEPSPEC = Path(__file__).parent / "data" / "deepspec-records.jsonl.gz"


def write_lines(path, *records):
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records))
    return path


def refusal(path, **options):
    with pytest.raises(RecordError) as caught:
        read_records([path], **options)
    text = str(caught.value)
    assert text.startswith(str(path))
    assert "\n" not in text
    return text


def test_our_npz_is_read_with_every_column_of_the_contract():
    rounds, notes = read_records([DATA / "rounds-typical.npz"])
    with np.load(DATA / "rounds-typical.npz") as data:
        assert np.array_equal(rounds.logits, data["logits"])
        assert np.array_equal(rounds.request, data["request"])
        assert np.array_equal(rounds.draft_stop, data["draft_stop"])
        assert rounds.segments == tuple(data["segments"].tolist())
    assert notes == []


def test_several_files_are_appended_and_segments_merged():
    one = read_records([DATA / "rounds-typical.npz"]).rounds
    both = read_records([DATA / "rounds-typical.npz", DATA / "rounds-typical-hot.npz"]).rounds
    assert len(both) > len(one)
    assert np.array_equal(both.logits[: len(one)], one.logits)


def test_only_logits_and_accepted_are_required(tmp_path):
    for name in ("a.npz", "b.npz"):
        np.savez(tmp_path / name, logits=np.zeros((3, 4)), accepted=[0, 2, 4], prompt=["x", "y", "z"])
    rounds, _ = read_records([tmp_path / "a.npz", tmp_path / "b.npz"])
    assert rounds.verified.tolist() == [4] * 6
    assert len(set(rounds.request.tolist())) == 6


def test_a_fortran_ordered_array_is_read_as_it_is(tmp_path):
    logits = np.asfortranarray(np.arange(12.0).reshape(3, 4))
    np.savez(tmp_path / "a.npz", logits=logits, accepted=[0, 2, 4])
    assert np.array_equal(read_records([tmp_path / "a.npz"]).rounds.logits, logits)


def test_deepspec_records_are_read_with_the_keys_that_newer_recorders_add():
    rounds, _ = read_records([DEEPSPEC])
    with gzip.open(DEEPSPEC, "rt") as lines:
        records = [json.loads(line) for line in lines]
    assert len(rounds) == len(records) == 2000
    assert rounds.accepted.tolist() == [sum(r["labels"]) for r in records]
    assert np.array_equal(rounds.logits[5], records[5]["logits"])
    assert rounds.request.tolist() == [r["request_id"] for r in records]
    assert rounds.segment_names() == [r["domain"] for r in records]


def test_ragged_records_teach_nothing_behind_their_end(tmp_path):
    path = write_lines(
        tmp_path / "r.jsonl",
        {"logits": [1.0, 2.0, 3.0], "labels": [1, 1, 0]},
        {"logits": [1.0], "labels": [1]},
    )
    rounds, notes = read_records([path])
    assert rounds.gamma == 3
    assert rounds.verified.tolist() == [3, 1]
    assert rounds.accepted.tolist() == [2, 1]
    assert drafted(rounds).tolist() == [[True] * 3, [True, False, False]]
    assert included(rounds, "keep").tolist() == [[True] * 3, [True, False, False]]
    assert notes == ["1 of 2 records are shorter than gamma = 3"]
    assert read_records([path], gamma=5).rounds.gamma == 5
    assert "at most gamma = 2" in refusal(path, gamma=2)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"logits": [1.0, 2.0], "labels": [0, 1]}', "labels: position 2: got 1 after 0"),
        ('{"logits": [1.0, 2.0], "labels": [1]}', "labels: got 1, expected 2"),
        ('{"logits": [1.0, 2.0], "labels": [1, 2]}', "labels: position 2: got 2, expected 0 or 1"),
        ('{"logits": [1.0, NaN], "labels": [1, 1]}', "logits: position 2: got nan"),
        ('{"logits": [1.0, -Infinity], "labels": [1, 1]}', "logits: position 2: got -inf"),
        ('{"logits": [1.0, 1e999], "labels": [1, 1]}', "logits: position 2"),
        ('{"logits": [1.0, "x"], "labels": [1, 1]}', "logits: position 2: got 'x'"),
        ('{"logits": [], "labels": []}', "logits: got 0 positions"),
        ('{"labels": [1]}', "logits: got None"),
        ('{"logits": {"a": 1}, "labels": [1]}', "logits: got {'a': 1}"),
        ("[1, 2]", "got list, expected an object"),
        ("\x00\x01", "not JSON"),
        ("[" * 100_000, "not JSON"),
        (json.dumps({"logits": [0.0] * 33, "labels": [0] * 33}), "33 positions, expected 1 to 32"),
        (json.dumps({"logits": [10**400], "labels": [0]}), "logits: position 1"),
    ],
)
def test_a_bad_deepspec_line_is_named(tmp_path, line, problem):
    text = refusal(write_lines(tmp_path / "r.jsonl", {"logits": [1.0], "labels": [1]}, line))
    assert "line 2: " in text
    assert problem in text


@pytest.mark.parametrize("name", ["a.npz", "a.jsonl", "a.jsonl.gz", "a.pt", "a.csv"])
def test_missing_and_empty_files_are_refused(tmp_path, name):
    assert "no such file" in refusal(tmp_path / name)
    (tmp_path / name).write_bytes(b"")
    assert "empty" in refusal(tmp_path / name)


def test_a_folder_an_unknown_name_and_no_file_at_all_are_refused(tmp_path):
    refusal(tmp_path)
    (tmp_path / "a.csv").write_text("1,2")
    assert ".npz" in refusal(tmp_path / "a.csv")
    with pytest.raises(RecordError):
        read_records([])


def test_truncated_gzip_is_refused(tmp_path):
    body = DEEPSPEC.read_bytes()
    (tmp_path / "cut.jsonl.gz").write_bytes(body[: len(body) // 2])
    assert "damaged" in refusal(tmp_path / "cut.jsonl.gz")
    (tmp_path / "bad.jsonl.gz").write_bytes(body[:50] + b"\x00" * 50 + body[100:])
    refusal(tmp_path / "bad.jsonl.gz")


def test_gzip_that_unpacks_without_end_is_refused(tmp_path):
    line = b'{"logits": [1.0], "labels": [1]}\n'
    (tmp_path / "bomb.jsonl.gz").write_bytes(gzip.compress(line * 5_000))
    assert "unpacked" in refusal(tmp_path / "bomb.jsonl.gz", max_bytes=100_000)
    (tmp_path / "line.jsonl.gz").write_bytes(gzip.compress(b" " * 10_000_000))
    assert "longer line" in refusal(tmp_path / "line.jsonl.gz")


def test_what_is_not_a_zip_is_refused(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"PK\x03\x04 but nothing else")
    assert "not a readable .npz" in refusal(tmp_path / "a.npz")
    body = (DATA / "rounds-typical.npz").read_bytes()
    (tmp_path / "b.npz").write_bytes(body[: len(body) // 2])
    assert "not a readable .npz" in refusal(tmp_path / "b.npz")


def test_pickled_objects_are_never_loaded(tmp_path):
    class Trap:
        def __reduce__(self):
            return (sys.exit, (1,))

    np.savez(tmp_path / "a.npz", logits=np.array([[Trap()]], dtype=object), accepted=[0])
    assert "Python objects" in refusal(tmp_path / "a.npz")


def write_npy_header(path, descr, shape, body=b""):
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": descr, "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("logits.npy", buffer.getvalue() + body)
        accepted = io.BytesIO()
        np.save(accepted, np.zeros(1, dtype=np.uint8))
        archive.writestr("accepted.npy", accepted.getvalue())
    return path


def test_gigantic_declared_shapes_are_refused_before_anything_is_allocated(tmp_path):
    assert "expected" in refusal(write_npy_header(tmp_path / "a.npz", "<f8", (10**12, 7)))
    assert "expected" in refusal(write_npy_header(tmp_path / "b.npz", "<f8", (2**62, 2**62)))
    assert "lengths" in refusal(write_npy_header(tmp_path / "c.npz", "<f8", (-1, 7), b"1234"))


@pytest.mark.parametrize(
    ("name", "shape", "problem"),
    [
        ("accepted", (2, 10**8), "accepted: got 'shape (2, 100000000)', expected shape [1]"),
        ("request", (10**9,), "request: got 'shape (1000000000,)', expected shape [1]"),
        (
            "accept_probability",
            (1, 10**9),
            "accept_probability: got 'shape (1, 1000000000)', expected shape [1, 4]",
        ),
        ("logits", (10**9,), "logits: got 'shape (1000000000,)', expected shape [rows, gamma]"),
        ("logits", (1, 10**9), "gamma: got 1000000000"),
        ("segments", (10**6,), "segments: got shape (1000000,)"),
    ],
)
def test_columns_that_do_not_match_are_refused_by_their_headers_alone(
    tmp_path, monkeypatch, name, shape, problem
):
    """The bodies are not there at all: only what the archive and the headers say."""
    descr = "<U1" if name == "segments" else "|u1"
    columns = {"logits": ("<f2", (1, 4)), "accepted": ("|u1", (1,)), name: (descr, shape)}
    infos = {}
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        for column, (kind, lengths) in columns.items():
            buffer = io.BytesIO()
            header = {"descr": kind, "fortran_order": False, "shape": lengths}
            np.lib.format.write_array_header_1_0(buffer, header)
            archive.writestr(f"{column}.npy", buffer.getvalue())
            infos[f"{column}.npy"] = len(buffer.getvalue()) + math.prod(lengths) * np.dtype(kind).itemsize
    honest = zipfile.ZipFile.infolist

    def declaring(self):
        for info in honest(self):
            info.file_size = infos[info.filename]
        return honest(self)

    monkeypatch.setattr(zipfile.ZipFile, "infolist", declaring)
    assert problem in refusal(tmp_path / "a.npz")


def test_large_members_are_refused(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", logits=np.zeros((50_000, 7)), accepted=np.zeros(50_000))
    assert "unpacked" in refusal(tmp_path / "a.npz", max_bytes=1_000_000)


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"logits": [[0.0, np.nan]]}, "logits: row 0, position 2: got nan"),
        ({"logits": [[np.inf, 0.0]]}, "logits: row 0, position 1: got inf"),
        ({"accepted": [3]}, "accepted: row 0"),
        ({"accepted": [0, 1]}, "accepted: got 'shape (2,)'"),
        ({"verified": [1], "accepted": [2]}, "accepted: row 0: got 2, expected at most verified"),
        ({"accepted": ["x"]}, "accepted"),
        ({"explore": [2.0]}, "explore: row 0"),
        ({"logits": [0.0, 1.0]}, "logits: got 'shape (2,)'"),
        ({"logits": np.zeros((1, 40))}, "gamma: got 40"),
        ({"segment": [5], "segments": ["a"]}, "segment: row 0"),
        ({"segments": [1, 2]}, "segments"),
        ({"logits": np.zeros((0, 2)), "accepted": []}, "no rows"),
    ],
)
def test_wrong_columns_are_named(tmp_path, columns, problem):
    np.savez(tmp_path / "a.npz", **({"logits": [[0.0, 0.0]], "accepted": [1]} | columns))
    assert problem in refusal(tmp_path / "a.npz")


def test_a_file_without_logits_says_so(tmp_path):
    np.savez(tmp_path / "a.npz", accepted=[1])
    assert "logits: missing" in refusal(tmp_path / "a.npz")


def test_files_of_different_gamma_do_not_mix(tmp_path):
    np.savez(tmp_path / "a.npz", logits=np.zeros((1, 3)), accepted=[1])
    with pytest.raises(RecordError, match=r"gamma: got 3, expected 7 as in .*rounds-typical.npz"):
        read_records([DATA / "rounds-typical.npz", tmp_path / "a.npz"])


def test_a_shard_without_torch_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "a.pt").write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "dspark-calibrator[torch]" in refusal(tmp_path / "a.pt")


class TestShards:
    """With the real PyTorch, an optional extra."""

    @pytest.fixture
    def torch(self):
        return pytest.importorskip("torch", reason="the torch extra is not installed")

    def test_a_shard_is_read_with_a_warning(self, torch, tmp_path):
        mask = torch.tensor([[1, 1, 0], [0, 0, 0]])
        torch.save({"logits": torch.ones(2, 3), "prefix_mask": mask}, tmp_path / "a.pt")
        rounds, notes = read_records([tmp_path / "a.pt"])
        assert rounds.accepted.tolist() == [2, 0]
        assert rounds.verified.tolist() == [3, 3]
        assert "trimmed" in notes[0]

    @pytest.mark.parametrize(
        ("mask", "problem"),
        [
            ([[0, 1, 0]], "row 0, position 2: got 1, expected a prefix mask"),
            ([[1, 2, 0]], "row 0, position 2: got 2, expected 0 or 1"),
            ([[1, 0]], "shape (1, 2), expected (1, 3)"),
            (None, "prefix_mask: got NoneType"),
        ],
    )
    def test_a_wrong_mask_is_refused(self, torch, tmp_path, mask, problem):
        mask = None if mask is None else torch.tensor(mask)
        torch.save({"logits": torch.zeros(1, 3), "prefix_mask": mask}, tmp_path / "a.pt")
        assert problem in refusal(tmp_path / "a.pt")

    @pytest.mark.parametrize(
        ("spoilt", "reason"),
        [
            (lambda z, mask: (1 / (1 + np.exp(-z)), mask), "these are probabilities"),
            (lambda z, mask: (z * 0 + 1.5, mask), "placeholder"),
            (lambda z, mask: (z, mask * (np.arange(3) < 2)), "planner trimmed"),
        ],
    )
    def test_a_shard_that_cannot_be_what_it_claims_is_refused(self, torch, tmp_path, spoilt, reason):
        rng = np.random.default_rng(0)
        logits = rng.normal(size=(2000, 3))
        mask = np.cumprod(rng.random((2000, 3)) < 0.8, axis=1)
        z, m = spoilt(logits, mask)
        torch.save({"logits": torch.tensor(z), "prefix_mask": torch.tensor(m)}, tmp_path / "a.pt")
        assert reason in refusal(tmp_path / "a.pt")

    def test_code_in_a_shard_never_runs(self, torch, tmp_path):
        class Trap:
            def __reduce__(self):
                return (sys.exit, (1,))

        torch.save({"logits": Trap(), "prefix_mask": Trap()}, tmp_path / "a.pt")
        assert "not a torch file of tensors" in refusal(tmp_path / "a.pt")

    def test_damaged_and_expanded_shards_are_refused(self, torch, tmp_path):
        torch.save({"logits": torch.zeros(9, 3), "prefix_mask": torch.zeros(9, 3)}, tmp_path / "a.pt")
        body = (tmp_path / "a.pt").read_bytes()
        (tmp_path / "b.pt").write_bytes(body[: len(body) // 2])
        refusal(tmp_path / "b.pt")
        huge = torch.zeros(1, 1).expand(10**9, 7)
        torch.save({"logits": huge, "prefix_mask": huge}, tmp_path / "c.pt")
        assert "more than the file holds" in refusal(tmp_path / "c.pt")


def saved(tmp_path, **columns):
    np.savez(tmp_path / "a.npz", **columns)
    return tmp_path / "a.npz"


def recording():
    with np.load(DATA / "rounds-typical.npz") as data:
        return data["logits"].astype(float), data["accepted"].astype(int)


@pytest.mark.parametrize(
    ("spoilt", "reason"),
    [
        (lambda z, a: (1 / (1 + np.exp(-z)), a), "these are probabilities"),
        (lambda z, a: (z * 0 + 0.3, a), "a placeholder"),
        (lambda z, a: (z, np.minimum(a, 3)), "position 4 is never accepted"),
        (
            lambda z, a: (z, np.minimum(a, (np.cumprod(1 / (1 + np.exp(-z)), 1) >= 0.5).sum(1))),
            "below a sharp confidence nothing is ever accepted",
        ),
    ],
)
def test_records_that_cannot_be_what_they_claim_are_refused_in_every_format(tmp_path, spoilt, reason):
    logits, accepted = spoilt(*recording())
    assert reason in refusal(saved(tmp_path, logits=logits, accepted=accepted))
    lines = [
        {"logits": z, "labels": [int(k < a) for k in range(7)]}
        for z, a in zip(logits[:3000].tolist(), accepted[:3000].tolist(), strict=True)
    ]
    assert reason in refusal(write_lines(tmp_path / "a.jsonl", *lines))


def test_trimmed_rounds_that_say_so_are_read_without_a_note(tmp_path):
    logits, accepted = recording()
    verified = (np.cumprod(1 / (1 + np.exp(-logits)), 1) >= 0.5).sum(1)
    path = saved(tmp_path, logits=logits, accepted=np.minimum(accepted, verified), verified=verified)
    assert read_records([path]).notes == []


def test_what_may_be_honest_is_told_and_not_refused(tmp_path):
    logits, accepted = recording()
    small = read_records([saved(tmp_path, logits=np.zeros((20, 7)), accepted=accepted[:20])])
    assert "placeholder" in small.notes[0]
    logits[:, 2] = 1.0
    constant = read_records([saved(tmp_path, logits=logits, accepted=accepted)])
    assert "position 3" in constant.notes[0]
    never = read_records([saved(tmp_path, logits=recording()[0], accepted=accepted * 0)])
    assert "no draft token was ever accepted" in never.notes[0]
