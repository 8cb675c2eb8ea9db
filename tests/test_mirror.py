"""The parameter mirror: what one process writes, others read whole or not at all."""

import pytest

from serving_adapter.contract.parameters import MAX_DOCUMENT_BYTES
from serving_adapter.mirror import MAX_REASON, EngineReport, ParameterMirror, mirror_path
from serving_adapter.shared_memory import SharedMemoryError
from tests.rings import a_process, a_ring_name, wait_until

WRITER = """
import sys
from serving_adapter.mirror import ParameterMirror
mirror = ParameterMirror.open(sys.argv[1])
version = 0
while True:
    version += 1
    mirror.write(version, str(version).encode().rjust(8, b"0") * (1 + version % 4000))
    if version == 5:
        print("writing", flush=True)
"""


@pytest.fixture
def ring():
    with a_ring_name() as name:
        yield name


def test_there_is_nothing_in_a_new_mirror(ring):
    mirror = ParameterMirror.open(ring)
    assert mirror.sequence == 0
    assert mirror.read() is None
    assert mirror.read_report() is None


def test_a_document_is_read_as_it_was_written(ring):
    ParameterMirror.open(ring).write(7, b"document")
    found = ParameterMirror.open(ring).read()
    assert (found.version, found.payload) == (7, b"document")


def test_the_sequence_moves_with_every_document_and_with_nothing_else(ring):
    sidecar, engine = ParameterMirror.open(ring), ParameterMirror.open(ring)
    sidecar.write(1, b"one")
    first = engine.sequence
    engine.write_report(EngineReport(applied=1))
    assert engine.sequence == first
    sidecar.write(2, b"two")
    assert engine.sequence != first
    assert engine.read().payload == b"two"


def test_a_shorter_document_leaves_nothing_of_a_longer_one(ring):
    mirror = ParameterMirror.open(ring)
    mirror.write(1, b"x" * MAX_DOCUMENT_BYTES)
    mirror.write(2, b"short")
    assert mirror.read().payload == b"short"


def test_a_document_that_is_too_large_is_refused(ring):
    mirror = ParameterMirror.open(ring)
    with pytest.raises(ValueError, match="262145 bytes"):
        mirror.write(1, b"x" * (MAX_DOCUMENT_BYTES + 1))
    assert mirror.read() is None


def test_the_report_goes_the_other_way(ring):
    report = EngineReport(applied=3, refused=4, reason="form", forms=("temperature",), fingerprint="f")
    ParameterMirror.open(ring).write_report(report)
    assert ParameterMirror.open(ring).read_report() == report


def test_a_long_reason_is_cut(ring):
    mirror = ParameterMirror.open(ring)
    mirror.write_report(EngineReport(reason="ü" * 10_000))
    assert mirror.read_report().reason == "ü" * (MAX_REASON - 3) + "..."


def test_one_writer_of_the_document_at_a_time(ring):
    first, second = ParameterMirror.open(ring), ParameterMirror.open(ring)
    assert first.claim()
    assert not second.claim()
    first.close()
    assert second.claim()


def test_something_else_under_the_name_is_refused(ring):
    mirror_path(ring).write_bytes(b"x" * 1_000_000)
    with pytest.raises(SharedMemoryError, match="no parameter mirror"):
        ParameterMirror.open(ring)


def test_readers_of_a_mirror_that_is_written_all_the_time_see_whole_documents(ring):
    with a_process(WRITER, ring) as writer:
        writer.stdout.readline()
        mirror, seen = ParameterMirror.open(ring), set()

        def look():
            found = mirror.read()
            if found is not None:
                expected = str(found.version).encode().rjust(8, b"0") * (1 + found.version % 4000)
                assert found.payload == expected
                seen.add(found.version)
            return len(seen) >= 50

        wait_until(look)


@pytest.mark.faults
def test_a_writer_that_died_half_way_is_mended_by_the_next(ring):
    mirror = ParameterMirror.open(ring)
    mirror.write(1, b"one")
    mirror.segment.words[8] += 1  # as a writer leaves it that is killed between its two steps
    reader = ParameterMirror.open(ring)
    assert reader.read() is None
    ParameterMirror.open(ring).write(2, b"two")
    assert reader.read().payload == b"two"
    assert reader.sequence % 2 == 0
