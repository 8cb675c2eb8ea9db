"""The adapter's face: rows out, parameters in, never in the engine's way."""

import dataclasses

import msgspec
import numpy as np
import pytest

from serving_adapter.adapter import ServingAdapter
from serving_adapter.contract import ContractError, ParameterDocument, Rounds, Steps, encode_document, seal
from serving_adapter.exploration import emits_each
from serving_adapter.mirror import ParameterMirror
from serving_adapter.parameters import Parameters
from serving_adapter.ring_reader import RingReader
from serving_adapter.shared_memory import Segment, segment_path
from tests.rings import GAMMA, IDENTITY, a_ring_name

ROWS = 5
KEY = b"key"


@pytest.fixture
def ring():
    with a_ring_name() as name:
        yield name


@pytest.fixture
def adapter(ring):
    adapter = an_adapter(ring)
    yield adapter
    adapter.close()


def an_adapter(ring, **options):
    return ServingAdapter(
        IDENTITY, "chat", "pod-1", ring, **{"rounds_capacity": 256, "steps_capacity": 16} | options
    )


def a_step(rows=ROWS, **columns):
    return {
        "logits": np.linspace(-2, 2, rows * GAMMA, dtype=np.float32).reshape(rows, GAMMA),
        "accepted": np.arange(rows, dtype=np.uint8) % 2,
        "verified": np.arange(rows, dtype=np.uint8) % 2 + 1,
        "scheduled": np.arange(rows, dtype=np.uint8) % 3,
        "request": np.arange(rows, dtype=np.uint64) + 2**63,
        "step": np.arange(rows, dtype=np.uint32),
    } | columns


def read(ring):
    """Rounds and steps in the ring, through the checks of the contract."""
    reader = RingReader(Segment.attach(segment_path(ring)))
    rounds, steps = reader.read_rounds(10_000), reader.read_steps(10_000)
    columns = {name: column for name, column in rounds.columns.items() if name != "share"}
    found = Rounds.build(**columns, segments=reader.labels()) if rounds.count else None
    reader.close()
    return found, Steps.build(**steps.columns)


def document(version=1, **fields):
    body = {
        "deployment": "chat",
        "fingerprint": IDENTITY.fingerprint(),
        "version": version,
        "gamma": GAMMA,
        "form": "affine",
        "temperatures": [2.0] * GAMMA,
        "offsets": [0.5] * GAMMA,
        "created_at": "2026-01-01T00:00:00Z",
        "explore": 0.05,
    }
    return ParameterDocument(**body | fields)


def mirrored(ring, doc, key=None, payload=None):
    mirror = ParameterMirror.open(ring)
    mirror.write(doc.version, payload or encode_document(seal(doc, key)))
    mirror.close()


def test_observed_rows_are_in_the_ring(ring, adapter):
    given = a_step(
        explore=0.25,
        version=7,
        segment="code",
        sampling=np.linspace(0, 1, ROWS),
        resolved=np.full(ROWS, 3),
        resolved_accepted=np.where(np.arange(ROWS) % 2 < np.arange(ROWS) % 2 + 1, np.arange(ROWS) % 2, 3),
        draft_stop=np.array([0, 1, 2, 255, 255]),
    )
    adapter.observe(**given)
    assert (adapter.rejected, adapter.last_rejection) == (0, "")
    rounds, steps = read(ring)
    assert len(steps) == 0
    for name in ("accepted", "verified", "scheduled", "request", "step", "resolved", "draft_stop"):
        assert np.array_equal(getattr(rounds, name), given[name]), name
    assert np.array_equal(rounds.logits, given["logits"].astype(np.float16))
    assert np.array_equal(rounds.sampling, given["sampling"].astype(np.float16))
    assert set(rounds.explore.tolist()) == {0.25}
    assert set(rounds.version.tolist()) == {7}
    assert rounds.segment_names() == ["code"] * ROWS


def test_what_is_left_out_is_filled_in(ring, adapter):
    adapter.observe([[1, 2, 3], [4, 5, 6]], [3, 0], request=[1, 2])
    rounds, _ = read(ring)
    assert rounds.logits.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert rounds.verified.tolist() == rounds.scheduled.tolist() == rounds.resolved.tolist() == [3, 3]
    assert rounds.resolved_accepted.tolist() == [3, 0]
    assert rounds.draft_stop.tolist() == [255, 255]
    assert rounds.segment_names() == ["default", "default"]
    assert rounds.version.tolist() == [0, 0]
    assert rounds.sampling.tolist() == [0.0, 0.0]


def test_one_value_stands_for_all_rows_and_what_one_call_gave_does_not_stick(ring, adapter):
    adapter.observe(**a_step(sampling=0.5, draft_stop=1, step=9, resolved=3))
    adapter.observe(**a_step(sampling=np.full(ROWS, 0.75)))
    adapter.observe(**a_step(sampling=0.5))
    rounds, _ = read(ring)
    assert rounds.sampling.tolist() == [0.5] * ROWS + [0.75] * ROWS + [0.5] * ROWS
    assert rounds.draft_stop.tolist() == [1] * ROWS + [255] * 2 * ROWS
    assert rounds.step.tolist()[:ROWS] == [9] * ROWS
    assert rounds.resolved.tolist()[:ROWS] == [3] * ROWS
    assert rounds.resolved.tolist()[ROWS : 2 * ROWS] == a_step()["verified"].tolist()


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.int64])
def test_logits_of_any_number_type(ring, adapter, kind):
    z = np.array([[1, -2, 3]]).astype(kind)
    adapter.observe(z, [1], request=[1])
    assert read(ring)[0].logits.tolist() == [[1, -2, 3]]


@pytest.mark.parametrize("kind", [np.uint8, np.int32, np.int64])
def test_lengths_of_any_whole_type(ring, adapter, kind):
    adapter.observe(**a_step(accepted=np.ones(ROWS, kind), verified=np.full(ROWS, 2, kind)))
    assert read(ring)[0].verified.tolist() == [2] * ROWS


def test_logits_that_are_not_contiguous(ring, adapter):
    z = np.arange(2 * GAMMA * ROWS, dtype=np.float32).reshape(ROWS, 2 * GAMMA)[:, ::2]
    adapter.observe(**a_step(logits=z))
    assert read(ring)[0].logits.tolist() == z.tolist()


def test_huge_logits_are_held_at_the_largest_number_of_the_wire(ring, adapter):
    for kind in (np.float32, np.float64):
        adapter.observe(np.array([[1e30, -1e30, 0]], dtype=kind), [0], request=[1])
    adapter.observe(np.array([[1e300, -1e300, 0]]), [0], request=[1])
    assert adapter.rejected == 0
    assert read(ring)[0].logits.tolist() == [[65504, -65504, 0]] * 3


def test_the_step_row(ring, adapter):
    step = {
        "batch_tokens": 11,
        "context_tokens": 300.0,
        "step_seconds": 0.25,
        "draft_seconds": 0.125,
        "verify_seconds": 0.0625,
        "graph_tokens": 16,
        "predicted_accepted": 4.5,
        "predicted_seconds": 0.5,
    }
    adapter.observe(**a_step(), **step)
    adapter.observe(**a_step(), **step, requests=8)
    adapter.observe(np.zeros((0, GAMMA), np.float32), (), request=(), step_seconds=1)
    rounds, steps = read(ring)
    assert len(rounds) == 2 * ROWS
    assert steps.rows.tolist() == [ROWS, ROWS, 0]
    assert steps.requests.tolist() == [ROWS, 8, 0]
    for name, value in step.items():
        assert getattr(steps, name).tolist()[:2] == [value] * 2, name


BROKEN = {
    "NaN": ({"logits": np.full((ROWS, GAMMA), np.nan, np.float32)}, "logits: row 0, position 1"),
    "infinity": ({"logits": np.where(np.eye(ROWS, GAMMA), np.inf, 1.0)}, "logits: row 0, position 1"),
    "both infinities": (
        {"logits": np.array([[0, 0, np.inf], [0, -np.inf, 0], *[[0, 0, 0]] * 3], np.float32)},
        "logits: row 0, position 3",
    ),
    "another gamma": ({"logits": np.zeros((ROWS, GAMMA + 1))}, "logits"),
    "no matrix": ({"logits": np.zeros(GAMMA)}, "logits"),
    "logits of text": ({"logits": [["a"] * GAMMA] * ROWS}, "logits"),
    "ragged logits": ({"logits": [[1.0], [1.0, 2.0]]}, ""),
    "accepted above verified": ({"accepted": np.full(ROWS, 3)}, "accepted: row 0"),
    "verified above gamma": ({"verified": np.full(ROWS, 4, np.uint8)}, "verified: row 0"),
    "scheduled above gamma": ({"scheduled": np.array([0, 0, 0, 9, 0])}, "scheduled: row 3"),
    "accepted negative": ({"accepted": np.full(ROWS, -1)}, "accepted: row 0"),
    "accepted beyond a byte": ({"accepted": np.full(ROWS, 256)}, "accepted: row 0"),
    "accepted of fractions": ({"accepted": np.full(ROWS, 0.5)}, "accepted"),
    "too few": ({"accepted": np.zeros(ROWS - 1, np.uint8)}, "accepted"),
    "one row too few for all": ({"verified": np.zeros(1, np.uint8)}, "verified"),
    "too few requests": ({"request": np.zeros(2, np.uint64)}, "request"),
    "requests of text": ({"request": ["a"] * ROWS}, "request: row 0: got 'a'"),
    "requests of digits": ({"request": ["7"] * ROWS}, "request: row 0: got '7'"),
    "an array of text": ({"request": np.array(["a"] * ROWS)}, "request"),
    "one request of text": ({"request": "a"}, "request"),
    "a request below 0": ({"request": [*range(ROWS - 1), -1]}, f"request: row {ROWS - 1}: got -1"),
    "a request beyond 64 bits": ({"request": [2**64] * ROWS}, "request: row 0"),
    "a list of fractions": ({"request": [0.5] * ROWS}, "request: row 0: got 0.5"),
    "requests of fractions": ({"request": np.zeros(ROWS)}, "request"),
    "resolved below verified": ({"resolved": np.zeros(ROWS, np.uint8)}, "resolved: row 0"),
    "resolved above gamma": ({"resolved": np.full(ROWS, 4)}, "resolved: row 0"),
    "resolved_accepted unlike accepted": (
        {"accepted": 0, "verified": 1, "resolved_accepted": 1},
        "resolved_accepted: row 0",
    ),
    "draft_stop at gamma": ({"draft_stop": np.full(ROWS, GAMMA)}, "draft_stop: row 0"),
    "explore above one": ({"explore": 1.5}, "explore"),
    "explore NaN": ({"explore": np.full(ROWS, np.nan)}, "explore: row 0"),
    "sampling negative": ({"sampling": -1.0}, "sampling"),
    "sampling infinite": ({"sampling": np.inf}, "sampling"),
    "sampling of text": ({"sampling": "hot"}, "sampling"),
    "version negative": ({"version": -1}, "version"),
    "version too large": ({"version": 2**32}, "version"),
    "step negative": ({"step": np.full(ROWS, -1)}, "step: row 0"),
    "segment unknown": ({"segment": 3}, "segment"),
    "segment empty": ({"segment": ""}, "segment"),
    "step_seconds negative": ({"step_seconds": -1.0}, "steps"),
    "step_seconds NaN": ({"step_seconds": float("nan")}, "steps"),
    "step_seconds of text": ({"step_seconds": "x"}, ""),
    "batch_tokens negative": ({"step_seconds": 1.0, "batch_tokens": -1}, ""),
    "batch_tokens of fractions": ({"step_seconds": 1.0, "batch_tokens": 1.5}, ""),
    "nothing at all": ({"logits": None, "accepted": None, "request": None}, ""),
    "objects": ({"logits": object()}, ""),
}


@pytest.mark.parametrize("case", BROKEN)
@pytest.mark.filterwarnings("error")
def test_malformed_input_is_counted_with_its_reason_and_writes_nothing(ring, adapter, case):
    columns, reason = BROKEN[case]
    adapter.observe(**a_step(step_seconds=0.5))
    adapter.observe(**a_step() | columns)
    assert adapter.rejected == 1
    assert adapter.last_rejection.startswith(reason)
    assert adapter.last_rejection
    adapter.observe(**a_step(step_seconds=0.5))
    assert adapter.rejected == 1
    rounds, steps = read(ring)
    assert len(rounds) == 2 * ROWS
    assert len(steps) == 2


def test_more_rows_than_the_ring_holds_keep_the_last(ring, adapter):
    adapter.observe(**a_step(rows=5000))
    assert adapter.rejected == 0
    assert read(ring)[0].step.tolist() == list(range(5000 - 256, 5000))


def test_without_a_reader_nothing_changes_for_the_engine(ring, adapter):
    for _ in range(500):
        adapter.observe(**a_step(step_seconds=0.1))
    assert adapter.rejected == 0
    assert adapter.ring.written == 500 * ROWS


def test_soft_labels_where_the_ring_has_room(ring):
    adapter = an_adapter(ring, soft_labels=True)
    soft = np.linspace(0, 1, ROWS * GAMMA).reshape(ROWS, GAMMA)
    adapter.observe(**a_step(accept_probability=soft))
    adapter.observe(**a_step())
    adapter.observe(**a_step(accept_probability=soft * 2))
    assert adapter.rejected == 1
    found = read(ring)[0].accept_probability
    assert np.array_equal(found[:ROWS], soft.astype(np.float16))
    assert np.isnan(found[ROWS:]).all()


def test_soft_labels_are_ignored_where_it_has_none(ring, adapter):
    adapter.observe(**a_step(accept_probability=np.ones((ROWS, GAMMA))))
    assert adapter.rejected == 0
    assert read(ring)[0].accept_probability is None


def test_segments_by_index(ring, adapter):
    indices = [adapter.segment(label) for label in ("code", "chat", "default", "code", "chat")]
    adapter.observe(**a_step(segment=np.array(indices, np.uint16)))
    assert read(ring)[0].segment_names() == ["code", "chat", "default", "code", "chat"]


def test_only_rank_0_emits(ring):
    first = an_adapter(ring)
    second = an_adapter(ring, emit=False)
    second.observe(**a_step())
    assert (second.ring, second.boot, second.rejected) == (None, "", 0)
    assert read(ring)[0] is None
    first.observe(**a_step())
    assert len(read(ring)[0]) == ROWS


def test_an_adapter_without_a_ring_is_the_identity():
    adapter = ServingAdapter(IDENTITY, "chat", "pod-1", explore=0.5)
    adapter.observe(**a_step())
    assert adapter.current().version == 0
    assert adapter.current().calibrate([[0.0] * GAMMA]).tolist() == [[0.5] * GAMMA]
    assert adapter.segment("code") == 1
    adapter.applied(0)
    adapter.close()


def test_shared_memory_that_cannot_be_had_does_not_stop_the_engine(tmp_path):
    (tmp_path / "file").write_text("")
    adapter = ServingAdapter(IDENTITY, "chat", "pod-1", f"{tmp_path}/file/ring")
    assert adapter.disabled
    adapter.observe(**a_step())
    assert adapter.current().version == 0


@pytest.mark.parametrize("name", ["", "x" * 129, "a\nb"])
def test_names_are_checked_when_the_adapter_is_made(name):
    with pytest.raises(ContractError, match="deployment"):
        ServingAdapter(IDENTITY, name, "pod-1")


def test_a_share_withholds_whole_requests(ring, adapter):
    mirrored(ring, document(share=0.5))
    adapter.current()
    requests = np.arange(100, dtype=np.uint64)
    adapter.observe(**a_step(100, request=requests, step=1, step_seconds=0.1))
    adapter.observe(**a_step(100, request=requests, step=2, step_seconds=0.1))
    rounds, steps = read(ring)
    kept = requests[emits_each(requests, 0.5)].tolist()
    assert 20 < len(kept) < 80
    assert rounds.request.tolist() == kept * 2
    assert steps.rows.tolist() == [len(kept)] * 2
    assert steps.requests.tolist() == [100, 100]
    reader = RingReader(Segment.attach(segment_path(ring)))
    assert reader.withheld == 2 * (100 - len(kept))


def test_parameters_come_into_force_when_they_change(ring, adapter):
    before = adapter.current()
    assert adapter.current() is before
    mirrored(ring, document(1))
    after = adapter.current()
    assert (after.version, after.form) == (1, "affine")
    assert after.temperatures.tolist() == [2.0] * GAMMA
    assert not after.temperatures.flags.writeable
    assert after.explore == float(np.float16(0.05))
    assert adapter.current() is after


def test_rows_carry_the_parameters_they_were_decided_with(ring, adapter):
    mirrored(ring, document(4))
    adapter.current()
    adapter.observe(**a_step())
    rounds, _ = read(ring)
    assert set(rounds.version.tolist()) == {4}
    assert set(rounds.explore.tolist()) == {np.float16(0.05)}


REFUSED = {
    "another gamma": (document(2, gamma=1, temperatures=[1.0], offsets=[0.0]), "gamma"),
    "another fingerprint": (document(2, fingerprint="else"), "fingerprint"),
    "another deployment": (document(2, deployment="code"), "deployment"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_document_that_does_not_fit_is_refused_as_a_whole(ring, adapter, case):
    mirrored(ring, document(1))
    kept = adapter.current()
    refused, reason = REFUSED[case]
    mirrored(ring, refused)
    assert adapter.current() is kept
    assert (adapter.report.refused, adapter.report.reason.split(":")[0]) == (2, reason)
    mirrored(ring, document(3))
    assert adapter.current().version == 3


def test_a_document_without_fingerprint_fits_every_engine(ring, adapter):
    mirrored(ring, document(1, fingerprint=""))
    assert adapter.current().version == 1


def test_a_document_that_was_changed_on_its_way_is_refused(ring, adapter):
    payload = encode_document(seal(document(1))).replace(b"2.0", b"3.0")
    mirrored(ring, document(1), payload=payload)
    assert adapter.current().version == 0
    assert adapter.report.reason.startswith("digest")


def test_garbage_in_the_mirror_changes_nothing(ring, adapter):
    mirrored(ring, document(1), payload=b"\xff{")
    assert adapter.current().version == 0
    assert adapter.report.refused == 1


def test_a_form_that_the_engine_cannot_apply_is_refused(ring):
    adapter = an_adapter(ring, forms=("temperature",))
    mirrored(ring, document(1))
    assert adapter.current().version == 0
    assert adapter.report.reason.startswith("form: got 'affine'")
    mirrored(ring, document(2, form="temperature", offsets=[0.0] * GAMMA))
    assert adapter.current().version == 2


def test_versions_only_rise(ring, adapter):
    mirrored(ring, document(5))
    kept = adapter.current()
    mirrored(ring, document(4))
    assert adapter.current() is kept
    assert adapter.report.reason.startswith("version: got 4")


def test_the_same_document_written_again_is_no_event(ring, adapter):
    mirrored(ring, document(5))
    kept = adapter.current()
    mirrored(ring, document(5))
    assert adapter.current() is kept
    assert adapter.report.refused == 0


def test_signatures_are_required_when_a_key_is_given(ring):
    adapter = an_adapter(ring, signing_key=KEY)
    mirrored(ring, document(1))
    assert adapter.current().version == 0
    mirrored(ring, document(2), key=b"another")
    assert adapter.current().version == 0
    mirrored(ring, document(3), key=KEY)
    assert adapter.current().version == 3


def test_a_refusing_engine_keeps_what_was_in_force(ring, adapter):
    mirrored(ring, document(1))
    one = adapter.current()
    adapter.applied(1)
    mirrored(ring, document(2))
    assert adapter.current().version == 2
    adapter.refused(2, "graph captured without a buffer")
    assert adapter.current() is one
    report = ParameterMirror.open(ring).read_report()
    assert (report.applied, report.refused, report.reason) == (1, 2, "graph captured without a buffer")
    assert report.fingerprint == IDENTITY.fingerprint()
    mirrored(ring, document(3))
    assert adapter.current().version == 3


def test_what_current_returns_is_reported_as_applied(ring, adapter):
    mirrored(ring, document(1))
    assert adapter.current().version == 1
    assert ParameterMirror.open(ring).read_report().applied == 1


def test_a_version_that_is_refused_after_all_is_not_reported_as_applied(ring, adapter):
    mirrored(ring, document(1))
    adapter.current()
    mirrored(ring, document(2))
    adapter.current()
    adapter.refused(2, "too slow")
    report = ParameterMirror.open(ring).read_report()
    assert (report.applied, report.refused) == (1, 2)


def test_where_ranks_commit_the_engine_says_what_is_applied(ring):
    rank = an_adapter(ring, commit_at_once=False)
    mirrored(ring, document(1))
    assert rank.commit(rank.stage())
    assert (rank.current().version, rank.report.applied) == (1, 0)
    rank.applied(1)
    assert rank.report.applied == 1


def test_ranks_stage_and_then_commit_in_the_same_step(ring):
    ranks = [an_adapter(ring, emit=rank == 0, commit_at_once=False) for rank in range(2)]
    mirrored(ring, document(1))
    assert [rank.stage() for rank in ranks] == [1, 1]
    mirrored(ring, document(2))
    assert [rank.current().version for rank in ranks] == [0, 0]
    assert ranks[0].stage() == 2
    assert [rank.commit(1) for rank in ranks] == [True, True]
    assert [rank.current().version for rank in ranks] == [1, 1]


def test_a_rank_that_has_not_staged_a_version_does_not_commit_it(ring):
    rank = an_adapter(ring, commit_at_once=False)
    assert rank.stage() == 0
    assert not rank.commit(1)
    assert rank.commit(0)
    assert rank.current().version == 0


def test_an_engine_that_starts_finds_the_parameters_of_before(ring):
    mirrored(ring, document(9))
    assert an_adapter(ring).current().version == 9


def test_exploration_follows_the_parameters_and_all_ranks_agree(ring, adapter):
    assert not any(adapter.explore(i, 0) for i in range(100))
    mirrored(ring, document(1, explore=0.5))
    adapter.current()
    other = an_adapter(ring, emit=False)
    other.current()
    requests = [adapter.request_hash(f"r{i}") for i in range(200)]
    decisions = [adapter.explore(request, 3) for request in requests]
    assert 50 < sum(decisions) < 150
    assert adapter.explore_each(np.array(requests, np.uint64), 3).tolist() == decisions
    assert [other.explore(request, 3) for request in requests] == decisions


def test_parameters_compute_what_the_contract_says():
    doc = document(3, temperatures=[1.0, 2.0, 4.0], offsets=[0.0, 0.5, -0.5])
    parameters = Parameters.from_document(msgspec.convert(msgspec.to_builtins(doc), ParameterDocument))
    z = np.array([[0.0, -1.0, 2.0]])
    assert parameters.calibrate(z).tolist() == [[0.5, 0.5, 0.5]]
    assert parameters.survival(z).tolist() == [[0.5, 0.25, 0.125]]
    assert parameters.gamma == GAMMA
    with pytest.raises(dataclasses.FrozenInstanceError):
        parameters.version = 4


def test_hashes_in_a_list_are_exact(ring, adapter):
    hashes = [0, 2**63 - 1, 2**63, 2**64 - 1, 5][:ROWS]
    adapter.observe(**a_step(request=hashes))
    assert adapter.rejected == 0, adapter.last_rejection
    assert read(ring)[0].request.tolist() == hashes


def test_a_file_that_is_no_ring_is_left_alone_and_nothing_is_made_beside_it(tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    adapter = ServingAdapter(IDENTITY, "chat", "pod-1", str(file))
    assert (
        adapter.disabled == f"ring {file}: got a file that is no event ring, expected a free name or a ring"
    )
    adapter.observe(**a_step())
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    assert file.read_text() == "mine"


def test_a_folder_is_no_ring(tmp_path):
    adapter = ServingAdapter(IDENTITY, "chat", "pod-1", str(tmp_path / "a"), emit=False)
    assert adapter.disabled == ""
    (tmp_path / "folder").mkdir()
    adapter = ServingAdapter(IDENTITY, "chat", "pod-1", str(tmp_path / "folder"))
    assert "got a folder" in adapter.disabled
    assert not (tmp_path / "folder.parameters").exists()
