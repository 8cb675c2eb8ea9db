"""The rounds that a message's steps claim are the ones that the engine did in those steps."""

import random
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calibrator.core.throughput_ledger import LedgerSums
from serving_adapter.adapter import ServingAdapter
from serving_adapter.clock import ManualClock
from serving_adapter.contract.events import decode
from serving_adapter.forwarder import Forwarder
from serving_adapter.ports import TransportError
from serving_adapter.ring_layout import WORD_ROUNDS_WRITTEN, WORD_STEPS_WRITTEN
from serving_adapter.step_claims import StepSpans, steps_within
from tests.rings import GAMMA, IDENTITY, a_ring, a_ring_name, write_rows


class Sink:
    def __init__(self):
        self.batches = []
        self.confirms = lambda count: count

    def publish(self, messages):
        confirmed = self.confirms(len(messages))
        self.batches += [
            decode(m.value, dict(m.headers)["content-type"].decode()) for m in messages[:confirmed]
        ]
        return confirmed

    def close(self):
        pass


class Books:
    """The engine's own: which step did which round, by the numbers in the ring."""

    def __init__(self, ring):
        self.ring = ring
        self.step_of_round = []
        self.rows_of_step = []

    def write(self, rows, *, with_step=True):
        number = len(self.rows_of_step) if with_step else -1
        step = (rows + 1, rows + 1, 8.0, float(number + 1), 0.0, 0.0, 0, 0.0, 0.0) if with_step else None
        write_rows(self.ring, rows, step)
        self.step_of_round += [number] * rows
        if with_step:
            self.rows_of_step.append(rows)


def claims(batch):
    """Step number of every round of a message as a reader of the contract finds it, -1 without one."""
    claimed = batch.steps.rows.astype(int)
    assert claimed.sum() <= batch.count
    of_steps = np.repeat(batch.steps_sequence + np.arange(len(claimed)), claimed)
    return [*of_steps.tolist(), *[-1] * (batch.count - len(of_steps))]


def assert_claims_are_the_books(batches, books):
    """Every claim is true, and none of a step's rounds in its message is left out."""
    for batch in batches:
        numbers = range(batch.steps_sequence, batch.steps_sequence + len(batch.steps))
        # The step rows are the right ones, whatever they claim.
        assert [round(s) - 1 for s in batch.steps.step_seconds.tolist()] == list(numbers)
        found = claims(batch)
        truth = books.step_of_round[batch.sequence : batch.sequence + batch.count]
        assert all(claim in (-1, true) for claim, true in zip(found, truth, strict=True))
        for step in numbers:
            assert found.count(step) == truth.count(step)


@pytest.fixture
def name():
    with a_ring_name() as name:
        yield name


def drained(name, sink, **options):
    forward = Forwarder(name, lambda: sink, clock=ManualClock(), **options)
    assert forward.drain(60)
    forward.close()
    return sink.batches


def test_a_backlog_leaves_in_messages_whose_steps_claim_all_their_rounds(name):
    books = Books(a_ring(name, rounds=4096, steps=512))
    for rows in [7, 0, 13, 30] * 50:
        books.write(rows)
    batches = drained(name, Sink(), flush_bytes=4096)
    assert len(batches) > 10
    assert_claims_are_the_books(batches, books)
    assert sum(int(batch.steps.rows.sum()) for batch in batches) == sum(books.rows_of_step)
    rows = np.concatenate([batch.steps.rows for batch in batches])
    assert rows.tolist() == books.rows_of_step


def test_many_small_steps_are_cut_with_their_rounds(name):
    books = Books(a_ring(name, rounds=4096, steps=2048))
    for _ in range(1500):
        books.write(1)
    batches = drained(name, Sink(), flush_bytes=4096)
    assert [batch.steps.rows.sum() for batch in batches] == [batch.count for batch in batches]


def test_a_step_larger_than_a_message_claims_what_is_left_of_it(name):
    books = Books(a_ring(name, rounds=1024))
    books.write(5)
    books.write(300)
    books.write(4)
    batches = drained(name, Sink(), flush_bytes=2048)
    assert_claims_are_the_books(batches, books)
    with_large = next(b for b in batches if b.steps_sequence <= 1 < b.steps_sequence + len(b.steps))
    assert with_large.sequence + with_large.count >= 305
    assert sum(batch.count for batch in batches) == 309


def test_rounds_of_no_step_stand_behind_those_that_are_claimed(name):
    books = Books(a_ring(name))
    books.write(3, with_step=False)
    books.write(4)
    books.write(2, with_step=False)
    books.write(5)
    batches = drained(name, Sink())
    assert [(b.sequence, b.count, b.steps.rows.tolist()) for b in batches] == [
        (0, 3, []),
        (3, 6, [4]),
        (9, 5, [5]),
    ]


def test_rounds_that_were_overwritten_are_claimed_by_nobody(name):
    books = Books(a_ring(name, rounds=64, steps=16))
    for rows in (30, 30, 30, 10):
        books.write(rows)
    (batch,) = drained(name, Sink())
    assert (batch.sequence, batch.lost) == (36, 36)
    assert batch.steps.rows.tolist() == [0, 24, 30, 10]


def test_rounds_whose_step_was_overwritten_are_of_no_step(name):
    books = Books(a_ring(name, rounds=64, steps=2))
    for rows in (5, 6, 7):
        books.write(rows)
    first, second = drained(name, Sink())
    assert (first.count, len(first.steps), first.steps_sequence, first.steps_lost) == (5, 0, 1, 1)
    assert (second.steps_sequence, second.steps_lost, second.steps.rows.tolist()) == (1, 0, [6, 7])


def test_a_row_that_breaks_the_contract_makes_the_claim_smaller(name):
    books = Books(a_ring(name))
    books.write(10)
    books.ring.layout.rounds["logits"][4, 1] = np.nan
    *first, last = drained(name, Sink())
    assert sum(batch.count for batch in first) == 4
    assert all(len(batch.steps) == 0 for batch in first)
    assert (last.sequence, last.count, last.steps.rows.tolist()) == (5, 5, [5])


def test_a_replica_that_reports_a_part_of_its_requests_claims_that_part(name):
    adapter = ServingAdapter(IDENTITY, "d", "r", name, rounds_capacity=512, steps_capacity=8)
    adapter._watch.in_force = replace(adapter._watch.in_force, share=0.5)
    requests = np.random.default_rng(1).integers(0, 2**63, 200).astype(np.uint64)
    adapter.observe(
        np.zeros((200, GAMMA), np.float32), np.zeros(200, np.uint8), request=requests, step_seconds=0.5
    )
    assert adapter.rejected == 0, adapter.last_rejection
    (batch,) = drained(name, Sink())
    assert 60 < batch.count < 140
    assert batch.steps.rows.tolist() == [batch.count]
    assert batch.steps.requests.tolist() == [200]
    assert LedgerSums.fold(batch.rounds, batch.steps).figures().tokens_per_second == pytest.approx(400)
    adapter.close()


def test_a_step_whose_rounds_are_not_published_yet_waits_for_them(name):
    books = Books(a_ring(name))
    books.write(4)
    words = books.ring.layout.segment.words
    words[WORD_ROUNDS_WRITTEN] = 0  # as another core may see the two words
    sink, clock = Sink(), ManualClock()
    forward = Forwarder(name, lambda: sink, clock=clock)
    clock.advance(1)
    assert forward.step() == 0
    assert sink.batches == []
    words[WORD_ROUNDS_WRITTEN] = 4
    clock.advance(1)
    assert forward.step() == 4
    assert sink.batches[0].steps.rows.tolist() == [4]
    forward.close()


def test_a_step_that_a_killed_engine_left_without_its_rounds_is_sent_without_them(name):
    books = Books(a_ring(name))
    books.write(4)
    books.write(3)
    books.ring.layout.segment.words[WORD_ROUNDS_WRITTEN] = 4
    books.ring.close()
    sink, clock = Sink(), ManualClock()
    forward = Forwarder(name, lambda: sink, clock=clock)
    assert forward.drain(10)
    assert [batch.steps.rows.tolist() for batch in sink.batches] == [[4], [0]]
    a_ring(name)
    clock.advance(1)
    forward.step()
    clock.advance(1)
    forward.step()
    assert forward.counters.boots_finished == 1
    forward.close()


WRITER = """
import sys
from serving_adapter.ring import EventRing
from tests.rings import a_ring, write_rows

ring = a_ring(sys.argv[1], rounds=256, steps=64)
number = 0
for rows in [3, 17, 0, 8, 40] * 3000:
    write_rows(ring, rows, (rows, rows, 8.0, float(number + 1), 0.0, 0.0, 0, 0.0, 0.0))
    number += 1
ring.close()
"""


def test_claims_are_true_while_another_process_writes(name):
    sizes = [3, 17, 0, 8, 40] * 3000
    sink = Sink()
    with subprocess.Popen([sys.executable, "-c", WRITER, name]) as writer:
        forward = Forwarder(name, lambda: sink, flush_seconds=0.0001, flush_bytes=1024)
        while writer.poll() is None:
            forward.step()
        assert writer.returncode == 0
        assert forward.drain(60)
        forward.close()
    books = Books(None)
    books.rows_of_step = sizes
    books.step_of_round = np.repeat(np.arange(len(sizes)), sizes).tolist()
    assert_claims_are_the_books(sink.batches, books)


@given(st.data(), st.randoms(use_true_random=False))
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
def test_claims_are_the_books_whatever_is_written_read_lost_killed_and_sent_again(data, chance):
    with a_ring_name() as name:
        clock, sink = ManualClock(), Sink()

        def confirms(count):
            kind = chance.random()
            if kind < 0.2:
                raise TransportError("at random")
            return chance.randint(0, count) if kind < 0.5 else count

        sink.confirms = confirms
        books = Books(a_ring(name, rounds=128, steps=data.draw(st.sampled_from([4, 16, 64]))))
        flush_bytes = data.draw(st.sampled_from([1024, 4096, 65536]))

        def a_forwarder():
            return Forwarder(
                name,
                lambda: sink,
                clock=clock,
                flush_bytes=flush_bytes,
                most_pending=3,
                jitter=random.Random(1),
            )

        forward = a_forwarder()
        for _ in range(data.draw(st.integers(1, 40))):
            kind = data.draw(st.sampled_from(["step"] * 3 + ["read"] * 2 + ["rounds", "kill", "spoil"]))
            if kind == "step":
                for _ in range(data.draw(st.integers(1, 5))):
                    books.write(data.draw(st.integers(0, 60)))
            elif kind == "rounds":
                books.write(data.draw(st.integers(1, 60)), with_step=False)
            elif kind == "read":
                clock.advance(data.draw(st.sampled_from([0.01, 0.1, 6.0])))
                forward.step()
            elif kind == "kill":
                forward.close()
                forward = a_forwarder()
            else:
                books.ring.layout.rounds["logits"][data.draw(st.integers(0, 127)), 0] = np.nan
        sink.confirms = lambda count: count
        assert forward.drain(60)
        words = books.ring.layout.segment.words
        (reader,) = forward._rings.refresh()
        assert (reader.settled.rounds, reader.settled.steps) == (
            words[WORD_ROUNDS_WRITTEN],
            words[WORD_STEPS_WRITTEN],
        )
        assert_claims_are_the_books(sink.batches, books)
        steps, lost = set(), set()
        for batch in sink.batches:
            steps.update(range(batch.steps_sequence, batch.steps_sequence + len(batch.steps)))
            lost.update(range(batch.steps_sequence - batch.steps_lost, batch.steps_sequence))
        assert steps | lost == set(range(len(books.rows_of_step)))
        forward.close()


@pytest.mark.parametrize(
    ("first", "rows", "begin", "end", "most", "expected"),
    [
        ([], [], 0, 10, 5, (0, 10)),  # rounds of no step
        ([0, 4], [4, 6], 0, 10, 5, (2, 10)),
        ([0, 4], [4, 6], 0, 8, 5, (1, 4)),  # the second is cut: it waits whole
        ([0, 4], [4, 6], 4, 8, 5, (1, 8)),  # it alone is larger than what is at hand
        ([0, 4, 6], [4, 2, 2], 0, 8, 2, (2, 6)),  # no room for the third
        ([0, 0, 0], [0, 0, 3], 0, 3, 2, (2, 0)),
        ([2], [3], 0, 2, 5, (0, 2)),
    ],
)
def test_a_message_ends_where_a_step_ends(first, rows, begin, end, most, expected):
    first, rows = np.array(first, dtype=np.uint64), np.array(rows, dtype=np.uint32)
    assert steps_within(first, rows, begin, end, most) == expected


def test_steps_go_with_the_stretch_that_reaches_their_end():
    spans = StepSpans.of(np.array([0, 10, 10, 30]), np.array([10, 0, 15, 5]))
    assert spans.gaps(0, 40).tolist() == [30]
    shares = spans.divide([(0, 7), (8, 12), (12, 28)])
    assert [(part, claims.tolist()) for part, claims in shares] == [
        (slice(0, 0), []),
        (slice(0, 2), [2, 0]),
        (slice(2, 3), [13]),
        (slice(3, 4), [0]),
    ]
