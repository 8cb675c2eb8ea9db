"""Every row is folded exactly once, whatever is delivered, how often, and wherever it breaks."""

import msgspec
import numpy as np
import pytest

from calibrator.core.sums import LARGEST_SUM
from calibrator.core.windows import SCALARS, WindowSums
from calibrator.store import (
    DataRefusedError,
    FencedError,
    Store,
    StoreUnavailableError,
    boots,
    dead_letters,
    deployments,
    parameters,
    positions,
    sample,
    step_sample,
    windows,
)
from calibrator.store.windows import Cell
from collectors import committing
from collectors.dead_letters import OFFSET_HEADER, REASON_HEADER
from collectors.options import PipelineOptions
from collectors.pipeline import IngestPipeline
from serving_adapter.clock import ManualClock
from serving_adapter.contract import ParameterDocument, Rounds, seal
from serving_adapter.contract.events import (
    CONTENT_TYPE_JSON,
    CONTENT_TYPE_MSGPACK,
    TOPIC,
    encode_json,
    encode_msgpack,
)
from serving_adapter.ports import TransportError
from tests.ingest_support import (
    GAMMA,
    NOW,
    ListSink,
    cut,
    expected_sums,
    ledger,
    make_batch,
    make_rounds,
    make_steps,
    message,
    stored_sums,
)

pytest_plugins = ["tests.store_fixtures"]


@pytest.fixture
def sink():
    return ListSink()


@pytest.fixture
def pipeline(store, sink):
    return IngestPipeline(store, sink, ManualClock(NOW))


def balanced(store):
    totals = ledger(store)
    assert totals.in_flight == 0
    assert totals.emitted == totals.folded + totals.lost + totals.dead_lettered
    return totals


def test_sums_equal_a_fold_of_all_rows(store, pipeline):
    rounds = make_rounds(500)
    result = pipeline.ingest(cut(rounds, 40))
    assert result.folded == 500
    assert stored_sums(store) == expected_sums(rounds)
    assert stored_sums(store, raw=False) == expected_sums(rounds)
    assert balanced(store).folded == 500
    assert result.positions == {(TOPIC, 0): 13}


def test_json_and_msgpack_give_the_same_sums(store, pipeline):
    rounds = make_rounds(60)
    pipeline.ingest([message(encode_json(make_batch(rounds)), 0, content_type=CONTENT_TYPE_JSON)])
    assert stored_sums(store) == expected_sums(rounds)


def test_the_same_message_twice_counts_once(store, pipeline):
    rounds = make_rounds(100)
    batch = make_batch(rounds)
    pipeline.ingest([message(batch, 0), message(batch, 1)])
    result = pipeline.ingest([message(batch, 2)])
    assert result.folded == 0
    assert result.duplicates_discarded == 100
    assert stored_sums(store) == expected_sums(rounds)
    assert balanced(store).duplicates_discarded == 200


def test_a_message_below_the_position_is_skipped(store, pipeline):
    messages = cut(make_rounds(100), 25)
    pipeline.ingest(messages[:3])
    result = pipeline.ingest(messages)
    assert (result.skipped_messages, result.folded, result.duplicates_discarded) == (3, 25, 0)


def test_rows_sent_again_with_other_boundaries_count_once(store, pipeline):
    rounds = make_rounds(300)
    pipeline.ingest([message(make_batch(rounds.take(slice(0, 120))), 0)])
    pipeline.ingest([message(make_batch(rounds.take(slice(70, 300)), 70), 1)])
    assert stored_sums(store) == expected_sums(rounds)
    assert balanced(store).duplicates_discarded == 50


def test_gaps_are_filled_by_late_messages(store, pipeline):
    rounds = make_rounds(90)
    first, second, third = (make_batch(rounds.take(slice(i, i + 30)), i) for i in (0, 30, 60))
    pipeline.ingest([message(first, 0), message(third, 1)])
    assert ledger(store).in_flight == 30
    pipeline.ingest([message(second, 2)])
    assert stored_sums(store) == expected_sums(rounds)
    assert balanced(store).folded == 90


def test_lost_rows_are_counted_and_come_back_if_they_arrive_after_all(store, pipeline):
    rounds = make_rounds(100)
    late = make_batch(rounds.take(slice(40, 60)), 40)
    pipeline.ingest(
        [
            message(make_batch(rounds.take(slice(0, 40))), 0),
            message(make_batch(rounds.take(slice(60, 100)), 60, lost=20), 1),
        ]
    )
    assert balanced(store).lost == 20
    result = pipeline.ingest([message(late, 2)])
    assert result.lost == -20
    assert balanced(store).lost == 0
    assert stored_sums(store) == expected_sums(rounds)


def test_loss_reported_twice_or_of_folded_rows_is_not_counted_twice(store, pipeline):
    rounds = make_rounds(100)
    tail = make_batch(rounds.take(slice(50, 100)), 50, lost=50)
    pipeline.ingest([message(make_batch(rounds.take(slice(0, 30))), 0), message(tail, 1), message(tail, 2)])
    totals = balanced(store)
    assert (totals.folded, totals.lost) == (80, 20)


POISON = {
    "not msgpack": b"\xff{",
    "empty": b"",
    "five megabytes": b"x" * 5_000_000,
    "wrong type": b"[1, 2, 3]",
    "other schema": encode_json(make_batch(make_rounds(3))).replace(b"dspark.verify.v1", b"dspark.verify.v9"),
}


@pytest.mark.parametrize("content_type", [CONTENT_TYPE_MSGPACK, CONTENT_TYPE_JSON, "text/plain"])
def test_poison_never_stops_its_neighbours(store, pipeline, sink, content_type):
    rounds = make_rounds(80)
    good = [make_batch(rounds.take(slice(i, i + 20)), i) for i in (0, 20, 40, 60)]
    bad = [message(value, 10 + i, content_type=content_type) for i, value in enumerate(POISON.values())]
    pipeline.ingest(
        [message(good[0], 0), message(good[1], 1), *bad, message(good[2], 20), message(good[3], 21)]
    )
    assert stored_sums(store) == expected_sums(rounds)
    assert balanced(store).folded == 80
    assert [dict(m.headers)[OFFSET_HEADER] for m in sink.messages] == [b"10", b"11", b"12", b"13", b"14"]
    assert all(dict(m.headers)[REASON_HEADER] for m in sink.messages)
    assert max(len(m.value) for m in sink.messages) <= 1024 * 1024
    with store.read() as connection:
        listed = dead_letters.recent(connection)
    assert [each.offset for each in listed] == [14, 13, 12, 11, 10]
    assert listed[2].size == 5_000_000


def test_gamma_of_another_deployment_is_refused_and_booked(store, pipeline, sink):
    rounds = make_rounds(20)
    other = make_batch(make_rounds(7, gamma=3), 20)
    pipeline.ingest([message(make_batch(rounds), 0), message(other, 1)])
    assert stored_sums(store) == expected_sums(rounds)
    totals = balanced(store)
    assert (totals.folded, totals.dead_lettered) == (20, 7)
    assert b"gamma: got 3, expected 5" in dict(sink.messages[0].headers)[REASON_HEADER]


def test_rows_of_an_undecodable_message_are_booked_even_before_their_deployment_is_known(
    store,
    pipeline,
):
    rounds = make_rounds(20)
    raw = msgspec.msgpack.decode(encode_msgpack(make_batch(rounds.take(slice(0, 8)))))
    raw["rounds"]["accepted"] = bytes([9] * 8)
    pipeline.ingest([message(msgspec.msgpack.encode(raw), 0)])
    pipeline.ingest([message(make_batch(rounds.take(slice(8, 20)), 8), 1)])
    totals = balanced(store)
    assert (totals.emitted, totals.folded, totals.dead_lettered) == (20, 12, 8)


@pytest.mark.parametrize("with_rounds", [True, False])
@pytest.mark.parametrize("decodable", [True, False])
def test_step_rows_of_a_refused_message_are_booked(store, pipeline, with_rounds, decodable):
    steps = make_steps(10)
    first = make_batch(make_rounds(8), steps=steps.take(slice(0, 4)))
    gamma = GAMMA if not decodable else 3
    rounds = make_rounds(6, gamma=gamma) if with_rounds else None
    other = make_batch(rounds, 8, steps=steps.take(slice(5, 8)), steps_sequence=5, steps_lost=1, gamma=gamma)
    raw = msgspec.msgpack.decode(encode_msgpack(other))
    if not decodable:
        raw["steps"]["requests"] = b"odd"
    then = make_batch(None, 14 if with_rounds else 8, steps=steps.take(slice(8, 10)), steps_sequence=8)
    pipeline.ingest([message(first, 0), message(msgspec.msgpack.encode(raw), 1), message(then, 2)])
    totals = ledger(store, kind="step")
    assert (totals.emitted, totals.folded, totals.lost, totals.dead_lettered) == (10, 6, 1, 3)
    assert balanced(store).dead_lettered == (6 if with_rounds else 0)


def test_what_was_refused_and_lost_before_its_deployment_is_known_is_booked_when_it_is(store, pipeline):
    rounds, steps = make_rounds(30), make_steps(12)

    def refused(batch, offset):
        raw = msgspec.msgpack.decode(encode_msgpack(batch))
        raw["schema"] = "dspark.verify.v9"
        pipeline.ingest([message(msgspec.msgpack.encode(raw), offset)])

    part = rounds.take(slice(5, 10))
    refused(make_batch(part, 5, lost=5, steps=steps.take(slice(2, 6)), steps_sequence=2, steps_lost=2), 0)
    refused(make_batch(None, 10, steps=steps.take(slice(6, 9)), steps_sequence=6), 1)
    assert ledger(store, kind="step").emitted == 0  # there is nothing yet to book it in
    last = make_batch(rounds.take(slice(10, 30)), 10, steps=steps.take(slice(9, 12)), steps_sequence=9)
    pipeline.ingest([message(last, 2)])
    totals = balanced(store)
    assert (totals.emitted, totals.folded, totals.lost, totals.dead_lettered) == (30, 20, 5, 5)
    totals = ledger(store, kind="step")
    assert (totals.emitted, totals.folded, totals.lost, totals.dead_lettered) == (12, 3, 2, 7)
    assert totals.in_flight == 0


def test_rows_dead_lettered_once_and_good_later_are_folded(store, pipeline):
    rounds = make_rounds(20)
    raw = msgspec.msgpack.decode(encode_msgpack(make_batch(rounds)))
    raw["rounds"]["accepted"] = bytes([9] * 20)
    pipeline.ingest([message(msgspec.msgpack.encode(raw), 0), message(make_batch(rounds), 1)])
    totals = balanced(store)
    assert (totals.folded, totals.dead_lettered) == (20, 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"fingerprint": "a\x00b"},
        {"sequence": 2**62},
        {"sequence": 2**63 - 1},
        {"sequence": 2**64 - 1},
        {"steps_sequence": 2**60},
        {"deployment": "a\u202eb"},
        {"boot": "\x00"},
    ],
)
def test_what_no_database_can_hold_is_refused_alone(store, pipeline, sink, changes):
    rounds = make_rounds(20)
    raw = msgspec.msgpack.decode(encode_msgpack(make_batch(make_rounds(5), steps=make_steps(3))))
    hostile = message(msgspec.msgpack.encode(raw | changes), 1)
    pipeline.ingest([message(make_batch(rounds.take(slice(0, 5))), 0), hostile])
    pipeline.ingest([message(make_batch(rounds.take(slice(5, 20)), 5), 2)])
    assert len(sink.messages) == 1
    assert stored_sums(store) == expected_sums(rounds)
    assert ledger(store).folded == 20


def test_a_value_that_the_database_refuses_is_found_and_dead_lettered(
    store,
    pipeline,
    sink,
    monkeypatch,
):
    rounds = make_rounds(80)
    save = boots.save

    def refuse_one_replica(connection, deployment_id, boot):
        if boot.replica == "pod-bad" and boot.rounds.folded:
            raise DataRefusedError("out of range")
        return save(connection, deployment_id, boot)

    monkeypatch.setattr(boots, "save", refuse_one_replica)
    messages = cut(rounds, 10)
    bad = make_batch(make_rounds(4, 9), replica="pod-bad")
    result = pipeline.ingest([*messages[:5], message(bad, 5), *cut_from(messages[5:], 6)])
    assert result.dead_lettered_messages == 1
    assert b"refused by the database" in dict(sink.messages[0].headers)[REASON_HEADER]
    assert stored_sums(store) == expected_sums(rounds)
    assert result.positions == {(TOPIC, 0): 9}


def cut_from(messages, offset):
    return [message(m.value, offset + i) for i, m in enumerate(messages)]


def test_a_zombie_is_fenced_and_its_commit_is_undone_as_a_whole(store, sink):
    rounds = make_rounds(100)
    messages = cut(rounds, 20)
    zombie, heir = (IngestPipeline(store, sink, ManualClock(NOW)) for _ in range(2))
    zombie.ingest(messages[:1])
    assert heir.positions(TOPIC, [0]) == {0: 1}
    heir.ingest(messages[1:4])
    elsewhere = message(make_batch(make_rounds(10, 5), boot="boot-2"), 0, partition=1)
    with pytest.raises(FencedError):
        zombie.ingest([elsewhere, *messages[1:]])
    assert ledger(store).folded == 80
    assert zombie.positions(TOPIC, [0, 1]) == {0: 4}
    zombie.ingest([elsewhere, *messages])
    assert ledger(store).folded == 110


COMMIT_STEPS = [
    (deployments, "register"),
    (deployments, "lock"),
    (positions, "advance"),
    (boots, "save"),
    (deployments, "add_segments"),
    (windows, "add"),
    (sample, "open_stratum"),
    (sample, "offer"),
    (step_sample, "offer"),
    (dead_letters, "append"),
    (committing, "write_plan"),
]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("module", "name"), COMMIT_STEPS, ids=[f"{m.__name__}.{n}" for m, n in COMMIT_STEPS])
def test_a_crash_at_any_step_of_the_commit_loses_and_doubles_nothing(
    store,
    sink,
    monkeypatch,
    module,
    name,
    after,
):
    class CrashError(Exception):
        pass

    rounds = make_rounds(200, segment=np.arange(200) % 2, segments=("math", "code"))
    messages = [
        *cut(rounds, 50, steps=make_steps(10)),
        message(b"\xff{", 4),
    ]
    broken = __import__("collectors.pipeline", fromlist=["x"]) if name == "write_plan" else module
    original = getattr(broken, name)

    def crash(*arguments, **options):
        if after:
            original(*arguments, **options)
        raise CrashError

    with monkeypatch.context() as patched:
        patched.setattr(broken, name, crash)
        with pytest.raises(CrashError):
            IngestPipeline(store, sink, ManualClock(NOW)).ingest(messages)
    assert ledger(store).emitted == 0
    successor = IngestPipeline(store, sink, ManualClock(NOW))
    assert successor.positions(TOPIC, [0]) == {}
    successor.ingest(messages)
    assert stored_sums(store) == expected_sums(rounds)
    assert balanced(store).folded == 200


def test_an_unavailable_store_changes_nothing_and_a_retry_succeeds(store, pipeline, monkeypatch):
    rounds = make_rounds(50)

    def unavailable(*_arguments, **_options):
        raise StoreUnavailableError("database or disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(windows, "add", unavailable)
        with pytest.raises(StoreUnavailableError):
            pipeline.ingest(cut(rounds, 10))
    pipeline.ingest(cut(rounds, 10))
    assert stored_sums(store) == expected_sums(rounds)


def test_nothing_is_committed_past_a_letter_that_was_not_sent(store, pipeline, sink):
    sink.failing = True
    messages = [message(make_batch(make_rounds(10)), 0), message(b"", 1)]
    with pytest.raises(TransportError):
        pipeline.ingest(messages)
    assert ledger(store).emitted == 0
    sink.failing = False
    pipeline.ingest(messages)
    assert ledger(store).folded == 10
    assert len(sink.messages) == 1


def document(version, temperatures, offsets):
    return seal(
        ParameterDocument(
            deployment="prod",
            fingerprint="f" * 32,
            version=version,
            gamma=GAMMA,
            form="affine",
            temperatures=temperatures,
            offsets=offsets,
            created_at="2026-01-01T00:00:00Z",
        )
    )


def test_rows_are_folded_under_the_parameters_that_were_in_force(store, pipeline):
    version = np.arange(90) % 3
    rounds = make_rounds(90, version=version)
    warm = document(1, [1.5] * GAMMA, [0.2] * GAMMA)
    with store.write() as connection:
        own = deployments.register(connection, "prod", GAMMA, "f" * 32, NOW)
        parameters.append(connection, own.id, warm, NOW, "published")
    result = pipeline.ingest(cut(rounds, 30))
    assert result.unknown_version == 30
    assert stored_sums(store) == expected_sums(rounds)
    known = expected_sums(rounds.take(version == 0)) + expected_sums(
        rounds.take(version == 1), warm.temperatures, warm.offsets
    )
    assert stored_sums(store, raw=False) == known
    assert ledger(store).unknown_version == 30


def test_rows_of_a_clock_gone_wrong_are_folded_at_their_arrival(store, pipeline):
    stamps = {"ahead": NOW + 3600, "ancient": NOW - 3 * 86400, "recent": NOW - 3600}
    for offset, (boot, stamp) in enumerate(stamps.items()):
        pipeline.ingest([message(make_batch(make_rounds(10), boot=boot, emitted_at=stamp), offset)])
    with store.read() as connection:
        own = deployments.get(connection, "prod")
        points = windows.query(connection, own.id, GAMMA, NOW - 7200, NOW + 7200, 60, raw=True)
    assert [(p.start, p.sums.scalars[0, 0]) for p in points] == [
        (int(NOW - 3600) // 60 * 60, 10),
        (int(NOW) // 60 * 60, 20),
    ]
    assert ledger(store).misdated == 20


def test_ten_thousand_segment_labels_stay_bounded(store, pipeline):
    count = 10_000
    rounds = make_rounds(count, segment=np.arange(count), segments=[f"user-{i}" for i in range(count)])
    pipeline.ingest(cut(rounds, 2_500))
    with store.read() as connection:
        own = deployments.get(connection, "prod")
        names = deployments.segments(connection, own.id)
        other = windows.query(connection, own.id, GAMMA, 0, NOW * 2, raw=True, segment="other")
    assert len(names) == deployments.MAX_SEGMENTS
    assert other[0].sums.scalars[0, 0] == count - (deployments.MAX_SEGMENTS - 1)
    assert stored_sums(store) == expected_sums(rounds)


def test_a_label_that_cannot_be_printed_is_other(store, pipeline):
    pipeline.ingest([message(make_batch(make_rounds(10, segments=["a\x00b"])), 0)])
    with store.read() as connection:
        own = deployments.get(connection, "prod")
        assert set(deployments.segments(connection, own.id)) == {"other"}


def test_messages_register_a_bounded_number_of_deployments(store, sink):
    pipeline = IngestPipeline(store, sink, ManualClock(NOW), PipelineOptions(max_deployments=3))
    messages = [message(make_batch(make_rounds(2), deployment=f"d-{i}"), i) for i in range(5)]
    pipeline.ingest(messages[:2])
    pipeline.ingest(messages[2:])
    with store.read() as connection:
        assert deployments.count(connection) == 3
    assert len(sink.messages) == 2


def test_rows_of_another_fingerprint_are_folded_and_counted(store, pipeline):
    pipeline.ingest([message(make_batch(make_rounds(10)), 0)])
    result = pipeline.ingest([message(make_batch(make_rounds(10), boot="b2", fingerprint="other"), 1)])
    assert (result.folded, result.other_fingerprint) == (10, 10)
    with store.read() as connection:
        own = deployments.get(connection, "prod")
        assert boots.fingerprints(connection, own.id) == {"f" * 32: 1, "other": 1}
        assert len(sample.load(connection, own.id, GAMMA, NOW, fingerprint="other")) == 10


def test_the_samples_stay_bounded_and_stand_for_the_traffic(store, sink):
    options = PipelineOptions(sample_rows=200, step_rows=20)
    pipeline = IngestPipeline(store, sink, ManualClock(NOW), options)
    rounds = make_rounds(6_000, sampling=np.float16(0.7))
    pipeline.ingest(cut(rounds, 500, steps=steps_of_one_size(30)))
    with store.read() as connection:
        own = deployments.get(connection, "prod")
        kept = sample.load(connection, own.id, GAMMA, NOW)
        strata = sample.strata(connection, own.id)
        steps = step_sample.load(connection, own.id, NOW)
    assert len(kept) == 200
    assert (strata["default", "mid"].kept, strata["default", "mid"].seen) == (200, 6_000)
    assert kept.weights.sum() == pytest.approx(6_000, rel=0.25)
    assert len(steps) == 20
    for row, number in zip(range(len(kept)), kept.row_number.tolist(), strict=True):
        assert np.array_equal(kept.rounds.logits[row], rounds.logits[number])
        assert kept.rounds.request[row] == rounds.request[number]
        assert kept.rounds.accepted[row] == rounds.accepted[number]


def steps_of_one_size(count):
    from serving_adapter.contract import Steps

    return Steps.build(step_seconds=np.full(count, 0.01), batch_tokens=100)


def test_the_sample_does_not_depend_on_how_rows_were_cut_or_ordered(store, sink):
    options = PipelineOptions(sample_rows=100)
    rounds = make_rounds(2_000)
    pipeline = IngestPipeline(store, sink, ManualClock(NOW), options)
    batches = [make_batch(rounds.take(slice(i, i + 250)), i) for i in range(0, 2_000, 250)]
    pipeline.ingest([message(batch, i) for i, batch in enumerate(batches)])
    other = [make_batch(rounds.take(slice(i, i + 100)), i, deployment="prod") for i in range(1_900, -1, -100)]
    with store.read() as connection:
        first = sample.load(connection, deployments.get(connection, "prod").id, GAMMA, NOW)
    fresh = Store("sqlite://")
    fresh.migrate()
    again = IngestPipeline(fresh, sink, ManualClock(NOW), options)
    for offset, batch in enumerate(other):
        again.ingest([message(batch, offset)])
    with fresh.read() as connection:
        second = sample.load(connection, deployments.get(connection, "prod").id, GAMMA, NOW)
    assert first.row_number.tolist() == second.row_number.tolist()
    assert np.array_equal(first.weights, second.weights)


def test_soft_labels_and_extreme_logits_survive_the_sample(store, pipeline):
    soft = np.array([[1.0, 0.5, np.nan, np.nan, np.nan]])
    rounds = Rounds.build(np.zeros((1, GAMMA)), [1], verified=[2], accept_probability=soft)
    raw = msgspec.json.decode(encode_json(make_batch(rounds)))
    raw["rounds"]["logits"] = [[1e6, -1e6, 0.0, 1.0, -1.0]]
    pipeline.ingest([message(msgspec.json.encode(raw), 0, content_type=CONTENT_TYPE_JSON)])
    with store.read() as connection:
        own = deployments.get(connection, "prod")
        kept = sample.load(connection, own.id, GAMMA, NOW)
    assert kept.rounds.logits.tolist() == [[65504.0, -65504.0, 0.0, 1.0, -1.0]]
    assert np.array_equal(kept.rounds.accept_probability, soft, equal_nan=True)


def test_a_ring_that_overflows_at_every_flush_keeps_the_ledger_small_and_balanced(store, pipeline):
    rounds = make_rounds(2)
    batches = [message(make_batch(rounds, 3 * i + 1, lost=1), i) for i in range(1_500)]
    pipeline.ingest(batches[:700])
    pipeline.ingest(batches[700:])
    totals = balanced(store)
    assert (totals.folded, totals.lost) == (3_000, 1_500)
    with store.read() as connection:
        boot = boots.every(connection, deployments.get(connection, "prod").id)[0]
    assert len(msgspec.json.encode(boot.rounds.intervals())) < 16_384


def test_rows_whose_weights_no_sum_holds_are_refused_with_their_account(store, pipeline, sink):
    rounds = make_rounds(20)
    pipeline.ingest([message(make_batch(rounds.take(slice(0, 10))), 0)])
    before = stored_sums(store)
    with store.write() as connection:
        found = deployments.get(connection, "prod")
        room = (LARGEST_SUM - before.scalars[0, SCALARS.index("weight_squared")] - 1) // (1 << 8) * (1 << 8)
        full = WindowSums.zeros(GAMMA)
        full.scalars[0, SCALARS.index("weight_squared")] = room
        segment = deployments.segments(connection, found.id)["default"]
        windows.add(connection, found.id, [Cell(int(NOW) // 60 * 60, segment, "greedy", full)], raw=True)
    heavy = make_batch(rounds.take(slice(10, 20)), 10, steps=make_steps(2))
    later = make_batch(make_rounds(5, 3), 20, emitted_at=NOW - 2 * 3600)
    pipeline.ingest([message(heavy, 1), message(later, 2)])
    reason = dict(sink.messages[0].headers)[REASON_HEADER]
    assert reason.startswith(b"explore: got more weight (1 / explore) within an hour")
    totals = balanced(store)
    assert (totals.folded, totals.dead_lettered) == (15, 10)
    assert ledger(store, kind="step").dead_lettered == 2
