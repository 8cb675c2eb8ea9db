"""The event ring under fire: real processes that write, read and die."""

import numpy as np
import pytest

from serving_adapter.ring_reader import RingReader, RingSet, Settled
from serving_adapter.shared_memory import Segment, segment_path
from tests.rings import a_process, a_ring, a_ring_name, assert_rows_are_whole, wait_until, write_rows

WRITER = """
import sys
from tests.rings import a_ring, write_rows
import numpy as np
ring = a_ring(sys.argv[1], rounds=int(sys.argv[2]), steps=8)
print(ring.boot, flush=True)
sizes = np.random.default_rng(0).integers(1, 300, int(sys.argv[3]))
for size in sizes.tolist():
    write_rows(ring, size)
print(ring.written, flush=True)
sys.stdin.read()
"""

# Reads, settles most of what it read, and says so; killed from outside at any instant.
READER = """
import random, sys
from serving_adapter.ring_reader import RingReader, Settled
from serving_adapter.shared_memory import Segment, segment_path
from tests.rings import assert_rows_are_whole
reader = RingReader(Segment.attach(segment_path(sys.argv[1])))
lost = reader.settled.rounds_lost
while True:
    chunk = reader.read_rounds(random.randint(1, 200))
    assert_rows_are_whole(chunk.first, chunk.columns)
    lost += chunk.lost
    reader.settle(Settled(rounds=chunk.end, rounds_lost=lost))
    sys.stdout.write(f"{chunk.first} {chunk.end} {lost}\\n")
    sys.stdout.flush()
"""


@pytest.fixture
def name():
    with a_ring_name() as name:
        yield name


def a_reader(name):
    return RingReader(Segment.attach(segment_path(name)))


@pytest.mark.parametrize("capacity", [300, 512, 4096])
def test_no_torn_row_is_ever_read_from_a_ring_that_is_written_over_and_over(name, capacity):
    with a_process(WRITER, name, str(capacity), "4000") as writer:
        writer.stdout.readline()
        reader, read, lost, chunks = a_reader(name), 0, 0, 0

        def drain(most):
            nonlocal read, lost, chunks
            chunk = reader.read_rounds(most)
            assert chunk.first - chunk.lost == read + lost
            assert_rows_are_whole(chunk.first, chunk.columns)
            read, lost, chunks = read + chunk.count, lost + chunk.lost, chunks + 1
            return chunk.count

        rng = np.random.default_rng(capacity)
        sizes = np.random.default_rng(0).integers(1, 300, 4000)
        while reader.written[0] < sizes.sum():
            drain(int(rng.integers(1, 2 * capacity)))
        while drain(capacity):
            pass
        assert int(writer.stdout.readline()) == sizes.sum() == read + lost
        assert read > 0
        reader.close()


@pytest.mark.faults
def test_a_reader_killed_at_any_instant_loses_no_row_uncounted(name):
    ring = a_ring(name, rounds=2048)
    for death in range(6):
        with a_process(READER, name) as reader:
            reader.stdout.readline()
            for _ in range(40 + 10 * death):
                write_rows(ring, 150)
            reader.stdout.readline()
            reader.kill()
            said = reader.stdout.read().splitlines()
        wait_until(lambda: not ring.layout.segment.is_locked(1))
        again = a_reader(name)
        settled = again.settled
        # What it said last was settled before it said so; one more may have been.
        for line in said[-2:-1]:
            _, end, lost = (int(word) for word in line.split())
            assert settled.rounds >= end
            assert settled.rounds_lost >= lost
        assert settled.rounds <= ring.written
        again.close()
    last, lost, count = a_reader(name), 0, 0
    while (chunk := last.read_rounds(1000)).count:
        assert_rows_are_whole(chunk.first, chunk.columns)
        lost, count = lost + chunk.lost, count + chunk.count
    settled = last.settled
    assert settled.rounds + count + lost == ring.written
    assert settled.rounds_lost + lost < ring.written


@pytest.mark.faults
def test_the_ring_of_an_engine_that_was_killed_is_read_to_its_last_whole_row(name):
    with a_process(WRITER, name, "1000", "1000000") as writer:
        boot = writer.stdout.readline().strip()
        wait_until(lambda: a_reader_written(name) > 5000)
        writer.kill()
        writer.wait()
    ring = a_ring(name)
    rings = RingSet(name)
    old, new = rings.refresh()
    assert (old.text.boot, new.text.boot) == (boot, ring.boot)
    assert old.writer_is_gone
    read = lost = 0
    while (chunk := old.read_rounds(100)).count or chunk.lost:
        assert_rows_are_whole(chunk.first, chunk.columns)
        read, lost = read + chunk.count, lost + chunk.lost
    assert read + lost == old.written[0]
    old.settle(Settled(rounds=old.written[0], rounds_lost=lost))
    assert rings.release_finished() == [boot]


def a_reader_written(name):
    reader = a_reader(name)
    written = reader.written[0]
    reader.close()
    return written


@pytest.mark.faults
def test_a_killed_reader_removes_nothing_and_its_lock_is_free(name):
    ring = a_ring(name)
    write_rows(ring, 10)
    with a_process(READER, name) as reader:
        reader.stdout.readline()
        reader.kill()
        reader.wait()
    assert segment_path(name).exists()
    write_rows(ring, 5)
    assert a_reader(name).read_rounds(100).end == 15
