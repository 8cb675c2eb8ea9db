"""Evidence of drift, step costs and the throughput ledger: added once, whatever is delivered how often."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from calibrator.core.cost import DriftCells
from calibrator.core.drift import DriftSums
from calibrator.core.survival import survival
from calibrator.core.throughput_ledger import LedgerEntry, fold_ledger
from calibrator.store import (
    StoreUnavailableError,
    cost_drift,
    deployments,
    drift_sums,
    ledger_sums,
    parameters,
)
from collectors import committing
from collectors.options import PipelineOptions
from collectors.pipeline import IngestPipeline
from serving_adapter.clock import ManualClock
from serving_adapter.contract import ParameterDocument, Steps, seal
from tests.ingest_support import GAMMA, NOW, ListSink, make_batch, make_rounds, message

pytest_plugins = ["tests.store_fixtures"]

ROWS_PER_STEP = 5
WINDOW = int(NOW) // 60 * 60


def pipeline_of(store):
    return IngestPipeline(store, ListSink(), ManualClock(NOW))


@pytest.fixture
def pipeline(store):
    return pipeline_of(store)


def steps_of(rounds, seed=0):
    """Steps that claim these rounds, five each, with predictions that are off by half an octave at most."""
    count = len(rounds) // ROWS_PER_STEP
    random = np.random.default_rng(seed)
    promised = random.uniform(0.01, 0.1, count)
    return Steps.build(
        step_seconds=promised * 2 ** random.uniform(-0.5, 0.5, count),
        draft_seconds=promised / 10,
        verify_seconds=promised / 2,
        rows=[ROWS_PER_STEP] * count,
        requests=random.integers(ROWS_PER_STEP, 40, count),
        batch_tokens=random.integers(40, 300, count),
        context_tokens=random.integers(100, 5000, count),
        predicted_seconds=promised,
    )


def batch_of(rounds, steps, first, last, **changes):
    """Steps ``first`` to ``last`` with their rounds, as one message of a replica."""
    begin, end = first * ROWS_PER_STEP, last * ROWS_PER_STEP
    return make_batch(
        rounds.take(slice(begin, end)),
        begin,
        steps=steps.take(slice(first, last)),
        steps_sequence=first,
        **changes,
    )


def messages_of(rounds, steps, size, **changes):
    count = len(steps)
    return [
        message(batch_of(rounds, steps, i, min(i + size, count), **changes), offset)
        for offset, i in enumerate(range(0, count, size))
    ]


def stored(store):
    """Everything that this module is about, as it is in the database."""
    with store.read() as connection:
        own = deployments.get(connection, "prod")
        evidence = drift_sums.load(connection, own.id, own.gamma)
        ledgers = ledger_sums.query(connection, own.id, 0, 2e9, 60)
        return (
            {
                (v, s): sums.values.tolist()
                for v, segments in evidence.items()
                for s, sums in segments.items()
            },
            {point.start: (point.sums.loads.tolist(), point.sums.sums.tolist()) for point in ledgers},
            (lambda c: (c.keys.tolist(), c.sums.tolist()))(cost_drift.totals(connection, own.id)),
            (lambda c: (c.keys[:, 1:].tolist(), c.sums.tolist()))(
                cost_drift.cells(connection, own.id, 0, 2e9)
            ),
        )


def expected(rounds, steps):
    raw = survival(rounds.logits, np.ones(GAMMA), np.zeros(GAMMA))
    ledger = fold_ledger([LedgerEntry(rounds, steps)])
    cells = DriftCells.fold(steps, 0)
    return (
        {(0, "default"): DriftSums.fold(rounds, raw).values.tolist()},
        {WINDOW: (ledger.loads.tolist(), ledger.sums.tolist())},
        (cells.keys.tolist(), cells.sums.tolist()),
        (cells.keys[:, 1:].tolist(), cells.sums.tolist()),
    )


@pytest.mark.parametrize("size", [60, 7, 1])
def test_sums_are_the_same_however_messages_are_cut(store, pipeline, size):
    rounds = make_rounds(300)
    steps = steps_of(rounds)
    pipeline.ingest(messages_of(rounds, steps, size))
    assert stored(store) == expected(rounds, steps)


def test_one_message_at_a_time_gives_the_same(store, pipeline):
    rounds = make_rounds(200)
    steps = steps_of(rounds)
    for each in messages_of(rounds, steps, 8):
        pipeline.ingest([each])
    assert stored(store) == expected(rounds, steps)


def test_what_is_delivered_twice_counts_once(store, pipeline):
    rounds = make_rounds(200)
    steps = steps_of(rounds)
    messages = messages_of(rounds, steps, 8)
    pipeline.ingest(messages[:3])
    again = [message(batch_of(rounds, steps, 0, 40), 10), message(batch_of(rounds, steps, 8, 16), 11)]
    pipeline.ingest(again)
    assert stored(store) == expected(rounds, steps)


def test_a_message_folded_before_in_part_adds_the_rest(store, pipeline):
    """Its steps claim its rounds, whichever of them are new."""
    rounds = make_rounds(200)
    steps = steps_of(rounds)
    pipeline.ingest([message(batch_of(rounds, steps, 10, 20), 0)])
    pipeline.ingest([message(batch_of(rounds, steps, 0, 40), 1)])
    assert stored(store) == expected(rounds, steps)


def test_rounds_and_steps_sent_again_in_other_messages_count_once(store, pipeline):
    """Rounds came without their steps first: they count for lengths, the steps for times, nothing twice."""
    rounds = make_rounds(100)
    steps = steps_of(rounds)
    pipeline.ingest([message(make_batch(rounds), 0)])
    pipeline.ingest([message(batch_of(rounds, steps, 0, 20), 1)])
    evidence, ledgers, costs, cells = stored(store)
    whole = expected(rounds, steps)
    assert (evidence, costs, cells) == (whole[0], whole[2], whole[3])
    (loads, sums), (_, joined) = ledgers[WINDOW], whole[1][WINDOW]
    assert 0 in loads
    assert np.sum(sums, axis=0).tolist() == np.sum(joined, axis=0).tolist()


def test_two_collectors_at_once_give_the_same(store):
    halves = [(make_rounds(200, seed=seed), f"pod-{seed}") for seed in (0, 1)]
    steps = [steps_of(rounds, seed=seed) for seed, (rounds, _) in enumerate(halves)]

    def collect(partition):
        rounds, replica = halves[partition]
        pipeline = pipeline_of(store)
        for offset, first in enumerate(range(0, 40, 8)):
            batch = batch_of(rounds, steps[partition], first, first + 8, replica=replica)
            pipeline.ingest([message(batch, offset, partition=partition)])

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(collect, (0, 1)))
    both = [expected(rounds, own)[0][0, "default"] for (rounds, _), own in zip(halves, steps, strict=True)]
    evidence, ledgers, costs, _ = stored(store)
    assert evidence == {(0, "default"): np.sum(both, axis=0).tolist()}
    whole = fold_ledger([LedgerEntry(rounds, own) for (rounds, _), own in zip(halves, steps, strict=True)])
    assert ledgers[WINDOW] == (whole.loads.tolist(), whole.sums.tolist())
    cells = DriftCells.fold(Steps.concatenate(steps), 0)
    assert costs == (cells.keys.tolist(), cells.sums.tolist())


def test_a_commit_that_fails_leaves_nothing(store, pipeline, monkeypatch):
    rounds = make_rounds(100)
    steps = steps_of(rounds)
    messages = messages_of(rounds, steps, 10)
    pipeline.ingest(messages[:1])
    before = stored(store)

    def broken(*_):
        raise StoreUnavailableError("taken over")

    with monkeypatch.context() as patched:
        patched.setattr(committing.dead_letters, "append", broken)
        with pytest.raises(StoreUnavailableError):
            pipeline.ingest(messages[1:])
    assert stored(store) == before
    pipeline.ingest(messages[1:])
    assert stored(store) == expected(rounds, steps)


def test_evidence_is_kept_apart_by_the_version_that_served_and_by_segment(store, pipeline):
    first = make_rounds(40, segments=("code", "chat"), segment=np.arange(40) % 2)
    pipeline.ingest([message(make_batch(first), 0)])
    document = ParameterDocument(
        deployment="prod", fingerprint="f" * 32, version=3, previous=0, gamma=GAMMA, form="affine",
        temperatures=[2.0] * GAMMA, offsets=[0.5] * GAMMA, created_at="2026-01-01T00:00:00Z",
    )  # fmt: skip
    with store.write() as connection:
        own = deployments.get(connection, "prod")
        parameters.append(connection, own.id, seal(document), NOW, "published")
    version = np.where(np.arange(60) < 30, 3, np.where(np.arange(60) < 50, 0, 9))
    second = make_rounds(60, seed=1, version=version)
    pipeline.ingest([message(make_batch(second, 40), 1)])
    evidence = stored(store)[0]
    assert set(evidence) == {(0, "code"), (0, "chat"), (0, "default"), (3, "default")}
    by_three = survival(second.logits[:30], [2.0] * GAMMA, [0.5] * GAMMA)
    assert evidence[3, "default"] == DriftSums.fold(second.take(slice(0, 30)), by_three).values.tolist()
    # Rows of a version that nobody knows bear no evidence.
    assert np.array(evidence[0, "default"])[0, 2] == 20


def test_ledgers_fall_into_the_window_of_their_message(store):
    rounds = make_rounds(40)
    steps = steps_of(rounds)
    pipeline = IngestPipeline(store, ListSink(), ManualClock(NOW), PipelineOptions(window_seconds=10))
    for i in range(4):
        batch = batch_of(rounds, steps, 2 * i, 2 * i + 2, emitted_at=NOW - 10 * i)
        pipeline.ingest([message(batch, i)])
    with store.read() as connection:
        own = deployments.get(connection, "prod")
        points = ledger_sums.query(connection, own.id, NOW - 60, NOW + 60, 10)
        whole = ledger_sums.total(connection, own.id, NOW - 60, NOW + 60)
    assert [point.sums.figures().steps for point in points] == [2, 2, 2, 2]
    assert whole == fold_ledger([LedgerEntry(rounds, steps)])
    assert whole == sum((p.sums for p in points[1:]), points[0].sums)
