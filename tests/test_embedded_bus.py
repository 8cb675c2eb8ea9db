"""What only the embedded bus has: one file, its retention and its processes."""

import multiprocessing
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving_adapter.buses.embedded import EmbeddedSink, EmbeddedSource
from serving_adapter.clock import ManualClock
from serving_adapter.ports import AssignmentListener, EventSource, Message, OutgoingMessage, TransportError

FROM_THE_BEGINNING = AssignmentListener(lambda _partitions: {})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "bus.sqlite"


@pytest.fixture
def source(path: Path) -> Iterator[EmbeddedSource]:
    opened = EmbeddedSource(path, "events", FROM_THE_BEGINNING)
    yield opened
    opened.close()


def read(source: EventSource, count: int) -> list[Message]:
    found: list[Message] = []
    for _ in range(1000):
        if len(found) >= count:
            break
        found += source.poll(0.05)
    return found


def messages(count: int, key: bytes = b"k") -> list[OutgoingMessage]:
    return [OutgoingMessage(key, b"%d" % i) for i in range(count)]


def test_the_oldest_messages_of_a_full_partition_go(path: Path, source: EmbeddedSource) -> None:
    sink = EmbeddedSink(path, "events", kept_messages=10)
    for message in messages(65):  # looks at retention with every 64th publish
        sink.publish([message])
    assert [int(m.value) for m in read(source, 10)] == list(range(55, 65))
    sink.publish(messages(1))
    (next_one,) = read(source, 1)
    assert next_one.offset == 65
    sink.close()


def test_old_messages_go_and_offsets_go_on(path: Path, source: EmbeddedSource) -> None:
    clock = ManualClock()
    sink = EmbeddedSink(path, "events", kept_seconds=3600, clock=clock)
    sink.publish(messages(5))
    sink.close()
    clock.advance(3601)
    sink = EmbeddedSink(path, "events", kept_seconds=3600, clock=clock)
    sink.publish(messages(2))
    found = read(source, 2)
    assert [(m.offset, m.timestamp) for m in found] == [(5, clock.now()), (6, clock.now())]
    sink.close()


def test_a_file_that_was_replaced_is_read_from_its_beginning(path: Path) -> None:
    sink = EmbeddedSink(path, "events")
    sink.publish(messages(3))
    source = EmbeddedSource(path, "events", AssignmentListener(lambda p: dict.fromkeys(p, 500)))
    assert len(read(source, 3)) == 3
    source.close()
    sink.close()


def test_who_comes_first_decides_on_the_partitions(path: Path, source: EmbeddedSource) -> None:
    sink = EmbeddedSink(path, "events", partitions=64)
    sink.publish([OutgoingMessage(b"%d" % i, b"") for i in range(100)])
    assert {m.partition for m in read(source, 100)} <= set(range(4))
    sink.close()


def test_topics_of_one_file_are_apart(path: Path, source: EmbeddedSource) -> None:
    events, dead = EmbeddedSink(path, "events"), EmbeddedSink(path, "dead", partitions=1)
    events.publish(messages(2))
    dead.publish(messages(5))
    assert [m.topic for m in read(source, 2)] == ["events", "events"]
    letters = EmbeddedSource(path, "dead", FROM_THE_BEGINNING)
    assert [m.topic for m in read(letters, 5)] == ["dead"] * 5
    for each in (events, dead, letters):
        each.close()


def test_a_second_reader_waits_until_the_first_one_leaves(path: Path, source: EmbeddedSource) -> None:
    sink = EmbeddedSink(path, "events")
    sink.publish(messages(3))
    assert len(read(source, 3)) == 3
    second = EmbeddedSource(path, "events", FROM_THE_BEGINNING)
    assert second.poll(0.05) == []
    assert second.lag() == {}
    source.close()
    assert len(read(second, 3)) == 3
    second.close()
    sink.close()


def test_commits_are_kept_for_whoever_looks(path: Path, source: EmbeddedSource) -> None:
    source.commit({0: 5, 2: 7})
    source.commit({0: 6})
    assert source.committed() == {0: 6, 2: 7}


def _publish_from_a_process(path: str, number: int) -> None:
    sink = EmbeddedSink(path, "events")
    for i in range(0, 100, 5):
        sink.publish([OutgoingMessage(b"%d" % number, b"%d" % j) for j in range(i, i + 5)])
    sink.close()


def test_several_processes_write_one_file(path: Path, source: EmbeddedSource) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_publish_from_a_process, args=(str(path), i)) for i in range(3)]
    for writer in writers:
        writer.start()
    found = read(source, 300)
    for writer in writers:
        writer.join()
    for number in range(3):
        assert [int(m.value) for m in found if m.key == b"%d" % number] == list(range(100))


def test_a_full_disk_is_an_error_that_stores_nothing(path: Path, source: EmbeddedSource) -> None:
    sink = EmbeddedSink(path, "events")
    sink.publish(messages(1))
    with sink._database.run() as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + 10}")
    with pytest.raises(TransportError, match="full"):
        sink.publish([OutgoingMessage(b"k", b"small"), OutgoingMessage(b"k", b"x" * 1_000_000)])
    sink.publish([OutgoingMessage(b"k", b"fits")])
    assert [m.value for m in read(source, 2)] == [b"0", b"fits"]
    sink.close()


@pytest.mark.parametrize("place", ["/dev/null/bus.sqlite", "/proc/bus.sqlite"])
def test_a_file_that_cannot_be_made_is_named(place: str) -> None:
    with pytest.raises(TransportError, match=place):
        EmbeddedSink(place, "events")


def test_a_file_that_is_no_bus_is_named(tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("Dear reader, " * 500)
    with pytest.raises(TransportError, match="not a database"):
        EmbeddedSink(path, "events")


def test_a_writer_that_is_blocked_too_long_says_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving_adapter.buses.bus_file.BUSY_SECONDS", 0.05)
    sink = EmbeddedSink(path, "events")
    with sqlite3.connect(path, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(TransportError, match="locked"):
            sink.publish(messages(1))
        other.execute("ROLLBACK")
    assert sink.publish(messages(1)) == 1
    sink.close()


def test_the_embedded_bus_needs_no_kafka_client() -> None:
    program = (
        "import sys, serving_adapter.buses.embedded; print(sorted(m for m in sys.modules if m == 'kafka'))"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "[]"
