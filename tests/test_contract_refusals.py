"""Verify events that are refused: every reason names field and value, and nothing else is ever raised."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving_adapter.contract import ContractError, Rounds, Steps
from serving_adapter.contract.events import (
    CONTENT_TYPE_JSON,
    CONTENT_TYPE_MSGPACK,
    MAX_MESSAGE_BYTES,
    decode,
    encode_json,
    encode_msgpack,
    peek_rows,
)
from serving_adapter.contract.rounds import POSITION_COLUMNS, ROUND_COLUMNS
from serving_adapter.contract.steps import STEP_COLUMNS
from tests.verify_batches import batch_of

ENCODINGS = [(encode_msgpack, CONTENT_TYPE_MSGPACK), (encode_json, CONTENT_TYPE_JSON)]


def valid() -> dict[str, Any]:
    return json.loads(
        encode_json(
            batch_of(
                Rounds.build(
                    [[0.5, 1.0], [1.5, 2.0]], [1, 2], verified=[2, 2], segment=[0, 1], segments=["a", "b"]
                ),
                steps=Steps.build(step_seconds=[0.1, 0.2]),
            )
        )
    )


def changed(path: str, value: Any) -> bytes:
    """The valid message as JSON with one field or column replaced, or removed by ``...``."""
    raw = valid()
    *above, last = path.split(".")
    place = raw
    for name in above:
        place = place[name]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return json.dumps(raw).encode()


WRONG: list[tuple[str, Any, str]] = [
    ("schema", "dspark.verify.v2", "schema: got 'dspark.verify.v2', expected dspark.verify.v1"),
    ("schema", ..., "schema: got None"),
    ("deployment", ..., "deployment: got None, expected present"),
    ("deployment", 5, "deployment: got 5, expected 1 to 128"),
    ("deployment", "", "deployment: got '', expected 1 to 128"),
    ("deployment", "x" * 129, "deployment: got 'xxxx"),
    ("deployment", "a\x00b", "deployment: got 'a\\x00b', expected printable"),
    ("replica", "a\u202eb", "replica: got 'a\\u202eb', expected printable"),
    ("boot", None, "boot: got None, expected 1 to 128"),
    ("fingerprint", 7, "fingerprint: got 7, expected at most 128"),
    ("fingerprint", "a\nb", "fingerprint: got 'a\\nb', expected printable"),
    ("sequence", ..., "sequence: got None, expected present"),
    ("sequence", -1, "sequence: got -1, expected a whole number in [0, 2**53)"),
    ("sequence", 2**53, "sequence: got 9007199254740992"),
    ("sequence", 1.5, "sequence: got 1.5"),
    ("sequence", True, "sequence: got True"),
    ("sequence", "0", "sequence: got '0'"),
    ("lost", 2**60, "lost: got 1152921504606846976"),
    ("lost", None, "lost: got None"),
    ("steps_sequence", [0], "steps_sequence: got [0]"),
    ("steps_lost", -5, "steps_lost: got -5"),
    ("emitted_at", 10**40, "emitted_at: got 1000"),
    ("emitted_at", "now", "emitted_at: got 'now'"),
    ("gamma", 0, "gamma: got 0, expected 1 to 32"),
    ("gamma", 33, "gamma: got 33, expected 1 to 32"),
    ("gamma", 3, "logits: row 0: got [0.5, 1.0], expected a list of gamma = 3 numbers"),
    ("gamma", True, "gamma: got True"),
    ("share", 0, "share: got 0, expected in (0, 1]"),
    ("share", 1.5, "share: got 1.5, expected in (0, 1]"),
    ("share", True, "share: got True"),
    ("share", "1", "share: got '1'"),
    ("segments", "ab", "segments: got 'ab', expected a list of labels"),
    ("segments", ["a"], "segment: row 1: got 1, expected an index"),
    ("segments", ["a", 5], "segments: got 5, expected labels"),
    ("segments", ["a", ""], "segments: got '', expected labels"),
    ("rounds", [], "rounds: got 'list', expected an object of columns"),
    ("rounds.logits", ..., "rounds.logits: got None, expected present"),
    ("rounds.accepted", ..., "rounds.accepted: got None, expected present"),
    ("rounds.logits", 5, "logits: got 5, expected a list of rows"),
    ("rounds.logits", [[0.5, 1.0], [1.5]], "logits: row 1: got [1.5], expected a list of gamma = 2"),
    ("rounds.logits", [[0.5, 1.0], [1.5, "2"]], "logits: row 1, position 2: got '2', expected a number"),
    ("rounds.logits", [[0.5, 1.0], [None, 2]], "logits: row 1, position 1: got None, expected a number"),
    ("rounds.logits", [[0.5, True], [1, 2]], "logits: row 0, position 2: got True, expected a number"),
    ("rounds.logits", [[0.5, [1.0]], [1, 2]], "logits: row 0, position 2: got [1.0], expected a number"),
    ("rounds.logits", [[0.5, 10**200], [1, 10**400]], "logits: got 'a very large int'"),
    ("rounds.accepted", [1], "accepted: got 'shape (1,)', expected shape [2]"),
    ("rounds.accepted", [1, 3], "accepted: row 1: got 3, expected at most gamma = 2"),
    ("rounds.accepted", [1, -1], "accepted: row 1: got -1, expected between 0 and 255"),
    ("rounds.accepted", [1, 1.5], "accepted: row 1: got 1.5, expected a whole number"),
    ("rounds.accepted", [1, "2"], "accepted: got '2', expected numbers"),
    ("rounds.accepted", {"a": 1}, "accepted: got {'a': 1}, expected a list"),
    ("rounds.accepted", 10**30, "accepted: got 1000"),
    ("rounds.verified", [0, 2], "accepted: row 0: got 1, expected at most verified"),
    ("rounds.verified", 3, "verified: row 0: got 3, expected at most gamma = 2"),
    ("rounds.scheduled", [2, 9], "scheduled: row 1: got 9, expected at most gamma = 2"),
    ("rounds.resolved", [2, 1], "resolved: row 1: got 1, expected at least verified"),
    ("rounds.resolved", 300, "resolved: row 0: got 300, expected between 0 and 255"),
    (
        "rounds.resolved_accepted",
        [2, 2],
        "resolved_accepted: row 0: got 2, expected accepted after a rejection",
    ),
    ("rounds.draft_stop", [0, 2], "draft_stop: row 1: got 2, expected below gamma = 2, or 255"),
    ("rounds.request", [1, 2**64], "request: got"),
    ("rounds.request", [1, -1], "request: row 1: got -1"),
    ("rounds.step", [1, 2**32], "step: row 1: got 4294967296"),
    ("rounds.explore", [0, 1.5], "explore: row 1: got 1.5, expected a probability in [0, 1]"),
    ("rounds.explore", -0.5, "explore: row 0: got -0.5, expected a probability"),
    ("rounds.version", "7", "version: got '7', expected a list, or one number"),
    ("rounds.segment", [0, 2], "segment: row 1: got 2, expected an index into segments (2)"),
    ("rounds.sampling", [0, -1], "sampling: row 1: got -1.0, expected a temperature >= 0"),
    ("rounds.accept_probability", [[0, 1], [0.5, 1.5]], "accept_probability: row 1, position 2: got 1.5"),
    ("rounds.accept_probability", [[0, 1]], "accept_probability: got 'shape (1, 2)', expected shape [2, 2]"),
    ("rounds.accept_probability", [[0, 1], [0, "x"]], "accept_probability: row 1, position 2: got 'x'"),
    ("steps", 5, "steps: got 'int', expected an object of columns"),
    ("steps.step_seconds", ..., "steps.step_seconds: got None"),
    ("steps.step_seconds", [0.1, -1], "steps.step_seconds: row 1: got -1.0, expected a finite number >= 0"),
    (
        "steps.step_seconds",
        [0.1, 1e300],
        "steps.step_seconds: row 1: got 1e+300, expected a number that fits",
    ),
    ("steps.step_seconds", [0.1, "x"], "steps.step_seconds: got 'x', expected numbers"),
    ("steps.rows", [1, 2, 3], "steps.rows: got 'shape (3,)', expected shape [2]"),
    ("steps.rows", [1, 2**32], "steps.rows: row 1: got 4294967296, expected at most 2**32 - 1"),
    ("steps.rows", [1, 2.5], "steps.rows: row 1: got 2.5, expected a whole number"),
    ("steps.batch_tokens", [[1], [2]], "steps.batch_tokens: got [1], expected numbers"),
]


@pytest.mark.parametrize(("path", "value", "complaint"), WRONG)
def test_every_refusal_names_field_and_value(path: str, value: Any, complaint: str) -> None:
    with pytest.raises(ContractError) as refused:
        decode(changed(path, value), CONTENT_TYPE_JSON)
    assert complaint in str(refused.value)


PACKED: list[tuple[str, Any, str]] = [
    ("logits", b"\x00" * 7, "logits: got '7 bytes', expected a multiple of 2 bytes"),
    ("logits", b"\x00" * 6, "logits: got '3 values', expected a multiple of gamma = 2"),
    ("logits", b"\x00\x7e" * 4, "logits: row 0, position 1: got nan, expected a finite number"),
    ("logits", b"\x00\x00\x00\xfc" * 2, "logits: row 0, position 2: got -inf, expected a finite number"),
    ("logits", [[1.0, 2.0]], "logits: got [[1.0, 2.0]], expected packed little-endian f2"),
    ("logits", "text", "logits: got 'text', expected packed little-endian f2"),
    ("accepted", b"\x01", "accepted: got 'shape (1,)', expected shape [2]"),
    ("accepted", b"\x01\x09", "accepted: row 1: got 9, expected at most gamma = 2"),
    ("accepted", [1, 2], "accepted: got [1, 2], expected packed little-endian u1"),
    ("request", b"\x00" * 15, "request: got '15 bytes', expected a multiple of 8 bytes"),
    ("explore", b"\x00\x7e\x00\x00", "explore: row 0: got nan, expected a probability"),
    ("explore", float("nan"), "explore: row 0: got nan, expected a probability"),
    ("sampling", b"\x00\x7c\x00\x00", "sampling: row 0: got inf, expected a temperature"),
    ("version", float("inf"), "version: row 0: got inf, expected a whole number"),
]


@pytest.mark.parametrize(("column", "value", "complaint"), PACKED)
def test_packed_columns_are_checked_as_well(column: str, value: Any, complaint: str) -> None:
    raw = msgspec.msgpack.decode(encode_msgpack(decode(json.dumps(valid()).encode(), CONTENT_TYPE_JSON)))
    raw["rounds"][column] = value
    with pytest.raises(ContractError) as refused:
        decode(msgspec.msgpack.encode(raw), CONTENT_TYPE_MSGPACK)
    assert complaint in str(refused.value)


def test_one_number_stands_for_a_whole_column_and_what_is_unknown_is_ignored() -> None:
    raw = valid()
    raw["rounds"] |= {
        "accepted": 1,
        "verified": 2,
        "resolved": 2,
        "resolved_accepted": 1,
        "of_later": [1, 2, 3],
    }
    raw |= {"of_a_later_release": {"a": 1}}
    batch = decode(json.dumps(raw).encode(), CONTENT_TYPE_JSON)
    assert batch.rounds is not None
    assert batch.rounds.accepted.tolist() == [1, 1]
    assert peek_rows(json.dumps(raw).encode(), CONTENT_TYPE_JSON) == (
        "chat",
        "pod-1",
        raw["boot"],
        0,
        2,
        0,
    )


def test_a_message_may_only_say_what_was_lost() -> None:
    raw = valid() | {"lost": 7, "rounds": {}, "steps": {}}
    batch = decode(json.dumps(raw).encode(), CONTENT_TYPE_JSON)
    assert (batch.count, batch.lost, batch.rounds) == (0, 7, None)


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/json", "application/vnd.dspark.verify.v2+json"]
)
def test_an_unknown_content_type_is_refused_by_name(kind: str) -> None:
    with pytest.raises(ContractError, match="content-type: got"):
        decode(b"{}", kind)


def test_a_content_type_may_have_parameters_and_capitals() -> None:
    written = json.dumps(valid()).encode()
    assert decode(written, f"{CONTENT_TYPE_JSON.upper()}; charset=utf-8").count == 2


def test_a_logit_that_f16_cannot_hold_is_refused_when_it_is_sent() -> None:
    batch = batch_of(Rounds.build([[1.0, 70_000.0]], [0], verified=[2]))
    for encode, _ in ENCODINGS:
        with pytest.raises(ContractError, match=r"logits: row 0, position 2: got 70000\.0"):
            encode(batch)


HOSTILE = [
    b"",
    b"\xff{",
    b"null",
    b"5",
    b'"text"',
    b"[]",
    b"{",
    b"[" * 100_000,
    b'{"schema": "dspark.verify.v1", "rounds": ' + b"[" * 900 + b"]" * 900 + b"}",
    b'{"gamma": ' + b"9" * 5_000 + b"}",
    b'{"a": NaN}',
    b'{"deployment": "\\ud800"}',
    b"\x91" * 100_000,
    b"\xdd\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xffab",
    b"\xdf\xff\xff\xff\xff",
    b"\x81\x81\x01\x02\x03",
    b"\xd6\xff\x00\x00\x00\x01",
    b"\xd4\x05\x00",
    b"\x01\x01",
    b"x" * (MAX_MESSAGE_BYTES + 1),
]


@pytest.mark.parametrize("kind", [CONTENT_TYPE_MSGPACK, CONTENT_TYPE_JSON])
@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_bytes_are_refused_and_never_raise_anything_else(hostile: bytes, kind: str) -> None:
    with pytest.raises(ContractError) as refused:
        decode(hostile, kind)
    assert len(str(refused.value)) < 400
    assert peek_rows(hostile, kind) is None


def test_values_too_large_to_write_out_are_still_named() -> None:
    deep: Any = []
    for _ in range(900):
        deep = [deep]
    for value in (10**5_000, deep, b"x" * 10_000_000, "x" * 10_000_000, [0] * 1_000_000):
        message = str(ContractError("field", value, "less"))
        assert message.startswith("field: got ")
        assert len(message) < 200


@given(st.binary(max_size=200), st.sampled_from([CONTENT_TYPE_MSGPACK, CONTENT_TYPE_JSON]))
def test_random_bytes_are_refused(noise: bytes, kind: str) -> None:
    with pytest.raises(ContractError):
        decode(noise, kind)
    peek_rows(noise, kind)


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=16),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
PLACES = [
    *valid(),
    *(f"rounds.{name}" for name in (*ROUND_COLUMNS, *POSITION_COLUMNS)),
    *(f"steps.{name}" for name in STEP_COLUMNS),
]


@given(st.sampled_from(PLACES), ANYTHING)
def test_any_value_in_any_field_is_either_fine_or_refused(path: str, value: Any) -> None:
    raw = msgspec.msgpack.decode(encode_msgpack(decode(json.dumps(valid()).encode(), CONTENT_TYPE_JSON)))
    *above, last = path.split(".")
    place = raw
    for name in above:
        place = place[name]
    place[last] = value
    payload = msgspec.msgpack.encode(raw)
    peek_rows(payload, CONTENT_TYPE_MSGPACK)
    try:
        decode(payload, CONTENT_TYPE_MSGPACK)
    except ContractError:
        return


@given(st.data(), st.sampled_from(ENCODINGS))
def test_a_truncated_message_is_refused(data: st.DataObject, encoding: Any) -> None:
    encode, kind = encoding
    whole = encode(batch_of(Rounds.build([[0.5, 1.0]], [1], verified=[2])))
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(ContractError, match="message: got"):
        decode(whole[:cut], kind)
