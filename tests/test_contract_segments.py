"""Sets per segment in a document: which one serves a row, what is refused, and what the digest covers."""

import hashlib
import json

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrator.core.document_survival import document_survival
from calibrator.core.survival import survival
from serving_adapter.contract import (
    SAMPLING_BUCKETS,
    ContractError,
    Evidence,
    ParameterDocument,
    Rounds,
    SegmentParameters,
    decode_document,
    encode_document,
    seal,
)
from serving_adapter.contract.parameters import MAX_DOCUMENT_BYTES, canonical
from serving_adapter.contract.segments import ANY, MAX_SEGMENT_SETS, set_indices
from serving_adapter.segment_sets import SegmentSets

GAMMA = 2
LABELS = ("chat", "code", "other", "*")
KEYS = st.tuples(st.sampled_from(["chat", "code", "math", ANY]), st.sampled_from([*SAMPLING_BUCKETS, ANY]))
KEY_SETS = st.sets(KEYS.filter(lambda key: key != (ANY, ANY)), max_size=12)
ROWS = st.lists(
    st.tuples(st.integers(0, len(LABELS) - 1), st.sampled_from([0.0, 1e-9, 0.5, 0.50001, 0.7, 1.0, 1.5])),
    min_size=1,
    max_size=30,
)


def entry(segment="code", sampling=ANY, offset=1.0, gamma=GAMMA, **changes):
    body = {
        "segment": segment,
        "sampling": sampling,
        "form": "affine",
        "temperatures": [1.0] * gamma,
        "offsets": [offset] * gamma,
    }
    return SegmentParameters(**(body | changes))


def document(entries=(), gamma=GAMMA, **changes):
    body = {
        "deployment": "chat",
        "fingerprint": "f",
        "version": 1,
        "gamma": gamma,
        "form": "affine",
        "temperatures": [1.0] * gamma,
        "offsets": [0.0] * gamma,
        "created_at": "2026-11-29T10:00:00Z",
        "segments": list(entries),
    }
    return ParameterDocument(**(body | changes))


def entries_of(keys):
    return [entry(*key, offset=float(i + 1)) for i, key in enumerate(sorted(keys))]


def one_by_one(entries, label, bucket):
    """The rule as it is written, for one row."""
    found = {(e.segment, e.sampling): i for i, e in enumerate(entries, start=1)}
    for key in ((label, bucket), (label, ANY), (ANY, bucket)):
        if key in found:
            return found[key]
    return 0


@given(KEY_SETS)
def test_the_most_specific_entry_wins(keys):
    entries = entries_of(keys)
    table = set_indices(entries, LABELS)
    expected = [[one_by_one(entries, label, bucket) for bucket in SAMPLING_BUCKETS] for label in LABELS]
    assert table.tolist() == expected


@given(KEY_SETS, ROWS)
def test_engine_and_collector_choose_the_same_set_for_every_row(keys, rows):
    published = document(entries_of(keys))
    segment, sampling = np.array([r[0] for r in rows]), np.array([r[1] for r in rows])
    logits = np.linspace(-3.0, 3.0, len(rows) * GAMMA).reshape(-1, GAMMA)
    served = SegmentSets(published, LABELS).rows(segment, sampling)
    emitted = Rounds.build(
        logits, np.zeros(len(rows), dtype=int), segment=segment, segments=LABELS,
        sampling=sampling.astype(np.float16),
    )  # fmt: skip
    scored = document_survival(published, emitted)
    assert np.array_equal(SegmentSets(published, ()).rows_of(emitted)[1], served[1])
    for row in range(len(rows)):
        alone = survival(logits[row : row + 1], served[0][row], served[1][row])
        assert np.array_equal(scored[row], alone[0])


@given(KEY_SETS, st.lists(st.booleans(), min_size=6, max_size=6))
def test_rows_of_engines_that_cannot_are_scored_with_the_pooled_set(keys, applies):
    published = document(entries_of(keys))
    rows = Rounds.build(np.ones((6, GAMMA)), [1] * 6, segment=[0, 1, 2] * 2, segments=LABELS)
    mask = np.array(applies)
    mixed = document_survival(published, rows, mask)
    assert np.array_equal(mixed[mask], document_survival(published, rows)[mask])
    assert np.array_equal(mixed[~mask], document_survival(document(), rows)[~mask])


@given(KEY_SETS)
def test_a_sealed_document_with_sets_is_read_back_as_it_was(keys):
    original = seal(document(entries_of(keys)), b"key")
    assert decode_document(encode_document(original), b"key") == original
    rewritten = json.dumps(json.loads(encode_document(original)), sort_keys=True)
    assert decode_document(rewritten.encode(), b"key") == original


def test_a_document_without_sets_is_what_it_was_before_there_were_any():
    plain = seal(document())
    assert b"segments" not in canonical(plain)
    assert b"segments" not in encode_document(plain)
    fields = msgspec.to_builtins(plain)
    for name in ("segments", "digest", "signature"):
        del fields[name]
    assert plain.digest == hashlib.sha256(msgspec.json.encode(fields, order="sorted")).hexdigest()
    assert decode_document(msgspec.json.encode(msgspec.to_builtins(plain))) == plain  # an empty list is none


def test_the_digest_covers_the_sets():
    sealed = encode_document(seal(document([entry()])))
    with pytest.raises(ContractError, match="digest"):
        decode_document(sealed.replace(b'"code"', b'"chat"'))


@pytest.mark.parametrize(
    ("entries", "field"),
    [
        ([entry(segment="*")], r"segments\[0\].segment"),
        ([entry(segment="")], r"segments\[0\].segment"),
        ([entry(segment="a\nb")], r"segments\[0\].segment"),
        ([entry(segment="x" * 129)], r"segments\[0\].segment"),
        ([entry(), entry("chat"), entry()], r"segments\[2\].segment"),
        ([entry(), entry("chat", temperatures=[1.0])], r"segments\[1\].temperatures"),
        ([entry(offsets=[0.0] * 3)], r"segments\[0\].offsets"),
        ([entry(temperatures=[1.0, 0.0])], r"segments\[0\].temperatures: position 2"),
        ([entry(offsets=[31.0, 0.0])], r"segments\[0\].offsets: position 1"),
        ([entry(form="temperature")], r"segments\[0\].offsets: position 1"),
        ([entry(f"s{i}") for i in range(MAX_SEGMENT_SETS + 1)], "segments: got '65 sets'"),
    ],
)
def test_entries_are_checked_as_strictly_as_the_pooled_set(entries, field):
    with pytest.raises(ContractError, match=field):
        document(entries)


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"sampling": "warm"}, "sampling"), ({"form": "cubic"}, "form"), ({"offsets": ["a"]}, "offsets")],
)
def test_a_refusal_names_the_entry(changes, field):
    fields = msgspec.to_builtins(seal(document([entry("chat"), entry()])))
    fields["segments"][1] |= changes
    with pytest.raises(ContractError, match=rf"segments\[1\].{field}"):
        decode_document(msgspec.json.encode(fields))


def test_the_largest_set_of_entries_fits_into_a_document():
    number = -1.2345678901234567e-5
    entries = [
        entry(f"{i:02d}" + "x" * 126, "greedy", gamma=32, temperatures=[1.2345678901234567] * 32,
              offsets=[number] * 32)
        for i in range(MAX_SEGMENT_SETS)
    ]  # fmt: skip
    evidence = Evidence(reasons=["r" * 500] * 40, n_eff=[number] * 32, ece_before=[number] * 32)
    written = encode_document(seal(document(entries, gamma=32, evidence=evidence)))
    assert len(written) < MAX_DOCUMENT_BYTES
    assert len(decode_document(written).segments) == MAX_SEGMENT_SETS
