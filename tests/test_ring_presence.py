"""Looking at a ring takes nothing: who writes and who reads it is seen while both go on."""

import os

import pytest

from serving_adapter.ring_layout import RingText
from serving_adapter.ring_presence import engine_is_gone, present_ring, rings_of
from serving_adapter.ring_reader import RingSet
from serving_adapter.shared_memory import SharedMemoryError
from tests.rings import a_ring, a_ring_name


@pytest.fixture
def name():
    with a_ring_name() as name:
        yield name


def test_where_no_ring_is_nobody_is_known_to_be_gone(name):
    assert present_ring(name) is None
    assert rings_of(name) == []
    assert not engine_is_gone(name)


def test_writer_and_reader_are_seen_and_not_disturbed(name):
    ring = a_ring(name)
    seen = present_ring(name)
    assert seen.text == RingText(ring.boot, "d", "r", "f")
    assert (seen.writer, seen.written, seen.read) == (os.getpid(), True, False)
    rings = RingSet(name)
    assert len(rings.refresh()) == 1  # the look before left the reader's lock free
    assert present_ring(name).read
    ring.close()
    assert not present_ring(name).written
    assert engine_is_gone(name)
    rings.close()


def test_rings_of_earlier_boots_are_seen_first(name):
    first, second = a_ring(name), a_ring(name)
    assert [seen.text.boot for seen in rings_of(name)] == [first.boot, second.boot]
    first.close()
    assert [seen.written for seen in rings_of(name)] == [False, True]
    assert not engine_is_gone(name)
    second.close()


def test_something_else_is_told_from_a_ring(tmp_path):
    path = tmp_path / "ring"
    path.write_bytes(b"x" * 5000)
    with pytest.raises(SharedMemoryError, match="no event ring"):
        present_ring(str(path))
    assert not engine_is_gone(str(path))


def test_a_reader_that_finds_the_ring_taken_knows_it_until_it_is_free(name):
    ring = a_ring(name)
    one, two = RingSet(name), RingSet(name)
    assert len(one.refresh()) == 1
    assert two.refresh() == []
    assert two.busy == {two.path}
    one.close()
    assert len(two.refresh()) == 1
    assert not two.busy
    two.close()
    ring.close()
