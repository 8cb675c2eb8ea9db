"""The replay engine with the real adapter, its ring and its mirror."""

import secrets

import numpy as np
import pytest

from serving_adapter.adapter import ServingAdapter
from serving_adapter.contract import (
    ParameterDocument,
    Rounds,
    VerifyBatch,
    encode_document,
    seal,
)
from serving_adapter.contract.steps import Steps
from serving_adapter.engines.replay import (
    ReplayEngine,
    replay_identity,
)
from serving_adapter.mirror import ParameterMirror, mirror_path
from serving_adapter.ring_reader import RingReader
from serving_adapter.shared_memory import Segment, segment_path
from tests.replay_doubles import DEPLOYMENT


@pytest.fixture
def ring_name():
    name = f"replay-{secrets.token_hex(6)}"
    yield name
    for path in (segment_path(name), mirror_path(name)):
        path.unlink(missing_ok=True)


def document(version, **fields):
    body = {
        "deployment": DEPLOYMENT,
        "fingerprint": replay_identity().fingerprint(),
        "version": version,
        "gamma": 7,
        "form": "affine",
        "temperatures": [1.5] * 7,
        "offsets": [0.25] * 7,
        "created_at": "2026-01-01T00:00:00Z",
        "explore": 0.05,
    }
    return encode_document(seal(ParameterDocument(**{**body, **fields})))


@pytest.fixture
def adapter(ring_name):
    adapter = ServingAdapter(
        replay_identity(),
        DEPLOYMENT,
        "pod-1",
        ring_name,
        explore=0.1,
        rounds_capacity=8192,
        steps_capacity=512,
    )
    assert not adapter.disabled
    yield adapter
    adapter.close()


@pytest.fixture
def reader(adapter, ring_name):
    reader = RingReader(Segment.attach(segment_path(ring_name)))
    yield reader
    reader.close()


def read_all(reader):
    """Everything in the ring, through the contract's own checks."""
    chunk, steps = reader.read_rounds(1 << 20), reader.read_steps(1 << 20)
    columns = {name: column for name, column in chunk.columns.items() if name != "share"}
    rounds = Rounds.build(**columns, segments=reader.labels())
    return chunk, rounds, Steps.build(**steps.columns)


def test_the_ring_holds_what_the_ledger_says(adapter, reader):
    ledger = ReplayEngine(adapter, concurrency=16).run(steps=100)
    chunk, rounds, steps = read_all(reader)
    assert adapter.rejected == 0, adapter.last_rejection
    assert (chunk.first, chunk.lost, chunk.count) == (0, 0, ledger.rounds)
    assert len(steps) == ledger.steps
    assert rounds.verified.sum(dtype=int) == ledger.verified
    assert rounds.accepted.sum(dtype=int) == ledger.accepted
    assert rounds.scheduled.sum(dtype=int) == ledger.scheduled
    assert np.count_nonzero(rounds.verified > rounds.scheduled) <= ledger.explored
    assert steps.batch_tokens.sum(dtype=int) == ledger.batch_tokens
    assert steps.step_seconds.sum(dtype=np.float64) == pytest.approx(ledger.seconds, rel=1e-5)
    names = np.array(rounds.segment_names())
    assert {name: int((names == name).sum()) for name in set(names)} == dict(ledger.rounds_by_segment)
    batch = VerifyBatch(
        deployment=DEPLOYMENT,
        fingerprint=replay_identity().fingerprint(),
        replica="pod-1",
        boot=adapter.boot,
        sequence=0,
        lost=0,
        emitted_at=0,
        rounds=rounds,
        steps=steps,
        gamma=7,
    )
    assert batch.count == ledger.rounds


def test_rows_overwritten_in_the_ring_are_counted_and_the_ledger_still_balances(ring_name):
    small = ServingAdapter(replay_identity(), DEPLOYMENT, "pod-1", ring_name, rounds_capacity=256)
    reader = RingReader(Segment.attach(segment_path(ring_name)))
    try:
        ledger = ReplayEngine(small, concurrency=16).run(steps=100)
        chunk = reader.read_rounds(1 << 20)
        assert chunk.lost > 0
        assert chunk.lost + chunk.count == ledger.rounds
    finally:
        reader.close()
        small.close()


def test_a_mirrored_document_is_applied_and_reported(adapter, reader, ring_name):
    engine = ReplayEngine(adapter, concurrency=8)
    engine.run(steps=2)
    mirror = ParameterMirror.open(ring_name)
    mirror.write(1, document(1))
    engine.run(steps=3)
    assert adapter.report.applied == 1
    mirror.write(2, document(2, gamma=5, temperatures=[1.0] * 5, offsets=[0.0] * 5))
    engine.run(steps=1)
    assert (adapter.report.applied, adapter.report.refused) == (1, 2)
    assert "gamma" in adapter.report.reason
    mirror.close()
    rounds = read_all(reader)[1]
    assert rounds.version.tolist() == [0] * 16 + [1] * 32
    assert set(rounds.explore[:16].tolist()) == {np.float16(0.1)}
    assert set(rounds.explore[16:].tolist()) == {np.float16(0.05)}


def test_shares_are_withheld_as_the_ledger_says(adapter, reader, ring_name):
    mirror = ParameterMirror.open(ring_name)
    mirror.write(1, document(1, share=0.5))
    mirror.close()
    ledger = ReplayEngine(adapter, concurrency=32).run(steps=50)
    assert reader.read_rounds(1 << 20).count == ledger.emitted < ledger.rounds
    assert reader.withheld == ledger.rounds - ledger.emitted
