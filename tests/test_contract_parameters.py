"""Parameter documents: round trips, refusals that name field and value, and the example of the docs."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving_adapter.contract import (
    ContractError,
    CostCurve,
    Evidence,
    ParameterDocument,
    SegmentParameters,
    decode_document,
    encode_document,
    seal,
)
from serving_adapter.contract.parameters import MAX_DOCUMENT_BYTES, canonical

DOCS = (Path(__file__).parents[1] / "docs" / "contracts.md").read_text()
KEY = b"correct horse"


def fields(**changes: Any) -> dict[str, Any]:
    """A valid document as an object; ``...`` removes a field."""
    document: dict[str, Any] = {
        "deployment": "chat",
        "fingerprint": "f",
        "version": 2,
        "previous": 1,
        "gamma": 2,
        "form": "affine",
        "temperatures": [1.5, 2.0],
        "offsets": [0.1, -0.1],
        "created_at": "2026-11-29T10:00:00Z",
        "schema": "dspark.parameters.v1",
        "cost": {"batch_tokens": [1, 8], "seconds": [0.1, 0.2], "status": ["measured", "flat"]},
        "evidence": {"window": "w", "rounds": 3, "n_eff": [1.0, None]},
    }
    changed = document | changes
    return {name: value for name, value in changed.items() if value is not ...}


def payload(**changes: Any) -> bytes:
    return msgspec.json.encode(fields(**changes))


def sealed(document: dict[str, Any], key: bytes | None = None) -> bytes:
    return encode_document(seal(msgspec.convert(document, ParameterDocument), key))


TEXT = st.text(st.characters(codec="utf-8", min_codepoint=32), max_size=20)
VISIBLE = st.characters(codec="utf-8", min_codepoint=33, exclude_characters="{}")
NAMES = st.text(VISIBLE, min_size=1, max_size=20)
FRACTIONS = st.floats(0.0, 1.0)
FIGURES = st.lists(st.none() | st.floats(0, 1e9), max_size=4)
EVIDENCE = st.builds(Evidence, window=TEXT, rounds=st.integers(0, 2**53), n_eff=FIGURES)


@st.composite
def documents(draw: st.DrawFn) -> ParameterDocument:
    gamma = draw(st.integers(1, 32))
    form = draw(st.sampled_from(["temperature", "affine"]))
    version = draw(st.integers(1, 2**32 - 1))
    sizes = sorted(draw(st.sets(st.integers(1, 2**32 - 1), min_size=1, max_size=5)))
    seconds = sorted(draw(st.lists(st.floats(1e-9, 1e3), min_size=len(sizes), max_size=len(sizes))))
    offset = st.floats(-30, 30) if form == "affine" else st.just(0.0)
    return ParameterDocument(
        deployment=draw(NAMES),
        fingerprint=draw(TEXT),
        version=version,
        previous=draw(st.integers(0, version - 1)),
        gamma=gamma,
        form=form,
        temperatures=draw(st.lists(st.floats(0.01, 100), min_size=gamma, max_size=gamma)),
        offsets=draw(st.lists(offset, min_size=gamma, max_size=gamma)),
        created_at="2026-11-29T10:00:00Z",
        cost=draw(st.none() | st.just(CostCurve(batch_tokens=sizes, seconds=seconds))),
        explore=draw(FRACTIONS),
        share=draw(st.floats(1e-9, 1.0)),
        evidence=draw(st.none() | EVIDENCE),
        segments=draw(st.just([]) | st.just([_segment_set(gamma)])),
    )


def _segment_set(gamma: int) -> SegmentParameters:
    return SegmentParameters(
        segment="code", sampling="*", form="temperature", temperatures=[2.0] * gamma, offsets=[0.0] * gamma
    )


@given(documents(), st.none() | st.binary(min_size=1))
def test_a_sealed_document_is_read_back_as_it_was(document: ParameterDocument, key: bytes | None) -> None:
    original = seal(document, key)
    assert decode_document(encode_document(original), key) == original


@given(documents())
def test_the_canonical_form_does_not_depend_on_how_the_json_is_written(document: ParameterDocument) -> None:
    original = seal(document, KEY)
    rewritten = json.dumps(json.loads(encode_document(original)), indent=4, sort_keys=True)
    assert decode_document(rewritten.encode(), KEY) == original


def test_whole_numbers_and_fractions_have_one_canonical_form() -> None:
    written = sealed(fields(temperatures=[1, 2], offsets=[0, 0]), KEY)
    rewritten = written.replace(b"1.0", b"1").replace(b"2.0", b"2e0")
    assert decode_document(rewritten, KEY).temperatures == [1.0, 2.0]


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (1.0, "1.0"),
        (0.1, "0.1"),
        (0.30000000000000004, "0.30000000000000004"),
        (1e-5, "0.00001"),
        (1.5e-7, "1.5e-7"),
        (1e15, "1000000000000000.0"),
        (1e16, "1e16"),
        (5e-324, "5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e308"),
    ],
)
def test_numbers_are_written_as_the_docs_say(value: float, written: str) -> None:
    document = msgspec.convert(fields(evidence={"n_eff": [value]}), ParameterDocument)
    assert f'"n_eff":[{written}]'.encode() in canonical(document)


def blocks(language: str, heading: str) -> list[str]:
    section = DOCS[DOCS.index(heading) :]
    return re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)


def test_the_example_of_the_docs_holds() -> None:
    example = blocks("json", "## Parameter documents")[0].encode()
    document = decode_document(example, KEY)
    assert canonical(document) == blocks("text", "## Parameter documents")[0].rstrip("\n").encode()
    assert seal(document, KEY) == document
    with pytest.raises(ContractError, match="signature: got '5031"):
        decode_document(example, b"another key")


def test_the_docs_list_every_field() -> None:
    section = DOCS[DOCS.index("### Fields") : DOCS.index("### Canonical form")]
    for struct in (ParameterDocument, CostCurve, Evidence):
        for name in struct.__struct_fields__:
            assert f"`{name}`" in section


def cost(**changes: Any) -> dict[str, Any]:
    curve: dict[str, Any] = {"batch_tokens": [1, 2], "seconds": [1, 1]} | changes
    return {"cost": {name: value for name, value in curve.items() if value is not ...}}


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"schema": "dspark.parameters.v2"}, "schema: got 'dspark.parameters.v2', expected dspark.parameters.v1"),
    ({"schema": 1}, "schema: got 1, expected str"),
    ({"deployment": ""}, "deployment: got ''"),
    ({"deployment": "a{b}"}, "deployment: got 'a{b}'"),
    ({"deployment": "a b"}, "deployment: got 'a b'"),
    ({"deployment": ["x"]}, "deployment: got ['x'], expected str"),
    ({"deployment": ...}, "deployment: got None, expected present"),
    ({"fingerprint": "x" * 129}, "fingerprint: got 'xxx"),
    ({"fingerprint": "a\x00"}, "fingerprint: got 'a\\x00'"),
    ({"version": "2"}, "version: got '2', expected int"),
    ({"version": 2.5}, "version: got 2.5, expected int"),
    ({"version": True}, "version: got True, expected int"),
    ({"version": None}, "version: got None, expected int"),
    ({"version": ...}, "version: got None, expected present"),
    ({"version": 0}, "version: got 0, expected in [1, 2**32)"),
    ({"version": 2**32}, "version: got 4294967296"),
    ({"version": 10**40}, "version: got 1000000000"),
    ({"previous": 2}, "previous: got 2, expected below version = 2"),
    ({"previous": -1}, "previous: got -1"),
    ({"gamma": 0}, "gamma: got 0, expected 1 to 32"),
    ({"gamma": 33}, "gamma: got 33, expected 1 to 32"),
    ({"gamma": 3}, "temperatures: got '2 values', expected one per position, gamma = 3"),
    ({"gamma": [2]}, "gamma: got [2], expected int"),
    ({"form": "cubic"}, "form: got 'cubic', expected one of the words"),
    ({"form": 5}, "form: got 5, expected str"),
    ({"form": "temperature"}, "offsets: position 1: got 0.1, expected 0 in the temperature form"),
    ({"temperatures": [1.0, 0.0]}, "temperatures: position 2: got 0.0, expected in [0.01, 100.0]"),
    ({"temperatures": [-1.0, 1.0]}, "temperatures: position 1: got -1.0"),
    ({"temperatures": [1.0, 1e9]}, "temperatures: position 2: got 1000000000.0"),
    ({"temperatures": [1.0, "2"]}, "temperatures[1]: got '2', expected float"),
    ({"temperatures": [1.0, None]}, "temperatures[1]: got None, expected float"),
    ({"temperatures": {"1": 2}}, "temperatures: got {'1': 2}, expected array"),
    ({"temperatures": [1.0]}, "temperatures: got '1 values'"),
    ({"offsets": [0.0, 31.0]}, "offsets: position 2: got 31.0, expected in [-30.0, 30.0]"),
    ({"offsets": ...}, "offsets: got None, expected present"),
    ({"created_at": "yesterday"}, "created_at: got 'yesterday', expected a time in UTC"),
    ({"created_at": "2026-11-29T10:00:00"}, "created_at: got '2026-11-29T10:00:00', expected a time in UTC"),
    ({"created_at": "2026-11-29T10:00:00+01:00"}, "created_at: got '2026-11-29T10:00:00+01:00'"),
    ({"created_at": 5}, "created_at: got 5, expected str"),
    ({"explore": 1.5}, "explore: got 1.5, expected a probability in [0, 1]"),
    ({"explore": "no"}, "explore: got 'no', expected float"),
    ({"share": 0}, "share: got 0.0, expected in (0, 1]"),
    ({"share": 2}, "share: got 2.0, expected in (0, 1]"),
    ({"cost": []}, "cost: got [], expected object | null"),
    (cost(seconds=...), "cost.seconds: got None, expected present"),
    (cost(batch_tokens=[], seconds=[]), "cost.seconds: got '0 values'"),
    (cost(batch_tokens=[2, 2]), "cost.batch_tokens: got [2, 2], expected strictly increasing"),
    (cost(batch_tokens=[0, 2]), "cost.batch_tokens: got 0, expected in [1, 2**32)"),
    (cost(batch_tokens=[1, 2**32]), "cost.batch_tokens: got 4294967296"),
    (cost(batch_tokens=[1, "x"]), "cost.batch_tokens[1]: got 'x', expected int"),
    (cost(seconds=[2, 1]), "cost.seconds: got [2.0, 1.0], expected non-decreasing"),
    (cost(seconds=[0, 1]), "cost.seconds: got 0.0, expected a positive"),
    (cost(status=["measured", "ok"]), "cost.status: got 'ok', expected one of"),
    (cost(sps=[1, 0]), "cost.sps: got 0.0, expected a positive"),
    (cost(sps=[1]), "cost.sps: got '1 values', expected one per size"),
    (cost(interpolation="cubic"), "cost.interpolation: got 'cubic', expected one of the words"),
    ({"evidence": 5}, "evidence: got 5, expected object | null"),
    ({"evidence": {"n_eff": [1, "x"]}}, "evidence.n_eff[1]: got 'x', expected float | null"),
    ({"digest": 7}, "digest: got 7, expected str"),
    ({"signature": None}, "signature: got None, expected str"),
]


@pytest.mark.parametrize(("changes", "complaint"), WRONG)
def test_every_refusal_names_field_and_value(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ContractError) as refused:
        decode_document(payload(**changes))
    assert complaint in str(refused.value)
    field = complaint.split(":")[0]
    assert refused.value.field.startswith(field)


NEST = b"[" * 100_000


@pytest.mark.parametrize(
    "hostile",
    [
        b"",
        b"\xff{",
        b"null",
        b"[1]",
        b'"text"',
        b"5",
        b"{",
        NEST,
        b'{"version":' + NEST,
        b'{"cost":' * 5_000,
        b'{"evidence": {"reasons": ' + b"[" * 900 + b"]" * 900 + b"}}",
        b'{"version": ' + b"9" * 10_000 + b"}",
        b'{"version": 1e999}',
        b'{"temperatures": [NaN]}',
        b'{"temperatures": [Infinity]}',
        b'{"deployment": "\\ud800"}',
        b'{"deployment": "\xed\xa0\x80"}',
        b"{" + b'"a":1,' * 10_000 + b'"b":1}',
        b" " * (MAX_DOCUMENT_BYTES + 1),
    ],
)
def test_hostile_bytes_are_refused_and_never_raise_anything_else(hostile: bytes) -> None:
    with pytest.raises(ContractError) as refused:
        decode_document(hostile, KEY)
    assert len(str(refused.value)) < 400


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(noise: bytes) -> None:
    with pytest.raises(ContractError):
        decode_document(noise)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(sorted(fields())), JSON_VALUES)
def test_any_value_in_any_field_is_either_fine_or_refused_by_name(name: str, value: Any) -> None:
    try:
        decode_document(payload(**{name: value}))
    except ContractError:
        return


@pytest.mark.parametrize("cut", range(0, 600, 37))
def test_a_truncated_document_is_refused(cut: int) -> None:
    whole = sealed(fields())
    with pytest.raises(ContractError, match="document: got"):
        decode_document(whole[: min(cut, len(whole) - 3)])


@pytest.mark.parametrize("name", [name for name in fields() if name not in ("schema", "form")])
def test_a_changed_field_does_not_keep_its_digest(name: str) -> None:
    document = json.loads(sealed(fields()))
    other = {
        "deployment": "other",
        "fingerprint": "g",
        "version": 3,
        "previous": 0,
        "gamma": 1,
        "temperatures": [1.5, 2.5],
        "offsets": [0.1, 0.1],
        "created_at": "2027-01-01T00:00:00Z",
        "cost": None,
        "evidence": None,
    }
    document[name] = other[name]
    if name == "gamma":
        document["temperatures"], document["offsets"] = [1.5], [0.1]
    with pytest.raises(ContractError, match="digest: got"):
        decode_document(json.dumps(document).encode())


@pytest.mark.parametrize("digest", ["", "0" * 64, "\u00e9" * 64, "D3" * 32])
def test_a_wrong_digest_is_refused_whatever_it_is_made_of(digest: str) -> None:
    document = json.loads(sealed(fields()))
    document["digest"] = digest
    with pytest.raises(ContractError, match="digest: got"):
        decode_document(json.dumps(document).encode())


@pytest.mark.parametrize("signature", ["", "0" * 64, "\u00e9" * 64])
def test_with_a_key_only_its_signature_is_accepted(signature: str) -> None:
    document = json.loads(sealed(fields(), KEY))
    document["signature"] = signature
    written = json.dumps(document).encode()
    with pytest.raises(ContractError, match="signature: got"):
        decode_document(written, KEY)
    assert decode_document(written).version == 2  # without a key it is not looked at


def test_unknown_fields_are_ignored_and_not_covered() -> None:
    document = json.loads(sealed(fields(), KEY))
    document["of_a_later_release"] = 5
    assert decode_document(json.dumps(document).encode(), KEY).version == 2
