"""The event ring: order, overwriting, ledger, boots."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from serving_adapter.ring import MAX_RETIRED, retired_path, retired_rings
from serving_adapter.ring_layout import MAGIC, RingShape
from serving_adapter.ring_reader import RingBusyError, RingReader, RingSet, Settled
from serving_adapter.segment_labels import MAX_LABELS
from serving_adapter.shared_memory import Segment, SharedMemoryError, segment_path
from tests.rings import a_ring, a_ring_name, assert_rows_are_whole, write_rows

STEP = (6, 7, 8.0, 0.25, 0.5, 0.125, 9, 10.0, 0.75)


@pytest.fixture
def name():
    with a_ring_name() as name:
        yield name


def a_reader(name):
    return RingReader(Segment.attach(segment_path(name)))


def test_rows_come_out_as_they_went_in(name):
    ring, reader = a_ring(name), None
    write_rows(ring, 10)
    reader = a_reader(name)
    chunk = reader.read_rounds(100)
    assert (chunk.first, chunk.lost, chunk.count, chunk.end) == (0, 0, 10, 10)
    assert_rows_are_whole(0, chunk.columns)


def test_what_was_not_given_has_the_default_of_the_contract(name):
    ring = a_ring(name)
    write_rows(ring, 4)
    columns = a_reader(name).read_rounds(4).columns
    assert np.array_equal(columns["resolved"], columns["verified"])
    assert np.array_equal(columns["resolved_accepted"], columns["accepted"])
    assert columns["draft_stop"].tolist() == [255] * 4


def test_a_chunk_is_at_most_as_long_as_asked(name):
    ring, reader = a_ring(name), None
    write_rows(ring, 10)
    reader = a_reader(name)
    assert [reader.read_rounds(4).count for _ in range(4)] == [4, 4, 2, 0]


@pytest.mark.parametrize("sizes", [(40, 40), (64,), (63, 2, 64), (1,) * 130, (64, 64, 64)])
def test_rows_written_over_the_end_of_the_ring_stay_whole(name, sizes):
    ring, reader, read = a_ring(name), None, 0
    reader = a_reader(name)
    for size in sizes:
        write_rows(ring, size)
        chunk = reader.read_rounds(1000)
        assert (chunk.first, chunk.lost, chunk.count) == (read, 0, size)
        assert_rows_are_whole(chunk.first, chunk.columns)
        read += size


def test_the_oldest_rows_are_overwritten_and_counted(name):
    ring = a_ring(name, rounds=64)
    write_rows(ring, 50)
    write_rows(ring, 50)
    reader = a_reader(name)
    assert reader.overwritten == 36
    chunk = reader.read_rounds(1000)
    assert (chunk.first, chunk.lost, chunk.count) == (36, 36, 64)
    assert_rows_are_whole(36, chunk.columns)


def test_of_more_rows_than_the_ring_holds_the_last_stay(name):
    ring = a_ring(name, rounds=64)
    write_rows(ring, 200)
    chunk = a_reader(name).read_rounds(1000)
    assert (chunk.first, chunk.lost, chunk.count) == (136, 136, 64)
    assert_rows_are_whole(136, chunk.columns)


def test_a_copy_that_fails_writes_no_row_and_old_rows_under_it_are_lost_not_torn(name):
    ring = a_ring(name, rounds=64)
    write_rows(ring, 64)
    columns = ring.layout.rounds
    with pytest.raises(ValueError, match="broadcast"):
        ring.append(20, [(columns["request"], np.zeros(20, np.uint64)), (columns["step"], np.zeros(19))])
    assert ring.written == 64
    write_rows(ring, 1)
    chunk = a_reader(name).read_rounds(1000)
    assert (chunk.first, chunk.lost, chunk.count) == (20, 20, 45)
    assert_rows_are_whole(20, chunk.columns)


def test_steps_have_a_ring_of_their_own(name):
    ring = a_ring(name, steps=4)
    for batch_tokens in range(6):
        ring.append(0, (), (batch_tokens, *STEP[1:]))
    chunk = a_reader(name).read_steps(100)
    assert (chunk.first, chunk.lost, chunk.count) == (2, 2, 4)
    assert chunk.columns["batch_tokens"].tolist() == [2, 3, 4, 5]
    assert chunk.columns["step_seconds"].tolist() == [0.25] * 4
    assert chunk.columns["predicted_seconds"].tolist() == [0.75] * 4


def test_soft_labels_have_a_column_where_the_ring_has_room(name):
    ring = a_ring(name, soft_labels=True)
    columns = ring.layout.rounds
    ring.append(2, [(columns["accept_probability"], np.array([[0.5, 1.0, np.nan]] * 2))])
    soft = a_reader(name).read_rounds(2).columns["accept_probability"]
    assert soft.dtype == np.float16
    assert np.array_equal(soft, [[0.5, 1.0, np.nan]] * 2, equal_nan=True)


def test_logits_beyond_half_precision_are_held_at_its_largest_number(name):
    ring = a_ring(name)
    ring.append(1, [(ring.layout.rounds["logits"], np.array([[1e30, -1e30, 65504.0]], dtype=np.float32))])
    assert a_reader(name).read_rounds(1).columns["logits"].tolist() == [[65504.0, -65504.0, 65504.0]]


def test_the_label_dictionary_is_bounded(name):
    ring = a_ring(name)
    indices = [ring.label(f"segment-{i}") for i in range(100)]
    labels = a_reader(name).labels()
    assert len(labels) == MAX_LABELS
    assert labels[0] == "default"
    assert [labels[i] for i in indices] == [f"segment-{i}" for i in range(62)] + ["other"] * 38
    assert ring.label("segment-3") == indices[3]
    assert ring.label("other") == MAX_LABELS - 1


@pytest.mark.parametrize("label", ["", "x" * 129])
def test_a_label_that_is_none_is_refused(name, label):
    with pytest.raises(ValueError, match="segment"):
        a_ring(name).label(label)


def test_the_longest_label_survives(name):
    ring = a_ring(name)
    assert ring.label("😀" * 128) == 1
    assert a_reader(name).labels() == ("default", "😀" * 128)


def test_a_new_reader_goes_on_from_what_was_settled(name):
    ring = a_ring(name)
    write_rows(ring, 30)
    ring.append(0, (), STEP)
    reader = a_reader(name)
    reader.read_rounds(20)
    reader.read_steps(1)
    reader.settle(Settled(rounds=12, rounds_lost=0, steps=1, steps_lost=0))
    reader.close()
    again = a_reader(name)
    assert again.settled == Settled(rounds=12, steps=1)
    assert again.unread == (18, 0)
    chunk = again.read_rounds(100)
    assert (chunk.first, chunk.count) == (12, 18)


def test_one_reader_at_a_time(name):
    a_ring(name)
    reader = a_reader(name)
    with pytest.raises(RingBusyError, match="another sidecar"):
        a_reader(name)
    reader.close()
    a_reader(name)


def test_what_is_no_ring_is_refused(name):
    path = segment_path(name)
    path.write_bytes(b"x" * 8192)
    with pytest.raises(SharedMemoryError, match="no event ring"):
        RingReader(Segment.attach(path))


def test_a_ring_that_was_cut_short_is_refused(name):
    ring = a_ring(name)
    with segment_path(name).open("r+b") as file:
        file.truncate(8192)
    with pytest.raises(SharedMemoryError, match="8192 bytes"):
        RingReader(Segment.attach(segment_path(name)))
    del ring


@pytest.mark.parametrize(("gamma", "rounds"), [(0, 10), (33, 10), (7, 0)])
def test_shapes_out_of_range_are_refused(gamma, rounds):
    with pytest.raises(ValueError, match=r"gamma|rounds"):
        RingShape(gamma, rounds, 10)


def test_a_new_boot_leaves_the_rows_of_the_one_before_to_the_reader(name):
    first = a_ring(name)
    write_rows(first, 10)
    rings = RingSet(name)
    assert [reader.text.boot for reader in rings.refresh()] == [first.boot]
    rings.refresh()[0].read_rounds(4)
    first.close()
    second = a_ring(name)
    write_rows(second, 3)
    old, new = rings.refresh()
    assert (old.text.boot, new.text.boot) == (first.boot, second.boot)
    chunk = old.read_rounds(100)
    assert (chunk.first, chunk.lost, chunk.count) == (4, 0, 6)
    assert_rows_are_whole(4, chunk.columns)
    assert rings.release_finished() == []
    old.settle(Settled(rounds=10))
    assert rings.release_finished() == [first.boot]
    assert not retired_path(segment_path(name), first.boot).exists()
    assert [reader.text.boot for reader in rings.refresh()] == [second.boot]


def test_a_reader_that_comes_late_finds_the_rings_of_earlier_boots(name):
    boots = []
    for rows in (5, 6):
        ring = a_ring(name)
        write_rows(ring, rows)
        boots.append(ring.boot)
        ring.close()
    readers = RingSet(name).refresh()
    assert [reader.text.boot for reader in readers] == boots
    assert [reader.read_rounds(100).count for reader in readers] == [5, 6]


def test_the_ring_of_an_engine_that_still_writes_is_not_removed(name):
    first = a_ring(name)
    second = a_ring(name)
    rings = RingSet(name)
    assert len(rings.refresh()) == 2
    assert rings.release_finished() == []
    write_rows(first, 3)
    assert rings.refresh()[0].read_rounds(10).count == 3
    rings.refresh()[0].settle(Settled(rounds=3))
    first.close()
    assert rings.release_finished() == [first.boot]
    assert rings.refresh()[0].text.boot == second.boot


def test_boots_that_nobody_reads_keep_bounded_memory_and_their_rows_are_counted_as_lost(name):
    boots = []
    for rows in range(1, MAX_RETIRED + 4):
        ring = a_ring(name)
        write_rows(ring, rows)
        boots.append(ring.boot)
        ring.close()
    chunks = [reader.read_rounds(100) for reader in RingSet(name).refresh()]
    assert [chunk.lost + chunk.count for chunk in chunks] == list(range(1, MAX_RETIRED + 4))
    assert [chunk.lost for chunk in chunks[:2]] == [1, 2]
    assert [chunk.lost for chunk in chunks[2:]] == [0] * (MAX_RETIRED + 1)
    for chunk in chunks[2:]:
        assert_rows_are_whole(0, chunk.columns)


def test_boots_without_unread_rows_leave_nothing_behind(name):
    for _ in range(3):
        a_ring(name).close()
    assert retired_rings(segment_path(name)) == []


def test_what_is_no_ring_under_the_name_is_left_alone(name):
    segment_path(name).write_bytes(b"something else")
    with pytest.raises(SharedMemoryError, match="no event ring"):
        a_ring(name)
    assert segment_path(name).read_bytes() == b"something else"
    assert [path.name for path in segment_path(name).parent.glob(f"{name}*")] == [name]


def test_a_ring_of_another_release_is_moved_aside_and_noticed(name):
    with Segment.create(segment_path(name).with_name(f"{name}.old"), 8192).memory as memory:
        memory[:16] = MAGIC.to_bytes(8, "little") + (1).to_bytes(8, "little")
        segment_path(name).write_bytes(memory[:])
    ring = a_ring(name)
    rings = RingSet(name)
    assert [reader.text.boot for reader in rings.refresh()] == [ring.boot]
    assert rings.unreadable == 1


class RingLedger(RuleBasedStateMachine):
    """Whatever is written, read, settled, forgotten and begun anew: every row is read or lost, once."""

    CAPACITY = 16

    def __init__(self):
        super().__init__()
        self.context = a_ring_name()
        self.name = self.context.__enter__()
        self.ring = a_ring(self.name, rounds=self.CAPACITY)
        self.reader = a_reader(self.name)
        self.read = []  # (first, lost, end) since the last settled row
        self.settled = Settled()
        self.delivered = set()
        self.lost = set()

    @rule(count=st.integers(1, 40))
    def write(self, count):
        write_rows(self.ring, count)

    @rule(most=st.integers(1, 40))
    def read_some(self, most):
        chunk = self.reader.read_rounds(most)
        assert_rows_are_whole(chunk.first, chunk.columns)
        self.read.append((chunk.first, chunk.lost, chunk.end))

    @precondition(lambda self: self.read)
    @rule(data=st.data())
    def settle_a_prefix(self, data):
        for _ in range(data.draw(st.integers(1, len(self.read)))):
            first, lost, end = self.read.pop(0)
            assert first - lost == self.settled.rounds
            self.delivered.update(range(first, end))
            self.lost.update(range(first - lost, first))
            self.settled = Settled(rounds=end, rounds_lost=self.settled.rounds_lost + lost)
            self.reader.settle(self.settled)

    @rule()
    def kill_the_reader(self):
        self.reader.close()
        self.read.clear()
        self.reader = a_reader(self.name)
        assert self.reader.settled == self.settled

    @invariant()
    def the_ledger_balances(self):
        settled = self.reader.settled
        assert self.delivered | self.lost == set(range(settled.rounds))
        assert not self.delivered & self.lost
        assert settled.rounds_lost == len(self.lost)
        assert settled.rounds <= self.ring.written

    def teardown(self):
        self.reader.close()
        self.ring.close()
        self.context.__exit__(None, None, None)


TestRingLedger = RingLedger.TestCase
TestRingLedger.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


@given(st.lists(st.integers(1, 100), max_size=12), st.integers(1, 50))
@settings(max_examples=50, deadline=None)
def test_read_and_lost_add_up_to_written(sizes, most):
    with a_ring_name() as name:
        ring = a_ring(name, rounds=32)
        reader = a_reader(name)
        read = lost = 0
        for size in sizes:
            write_rows(ring, size)
            chunk = reader.read_rounds(most)
            read, lost = read + chunk.count, lost + chunk.lost
        while (chunk := reader.read_rounds(most)).count:
            read, lost = read + chunk.count, lost + chunk.lost
        assert read + lost == ring.written == sum(sizes)
