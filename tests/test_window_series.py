"""Arrays of window sums are the window sums, on both databases, for one deployment and for all."""

import pytest

from calibrator.core.sums import LARGEST_SUM
from calibrator.core.windows import WindowSums
from calibrator.store import deployments, schema, window_series, windows
from calibrator.store.errors import RangeTooLargeError
from calibrator.store.windows import HOUR, Cell
from tests.ingest_support import GAMMA, expected_sums, make_rounds

pytest_plugins = ["tests.store_fixtures"]

START = 1_700_000_000 // HOUR * HOUR


@pytest.fixture
def prod(store):
    with store.write() as connection:
        made = deployments.register(connection, "prod", GAMMA, "f", 0.0)
        ids = deployments.add_segments(connection, made.id, ["chat", "code"])
        other = deployments.register(connection, "other", 3, "f", 0.0)
        other_ids = deployments.add_segments(connection, other.id, ["chat"])
        for hour in range(3):
            for minute in (0, 60, 1800):
                for segment, sampling in (("chat", "greedy"), ("chat", "mid"), ("code", "mid")):
                    seed = hash((hour, minute, segment == "chat", sampling == "mid")) % 1000
                    sums = expected_sums(make_rounds(20, seed=seed))
                    cell = Cell(START + hour * HOUR + minute, ids[segment], sampling, sums)
                    windows.add(connection, made.id, [cell], raw=True)
        lone = expected_sums(make_rounds(9, gamma=3))
        windows.add(connection, other.id, [Cell(START, other_ids["chat"], "mid", lone)], raw=True)
    return made


@pytest.mark.parametrize("step", [1800, 3 * HOUR])
@pytest.mark.parametrize(
    "options", [{}, {"segment": "chat"}, {"sampling": "mid"}, {"segment": "code", "sampling": "mid"}]
)
def test_a_series_is_the_query_point_by_point(store, prod, step, options):
    end = START + 6 * HOUR
    first = START // step * step
    with store.read() as connection:
        found = window_series.series(
            connection, prod.id, GAMMA, first, end // step * step, step, raw=True, **options
        )
        points = windows.query(
            connection, prod.id, GAMMA, first, end // step * step, step, raw=True, **options
        )
    assert found.starts.tolist() == list(range(first, end // step * step, step))
    by_start = {point.start: point.sums for point in points}
    for i, start in enumerate(found.starts.tolist()):
        assert found.at(i) == by_start.get(start, WindowSums.zeros(GAMMA))
    assert found.scalars.sum() > 0


def test_nothing_in_force_is_all_zeros(store, prod):
    with store.read() as connection:
        found = window_series.series(connection, prod.id, GAMMA, START, START + HOUR, 60)
    assert len(found) == 60
    assert not found.scalars.any()
    assert not found.bins.any()


def test_a_segment_of_that_name_in_another_deployment_does_not_count(store, prod):
    with store.read() as connection:
        found = window_series.series(
            connection, prod.id, GAMMA, START, START + HOUR, HOUR, raw=True, segment="nobody"
        )
    assert not found.scalars.any()


def test_all_deployments_come_by_one_query(store, prod):
    with store.read() as connection:
        known = {d.id: d.gamma for d in deployments.every(connection)}
        found = window_series.of_deployments(connection, known, START, START + 3 * HOUR, raw=True)
        expected = {
            d: windows.query(connection, d, gamma, START, START + 3 * HOUR, raw=True)[0].sums
            for d, gamma in known.items()
        }
    assert found == expected


def test_pooled_hours_are_the_hours_of_all_segments_and_buckets(store, prod):
    with store.read() as connection:
        by_segment = windows.query(
            connection,
            prod.id,
            GAMMA,
            START,
            START + 3 * HOUR,
            HOUR,
            raw=True,
            by_segment=True,
            by_sampling=True,
        )
        pooled = windows.query(connection, prod.id, GAMMA, START, START + 3 * HOUR, HOUR, raw=True)
        rows = connection.execute(schema.raw_pooled_hours.select()).all()
    assert len(rows) == 3 * GAMMA + 3
    for point in pooled:
        parts = [each.sums for each in by_segment if each.start == point.start]
        assert len(parts) == 3
        assert sum(parts[1:], parts[0]) == point.sums


def test_a_range_whose_sums_no_integer_holds_is_named_and_its_hours_can_be_read(store):
    gamma, end = 1, START + 3 * HOUR
    full = WindowSums.zeros(gamma)
    full.scalars[:] = LARGEST_SUM
    with store.write() as connection:
        made = deployments.register(connection, "hostile", gamma, "f", 0.0)
        chat = deployments.add_segments(connection, made.id, ["chat"])["chat"]
        cells = [Cell(START + hour * HOUR, chat, "mid", full) for hour in range(3)]
        windows.add(connection, made.id, cells, raw=True)

    def read(how, *arguments, **options):
        with store.read() as connection:
            return how(connection, *arguments, raw=True, **options)

    hours = read(window_series.series, made.id, gamma, START, end, HOUR)
    assert [hours.at(i) for i in range(3)] == [full] * 3
    assert [point.sums for point in read(windows.query, made.id, gamma, START, end, HOUR)] == [full] * 3
    for how, *arguments in (
        (window_series.series, made.id, gamma, START, end, 3 * HOUR),
        (window_series.of_deployments, {made.id: gamma}, START, end),
        (windows.query, made.id, gamma, START, end),
        (windows.total, made.id, gamma),
    ):
        with pytest.raises(RangeTooLargeError, match=r"from .* to .*: got sums larger than 64 bits"):
            read(how, *arguments)
    with pytest.raises(RangeTooLargeError, match="from 2023-11-14T22:00:00Z to 2023-11-15T01:00:00Z: got"):
        read(windows.query, made.id, gamma, START, end, segment="chat", bins=False)
