"""The loop from ring to bus: in order, nothing unexplained, whatever the bus does."""

import itertools
import random
import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving_adapter.clock import ManualClock
from serving_adapter.contract.events import CONTENT_TYPE_JSON, CONTENT_TYPE_MSGPACK, decode
from serving_adapter.forwarder import Forwarder
from serving_adapter.ports import TransportError
from serving_adapter.ring import retired_rings
from serving_adapter.shared_memory import segment_path
from tests.rings import GAMMA, a_process, a_ring, a_ring_name, wait_until, write_rows

STEP = (6, 7, 8.0, 0.25, 0.5, 0.125, 9, 10.0, 0.75)


class Sink:
    """Keeps what it is given; fails as told."""

    def __init__(self):
        self.messages = []
        self.calls = 0
        self.closed = False
        self.fail = lambda count: count  # how many it confirms; stores at least those

    def publish(self, messages):
        self.calls += 1
        confirmed = self.fail(len(messages))
        self.messages += messages[:confirmed]
        return confirmed

    def close(self):
        self.closed = True

    def batches(self, boot=None):
        decoded = [decode(m.value, dict(m.headers)["content-type"].decode()) for m in self.messages]
        return [batch for batch in decoded if boot in (None, batch.boot)]


def unavailable(count):
    raise TransportError("no broker")


@pytest.fixture
def name():
    with a_ring_name() as name:
        yield name


@pytest.fixture
def sink():
    return Sink()


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def forward(name, sink, clock):
    forwarder = Forwarder(name, lambda: sink, clock=clock, jitter=random.Random(1))
    yield forwarder
    forwarder.close()


def ledger(batches):
    """Row numbers delivered and declared lost; a row that was delivered is not lost."""
    delivered, lost = set(), set()
    for batch in batches:
        delivered.update(range(batch.sequence, batch.sequence + batch.count))
        lost.update(range(batch.sequence - batch.lost, batch.sequence))
    return delivered, lost - delivered


def assert_rows_are_right(batch):
    numbers = np.arange(batch.sequence, batch.sequence + batch.count)
    assert np.array_equal(batch.rounds.request, numbers)
    assert np.array_equal(batch.rounds.step, numbers % 100_000)
    assert np.array_equal(
        batch.rounds.logits, (numbers[:, None] % 1000 + np.arange(GAMMA)).astype(np.float16)
    )


def test_rows_arrive_when_the_time_to_flush_has_come(name, sink, clock, forward):
    ring = a_ring(name)
    write_rows(ring, 10)
    ring.append(0, (), STEP)
    assert forward.step() == 0
    clock.advance(0.06)
    assert forward.step() == 10
    (batch,) = sink.batches()
    assert (batch.deployment, batch.replica, batch.fingerprint, batch.boot) == ("d", "r", "f", ring.boot)
    assert (batch.sequence, batch.count, batch.lost, batch.gamma) == (0, 10, 0, GAMMA)
    assert (batch.steps_sequence, len(batch.steps), batch.steps_lost) == (0, 1, 0)
    assert batch.emitted_at == int(clock.now() * 1e9)
    assert_rows_are_right(batch)


def test_messages_are_keyed_by_replica_and_say_their_type(name, sink, clock, forward):
    write_rows(a_ring(name), 1)
    clock.advance(1)
    forward.step()
    (message,) = sink.messages
    assert message.key == b"r"
    assert message.headers == (("content-type", CONTENT_TYPE_MSGPACK.encode()),)


def test_json_for_those_who_want_to_read_along(name, sink, clock):
    write_rows(a_ring(name), 3)
    forward = Forwarder(name, lambda: sink, clock=clock, encoding="json")
    assert forward.drain(1)
    assert dict(sink.messages[0].headers)["content-type"].decode() == CONTENT_TYPE_JSON
    assert_rows_are_right(sink.batches()[0])


def test_a_full_message_does_not_wait_for_the_time(name, sink, clock):
    ring = a_ring(name, rounds=4096)
    forward = Forwarder(name, lambda: sink, clock=clock, flush_bytes=4096)
    forward.step()
    write_rows(ring, 1000)
    forward.step()
    batches = sink.batches()
    assert 0 < 1000 - sum(batch.count for batch in batches) < batches[0].count
    assert all(len(message.value) <= 4096 for message in sink.messages)
    clock.advance(1)
    forward.step()
    assert ledger(sink.batches()) == (set(range(1000)), set())


def test_numbers_go_on_without_gaps_from_message_to_message(name, sink, clock, forward):
    ring = a_ring(name)
    for size in (5, 7, 11):
        write_rows(ring, size)
        ring.append(0, (), STEP)
        clock.advance(1)
        forward.step()
    assert [(b.sequence, b.count) for b in sink.batches()] == [(0, 5), (5, 7), (12, 11)]
    assert [(b.steps_sequence, len(b.steps)) for b in sink.batches()] == [(0, 1), (1, 1), (2, 1)]


def test_steps_without_rounds_are_sent_too(name, sink, clock, forward):
    ring = a_ring(name, steps=4)
    for _ in range(6):
        ring.append(0, (), STEP)
    clock.advance(1)
    forward.step()
    (batch,) = sink.batches()
    assert (batch.rounds, batch.sequence, batch.lost) == (None, 0, 0)
    assert (batch.steps_sequence, len(batch.steps), batch.steps_lost) == (2, 4, 2)
    assert forward.counters.steps_lost == 2


def test_overwritten_rows_are_declared_before_those_that_follow(name, sink, clock, forward):
    ring = a_ring(name, rounds=64)
    write_rows(ring, 10)
    clock.advance(1)
    forward.step()
    write_rows(ring, 60)
    write_rows(ring, 60)
    clock.advance(1)
    forward.step()
    second = sink.batches()[1]
    assert (second.sequence, second.lost, second.count) == (66, 56, 64)
    assert forward.counters.lost == 56
    assert forward.counters.rounds + forward.counters.lost == ring.written
    assert_rows_are_right(second)


def test_rows_stay_until_the_sink_confirms_them(name, sink, clock, forward):
    ring = a_ring(name)
    write_rows(ring, 10)
    sink.fail = unavailable
    clock.advance(1)
    assert forward.step() == 0
    assert forward.pending == 1
    assert forward.last_error == "no broker"
    sink.fail = lambda count: count
    clock.advance(1)
    assert forward.step() == 10
    assert forward.pending == 0
    assert ledger(sink.batches()) == (set(range(10)), set())


def test_a_message_that_was_not_confirmed_is_sent_again_byte_for_byte(name, sink, clock, forward):
    ring = a_ring(name)
    write_rows(ring, 10)
    sink.fail = unavailable
    clock.advance(1)
    forward.step()
    waiting = forward._pending[0].message
    write_rows(ring, 5)
    sink.fail = lambda count: count
    clock.advance(5)
    forward.step()
    assert sink.messages[0] == waiting


def test_only_the_confirmed_prefix_is_settled(name, sink, clock):
    ring = a_ring(name, rounds=4096)
    forward = Forwarder(name, lambda: sink, clock=clock, flush_bytes=1024)
    write_rows(ring, 100)
    sink.fail = lambda count: 2
    clock.advance(1)
    forward.step()
    (reader,) = forward._rings.refresh()
    assert reader.settled.rounds == sum(batch.count for batch in sink.batches())
    assert forward.pending > 0
    assert forward.counters.retries == 1
    sink.fail = lambda count: count
    assert forward.drain(60)
    assert ledger(sink.batches()) == (set(range(100)), set())
    assert reader.settled.rounds == 100


def test_pauses_grow_and_end_with_the_first_success(name, sink, clock, forward):
    write_rows(a_ring(name), 1)
    sink.fail = unavailable
    clock.advance(1)
    tries = []
    for _ in range(400):
        before = sink.calls
        forward.step()
        if sink.calls > before:
            tries.append(clock.monotonic())
        clock.advance(0.05)
    pauses = np.diff(tries)
    assert 0.05 <= pauses[0] <= 0.15
    assert 2.5 <= pauses[-1] <= 5.05
    assert all(later > earlier / 2 for earlier, later in itertools.pairwise(pauses))
    sink.fail = lambda count: count
    clock.advance(6)
    assert forward.step() == 1
    assert forward._failures == 0


def test_what_waits_is_bounded_while_the_sink_is_away(name, sink, clock):
    ring = a_ring(name, rounds=1024)
    forward = Forwarder(name, lambda: sink, clock=clock, flush_bytes=1024, most_pending=4)
    sink.fail = unavailable
    for _ in range(50):
        write_rows(ring, 200)
        clock.advance(1)
        forward.step()
    assert forward.pending == 4
    sink.fail = lambda count: count
    assert forward.drain(60)
    delivered, lost = ledger(sink.batches())
    assert delivered | lost == set(range(ring.written))
    assert len(lost) == forward.counters.lost > 0
    assert len(delivered) == forward.counters.rounds


def test_a_sink_that_cannot_be_opened_is_tried_again(name, clock):
    sink, attempts = Sink(), []

    def open_sink():
        attempts.append(1)
        if len(attempts) < 3:
            raise TransportError("no address")
        return sink

    write_rows(a_ring(name), 4)
    forward = Forwarder(name, open_sink, clock=clock)
    assert forward.drain(60)
    assert len(attempts) == 3
    assert ledger(sink.batches()) == (set(range(4)), set())


def test_before_the_engine_starts_there_is_nothing_to_do(name, sink, clock, forward):
    assert forward.step() == 0
    assert forward.drain(1)
    write_rows(a_ring(name), 2)
    clock.advance(1)
    assert forward.step() == 2


def test_a_new_boot_is_noticed_and_the_old_one_finished_first(name, sink, clock, forward):
    first = a_ring(name)
    write_rows(first, 10)
    clock.advance(1)
    forward.step()
    write_rows(first, 5)
    first.close()
    second = a_ring(name)
    write_rows(second, 7)
    clock.advance(1)
    forward.step()
    assert [(b.boot, b.sequence, b.count) for b in sink.batches()] == [
        (first.boot, 0, 10),
        (first.boot, 10, 5),
        (second.boot, 0, 7),
    ]
    clock.advance(1)
    forward.step()
    assert retired_rings(segment_path(name)) == []
    assert forward.counters.boots_finished == 1


def test_boots_nobody_read_in_time_are_declared_lost(name, sink, clock, forward):
    boots = []
    for _ in range(7):
        ring = a_ring(name)
        write_rows(ring, 9)
        boots.append(ring.boot)
        ring.close()
    assert forward.drain(1)
    ledgers = [ledger(sink.batches(boot)) for boot in boots]
    assert ledgers[:2] == [(set(), set(range(9)))] * 2
    assert ledgers[2:] == [(set(range(9)), set())] * 5
    assert forward.counters.lost == 18


def test_rows_of_two_shares_go_into_two_messages(name, sink, clock, forward):
    ring = a_ring(name)
    write_rows(ring, 3)
    share = ring.layout.rounds["context"]["share"]
    share[1:3] = 0.5
    clock.advance(1)
    forward.step()
    assert [(b.sequence, b.count, b.share) for b in sink.batches()] == [(0, 1, 1.0), (1, 2, 0.5)]


def test_a_row_that_breaks_the_contract_is_a_gap_and_not_the_end_of_its_neighbours(
    name, sink, clock, forward
):
    ring = a_ring(name)
    write_rows(ring, 20)
    ring.layout.rounds["logits"][7, 1] = np.nan
    ring.layout.rounds["accepted"][19] = 9
    clock.advance(1)
    forward.step()
    assert ledger(sink.batches()) == (set(range(20)) - {7, 19}, {7, 19})
    assert forward.counters.invalid == 2
    assert forward.counters.lost == 2


def test_segments_travel_with_the_rows(name, sink, clock, forward):
    ring = a_ring(name)
    ring.label("code")
    write_rows(ring, 2)
    ring.layout.rounds["context"]["segment"][:2] = [1, 0]
    clock.advance(1)
    forward.step()
    assert sink.batches()[0].rounds.segment_names() == ["code", "default"]


def test_an_unexpected_error_ends_a_pass_and_not_the_loop(name, sink, clock, forward):
    write_rows(a_ring(name), 3)

    def broken(count):
        raise ZeroDivisionError("bug")

    sink.fail = broken
    clock.advance(1)
    forward.guarded(forward.step)
    assert forward.last_error == "bug"
    sink.fail = lambda count: count
    clock.advance(1)
    assert forward.step() == 3


def test_draining_ends_at_its_deadline_when_the_sink_stays_away(name, sink, clock, forward):
    write_rows(a_ring(name), 3)
    sink.fail = unavailable
    start = clock.monotonic()
    assert not forward.drain(10)
    assert 10 <= clock.monotonic() - start < 10.5


def test_a_forwarder_that_stops_has_drained_and_let_go(name, sink):
    ring = a_ring(name)
    forward = Forwarder(name, lambda: sink, flush_seconds=0.01)
    thread = threading.Thread(target=forward.run)
    thread.start()
    write_rows(ring, 30)
    forward.stop()
    thread.join(60)
    assert ledger(sink.batches()) == (set(range(30)), set())
    assert sink.closed
    other = Forwarder(name, lambda: sink)
    assert len(other._rings.refresh()) == 1
    other.close()


@given(st.data(), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_delivered_and_lost_are_all_that_was_written(data, chance):
    """A sink that fails at random, engines that restart, forwarders that are killed: the ledger balances."""
    with a_ring_name() as name:
        clock, sink = ManualClock(), Sink()

        def fail(count):
            kind = chance.random()
            if kind < 0.3:
                raise TransportError("at random")
            return chance.randint(0, count) if kind < 0.6 else count

        def stores_and_fails(messages):  # it arrived, but nobody heard so
            sink.messages += messages[: chance.randint(0, len(messages))]
            raise TransportError("answer lost")

        sink.fail = fail
        honest = sink.publish
        sink.publish = lambda messages: (stores_and_fails if chance.random() < 0.1 else honest)(messages)
        rings = [a_ring(name, rounds=128)]

        def a_forwarder():
            return Forwarder(
                name,
                lambda: sink,
                clock=clock,
                flush_bytes=1024,
                most_pending=3,
                jitter=random.Random(1),
            )

        forward = a_forwarder()
        for _ in range(data.draw(st.integers(1, 30))):
            kind = data.draw(st.sampled_from(["write", "write", "step", "step", "kill", "boot"]))
            if kind == "write":
                write_rows(rings[-1], data.draw(st.integers(1, 150)))
            elif kind == "step":
                clock.advance(data.draw(st.sampled_from([0.01, 0.1, 6.0])))
                forward.step()
            elif kind == "kill":
                forward.close()
                forward = a_forwarder()
            else:
                rings[-1].close()
                rings.append(a_ring(name, rounds=128))
        sink.publish, sink.fail = honest, lambda count: count
        assert forward.drain(60)
        for ring in rings:
            batches = sink.batches(ring.boot)
            for batch in batches:
                if batch.rounds is not None:
                    assert_rows_are_right(batch)
            delivered, lost = ledger(batches)
            assert delivered | lost == set(range(ring.written))
        forward.close()


FORWARDER = """
import sys
from serving_adapter.forwarder import Forwarder
from serving_adapter.ports import TransportError
import random

class Lines:
    def publish(self, messages):
        for message in messages:
            kind = dict(message.headers)["content-type"].decode()
            sys.stdout.write(message.value.hex() + "\\n")
        sys.stdout.flush()
        return len(messages)
    def close(self):
        pass

Forwarder(sys.argv[1], Lines, flush_seconds=0.002, flush_bytes=2048).run()
"""


@pytest.mark.faults
def test_forwarders_killed_while_rows_flow_lose_nothing_uncounted(name):
    ring, payloads = a_ring(name, rounds=4096), []
    for _ in range(4):
        with a_process(FORWARDER, name) as forwarder:
            for _ in range(60):
                write_rows(ring, 90)
                payloads.append(forwarder.stdout.readline())
            forwarder.kill()
            payloads += forwarder.stdout.readlines()
    last = Sink()
    final = Forwarder(name, lambda: last)
    wait_until(lambda: final._rings.refresh())  # the lock of the one that was killed
    assert final.drain(60)
    whole = [bytes.fromhex(line.strip()) for line in payloads if line.endswith("\n")]
    batches = [decode(payload, CONTENT_TYPE_MSGPACK) for payload in whole] + last.batches()
    delivered, lost = ledger(batches)
    assert delivered | lost == set(range(ring.written))
    for batch in batches:
        if batch.rounds is not None:
            assert_rows_are_right(batch)
    final.close()


def test_a_second_forwarder_on_a_ring_says_so_once(name, clock, forward, caplog):
    ring = a_ring(name)
    forward.step()
    second = Forwarder(name, Sink, clock=clock, jitter=random.Random(1))
    for _ in range(3):
        clock.advance(0.06)
        second.step()
    (told,) = [r.getMessage() for r in caplog.records if r.getMessage().startswith("ring_busy")]
    assert name in told
    second.close()
    ring.close()
