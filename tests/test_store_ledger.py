"""Interval sets and ledgers agree with plain sets of row numbers."""

from hypothesis import given, settings
from hypothesis import strategies as st

from calibrator.store.intervals import IntervalSet
from calibrator.store.ledger import MAX_INTERVALS, RowLedger

spans = st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda pair: (pair[0], pair[0] + pair[1]))
operations = st.lists(st.tuples(st.sampled_from(["add", "remove", "missing"]), spans), max_size=40)


@given(operations)
def test_intervals_are_sets_of_numbers(steps):
    ours, model = IntervalSet(), set()
    for what, (start, stop) in steps:
        numbers = set(range(start, stop))
        if what == "add":
            assert ours.add(start, stop) == len(numbers - model)
            model |= numbers
        elif what == "remove":
            assert ours.remove(start, stop) == len(numbers & model)
            model -= numbers
        else:
            gaps = {n for a, b in ours.missing(start, stop) for n in range(a, b)}
            assert gaps == numbers - model
        assert {n for a, b in ours.to_list() for n in range(a, b)} == model
        flat = [edge for interval in ours.to_list() for edge in interval]
        assert flat == sorted(set(flat))  # disjoint, not touching, in order


bookings = st.lists(st.tuples(st.sampled_from(["fold", "lose", "dead"]), spans), max_size=40)


@given(bookings)
def test_every_row_is_in_one_state(steps):
    ledger = RowLedger()
    folded, dead, lost = set(), set(), set()
    last = 0
    for what, (start, stop) in steps:
        numbers = set(range(start, stop))
        last = max(last, stop)
        if what == "fold":
            fresh = {n for a, b in ledger.fold(start, stop - start) for n in range(a, b)}
            assert fresh == numbers - folded
            folded |= numbers
            dead -= numbers
            lost -= numbers
        elif what == "lose":
            ledger.lose(start, stop)
            lost |= numbers - folded - dead
        else:
            ledger.dead_letter(start, stop - start)
            dead |= numbers - folded
            lost -= numbers
        assert (ledger.folded, ledger.dead_lettered, ledger.lost) == (len(folded), len(dead), len(lost))
        assert ledger.next_sequence == last
        assert ledger.in_flight == len(set(range(last)) - folded - dead - lost)
        ledger = RowLedger.load(ledger.intervals(), ledger.counters())


@settings(max_examples=20)
@given(st.integers(0, 5), st.integers(1, 5), st.integers(1, 5), st.booleans())
def test_a_settled_ledger_stays_small_and_balanced(first, width, gap, reported):
    ledger = RowLedger()
    at = first
    for _ in range(3 * MAX_INTERVALS):
        if reported:
            ledger.lose(at - gap if at >= gap else 0, at)
        ledger.fold(at, width)
        at += width + gap
    intervals = ledger.intervals()
    assert max(len(intervals[kind]) for kind in ("folded", "lost", "dead_lettered")) <= MAX_INTERVALS + 1
    assert ledger.folded == 3 * MAX_INTERVALS * width
    assert 0 <= ledger.in_flight <= ledger.next_sequence - ledger.floor
    assert ledger.next_sequence == ledger.folded + ledger.lost + ledger.dead_lettered + ledger.in_flight


def test_rows_below_the_floor_are_duplicates():
    ledger = RowLedger()
    for i in range(2 * MAX_INTERVALS):
        ledger.fold(10 * i, 5)
    before = (ledger.folded, ledger.lost, ledger.in_flight)
    assert ledger.floor > 0
    assert ledger.fold(5, 5) == []
    assert (ledger.folded, ledger.lost, ledger.in_flight) == before
