"""Verify events: round trips, refusals that name field and value, size, and the example of the docs."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving_adapter.contract import Rounds, Steps, VerifyBatch
from serving_adapter.contract.events import (
    CONTENT_TYPE_JSON,
    CONTENT_TYPE_MSGPACK,
    decode,
    encode_json,
    encode_msgpack,
    peek_rows,
)
from serving_adapter.contract.rounds import POSITION_COLUMNS, ROUND_COLUMNS
from serving_adapter.contract.steps import STEP_COLUMNS
from tests.recorded import DATA, NAMES
from tests.verify_batches import batch_of

DOCS = (Path(__file__).parents[1] / "docs" / "contracts.md").read_text()
ENCODINGS = [(encode_msgpack, CONTENT_TYPE_MSGPACK), (encode_json, CONTENT_TYPE_JSON)]
TEXT = st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S"]), min_size=1, max_size=20)
COUNTS = st.integers(0, 2**53 - 1)
U32 = st.integers(0, 2**32 - 1)


def f16(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, width=16, allow_nan=False)


@st.composite
def rounds(draw: st.DrawFn, gamma: int) -> Rounds:
    count = draw(st.integers(1, 6))
    rows = []
    for _ in range(count):
        verified = draw(st.integers(0, gamma))
        accepted = draw(st.integers(0, verified))
        resolved = draw(st.integers(verified, gamma))
        beyond = draw(st.integers(accepted, resolved)) if accepted == verified else accepted
        stop = draw(st.integers(0, gamma - 1) | st.just(255))
        rows.append((verified, accepted, resolved, beyond, draw(st.integers(0, gamma)), stop))
    verified, accepted, resolved, beyond, scheduled, stop = zip(*rows, strict=True)
    segments = draw(st.lists(TEXT, max_size=3))

    def column(values: st.SearchStrategy[Any]) -> Any:
        return draw(st.lists(values, min_size=count, max_size=count))

    def matrix(values: st.SearchStrategy[Any]) -> np.ndarray:
        return np.array(column(st.lists(values, min_size=gamma, max_size=gamma)), dtype=np.float16)

    soft = matrix(f16(0.0, 1.0) | st.just(float("nan"))) if draw(st.booleans()) else None
    return Rounds.build(
        matrix(f16(-65504.0, 65504.0)),
        accepted,
        verified=verified,
        resolved=resolved,
        resolved_accepted=beyond,
        scheduled=scheduled,
        draft_stop=stop,
        request=np.array(column(st.integers(0, 2**64 - 1)), dtype=np.uint64),
        step=column(U32),
        explore=np.array(column(f16(0.0, 1.0)), dtype=np.float16),
        version=column(U32),
        segment=column(st.integers(0, max(0, len(segments) - 1))),
        sampling=np.array(column(f16(0.0, 100.0)), dtype=np.float16),
        accept_probability=soft,
        segments=segments,
    )


@st.composite
def batches(draw: st.DrawFn) -> VerifyBatch:
    gamma = draw(st.integers(1, 32) | st.integers(1, 3))
    count = draw(st.integers(0, 3))
    single = st.floats(0, 1e6, width=32)
    columns = {
        name: draw(st.lists(single if wire == "<f4" else U32, min_size=count, max_size=count))
        for name, wire in STEP_COLUMNS.items()
    }
    for row in range(count):  # what no step can be
        columns["rows"][row] = min(columns["rows"][row], columns["requests"][row])
        columns["graph_tokens"][row] = max(columns["graph_tokens"][row], columns["batch_tokens"][row])
    return VerifyBatch(
        deployment=draw(TEXT),
        fingerprint=draw(TEXT | st.just("")),
        replica=draw(TEXT),
        boot=draw(TEXT),
        sequence=draw(COUNTS),
        lost=draw(COUNTS),
        emitted_at=draw(st.integers(0, 2**63 - 1)),
        gamma=gamma,
        share=draw(st.floats(1e-9, 1.0)),
        steps_sequence=draw(COUNTS),
        steps_lost=draw(COUNTS),
        rounds=draw(st.none() | rounds(gamma)),
        steps=Steps.build(**columns) if count else Steps.empty(),
    )


def same(one: VerifyBatch, other: VerifyBatch) -> bool:
    envelope = [f for f in VerifyBatch.__dataclass_fields__ if f not in ("rounds", "steps")]
    if any(getattr(one, name) != getattr(other, name) for name in envelope):
        return False
    if any(not np.array_equal(getattr(one.steps, c), getattr(other.steps, c)) for c in STEP_COLUMNS):
        return False
    if one.rounds is None or other.rounds is None:
        return one.rounds is other.rounds
    a, b = one.rounds, other.rounds
    soft = (a.accept_probability, b.accept_probability)
    return (
        a.segments == b.segments
        and np.array_equal(a.logits, b.logits)
        and all(np.array_equal(getattr(a, c), getattr(b, c)) for c in ROUND_COLUMNS)
        and ((soft[0] is None and soft[1] is None) or np.array_equal(*soft, equal_nan=True))
    )


@given(batches())
def test_a_batch_is_read_back_as_it_was_in_both_encodings(batch: VerifyBatch) -> None:
    for encode, kind in ENCODINGS:
        assert same(decode(encode(batch), kind), batch)


@given(batches())
def test_what_a_refused_message_says_of_its_rows_can_be_read_without_decoding(batch: VerifyBatch) -> None:
    for encode, kind in ENCODINGS:
        seen = peek_rows(encode(batch), kind)
        if batch.rounds is not None:
            lost = batch.lost if batch.lost <= batch.sequence else 0
            rows = (batch.sequence, batch.count, lost)
            assert seen == (batch.deployment, batch.replica, batch.boot, *rows)


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_round_takes_at_most_40_bytes(name: str) -> None:
    with np.load(DATA / f"rounds-{name}.npz") as file:
        columns = {c: file[c] for c in ROUND_COLUMNS if c in file and c != "accepted"}
        whole = Rounds.build(file["logits"], file["accepted"], segments=file["segments"], **columns)
    assert whole.gamma == 7
    total = 0
    for start in range(0, len(whole), 500):
        part = whole.take(slice(start, start + 500))
        total += len(encode_msgpack(batch_of(part)))
    assert total / len(whole) <= 40


# --- the docs -----------------------------------------------------------------------------------------------


def blocks(language: str) -> list[str]:
    section = DOCS[: DOCS.index("## Parameter documents")]
    return re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)


def test_the_example_of_the_docs_holds() -> None:
    example = blocks("json")[0].encode()
    batch = decode(example, CONTENT_TYPE_JSON)
    assert batch.rounds is not None
    assert (batch.sequence, batch.lost, batch.count, len(batch.steps)) == (1200, 16, 2, 2)
    assert batch.rounds.resolved.tolist() == [3, 3]
    assert batch.rounds.draft_stop.tolist() == [255, 255]
    assert batch.steps.requests.tolist() == [1, 1]
    raw = json.loads(example)
    packed = dict(line.split() for line in blocks("text")[0].splitlines())
    raw["rounds"] |= {name: bytes.fromhex(digits) for name, digits in packed.items()}
    raw["steps"]["step_seconds"] = np.array(raw["steps"]["step_seconds"], dtype="<f4").tobytes()
    raw["steps"]["batch_tokens"] = np.array(raw["steps"]["batch_tokens"], dtype="<u4").tobytes()
    again = decode(msgspec.msgpack.encode(raw), CONTENT_TYPE_MSGPACK)
    assert again.rounds is not None
    assert again.rounds.logits.tolist() == batch.rounds.logits.tolist()
    assert again.rounds.resolved_accepted.tolist() == [3, 0]
    assert again.rounds.step.tolist() == batch.rounds.step.tolist()


def test_the_docs_list_every_column_with_its_type() -> None:
    for name, wire in (ROUND_COLUMNS | POSITION_COLUMNS | STEP_COLUMNS).items():
        shown = {"<u8": "u64", "<u4": "u32", "<u2": "u16", "u1": "u8", "<f2": "f16", "<f4": "f32"}[wire]
        assert re.search(rf"^\| .*`{name}`.*\| {shown}\b", DOCS, re.MULTILINE), name
    for name in VerifyBatch.__dataclass_fields__:
        assert f"`{name}`" in DOCS
