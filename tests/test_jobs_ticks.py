"""When a schedule is due: the same moments for every service, as cron means them."""

from datetime import UTC, datetime

import pytest

from calibrator.service.jobs.cron import CronError, CronExpression, parse_cron
from calibrator.service.jobs.ticks import IntervalTicks, due_tick, next_tick
from calibrator.store.schedules import Schedule

NOW = datetime(2026, 11, 29, 22, 47, 30, tzinfo=UTC).timestamp()  # a Sunday


def moment(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def shown(at: float | None) -> str:
    assert at is not None
    return datetime.fromtimestamp(at, UTC).strftime("%a %Y-%m-%d %H:%M")


@pytest.mark.parametrize(
    ("cron", "last", "following"),
    [
        ("* * * * *", "Sun 2026-11-29 22:47", "Sun 2026-11-29 22:48"),
        ("*/5 * * * *", "Sun 2026-11-29 22:45", "Sun 2026-11-29 22:50"),
        ("10-40/15 * * * *", "Sun 2026-11-29 22:40", "Sun 2026-11-29 23:10"),
        ("0 6,18 * * *", "Sun 2026-11-29 18:00", "Mon 2026-11-30 06:00"),
        # Cron counts weekdays from Sunday, twice.
        ("0 0 * * 0", "Sun 2026-11-29 00:00", "Sun 2026-12-06 00:00"),
        ("0 0 * * 7", "Sun 2026-11-29 00:00", "Sun 2026-12-06 00:00"),
        ("0 0 * * 1", "Mon 2026-11-23 00:00", "Mon 2026-11-30 00:00"),
        ("0 0 * * 5-7", "Sun 2026-11-29 00:00", "Fri 2026-12-04 00:00"),
        ("0 0 * * Fri-Sun", "Sun 2026-11-29 00:00", "Fri 2026-12-04 00:00"),
        ("0 0 * * 0-2", "Sun 2026-11-29 00:00", "Mon 2026-11-30 00:00"),
        ("0 0 * * */2", "Sun 2026-11-29 00:00", "Tue 2026-12-01 00:00"),
        # Either day counts when both are restricted ...
        ("0 0 13 * fri", "Fri 2026-11-27 00:00", "Fri 2026-12-04 00:00"),
        ("0 0 30 * fri", "Fri 2026-11-27 00:00", "Mon 2026-11-30 00:00"),
        # ... and both must fit when one begins with an asterisk.
        ("0 0 */2 * mon", "Mon 2026-11-23 00:00", "Mon 2026-12-07 00:00"),
        ("30 2 1 jan,jul *", "Wed 2026-07-01 02:30", "Fri 2027-01-01 02:30"),
        ("0 0 29 2 *", "Thu 2024-02-29 00:00", "Tue 2028-02-29 00:00"),
    ],
)
def test_cron_means_what_cron_means(cron: str, last: str, following: str) -> None:
    expression = parse_cron(cron)
    assert shown(expression.at_or_before(NOW)) == last
    assert shown(expression.after(NOW)) == following


def test_the_latest_time_is_the_one_that_no_other_comes_after() -> None:
    expression = CronExpression("7,23 */3 * * 1-5")
    for step in range(400):
        now = NOW + step * 1777.0
        last = expression.at_or_before(now)
        assert last is not None
        assert last <= now
        following = expression.after(last)
        assert following is not None
        assert following > now
        assert following == expression.after(now)


@pytest.mark.parametrize(
    ("cron", "complaint"),
    [
        ("* * * *", "expected five fields"),
        ("@daily", "expected five fields"),
        ("60 * * * *", "minute: got '60', expected 0 to 59"),
        ("* 24 * * *", "hour: got '24'"),
        ("* * 0 * *", "day of month: got '0'"),
        ("* * * 13 *", "month: got '13'"),
        ("* * * * 8", "day of week: got '8'"),
        ("* * * mon *", "month: got 'mon'"),
        ("*/0 * * * *", "a step of 1 or more"),
        ("5/10 * * * *", "a step of 1 or more"),
        ("40-10 * * * *", "expected a range that rises"),
        ("1,,2 * * * *", "minute: got ''"),
        ("last * * * *", "minute: got 'last'"),
        ("0 0 30 2 *", "expected a day that exists"),
        ("\u0661 * * * *", "minute: got"),
    ],
)
def test_what_cannot_be_used_is_named(cron: str, complaint: str) -> None:
    with pytest.raises(CronError, match="cron") as caught:
        CronExpression(cron)
    assert complaint in str(caught.value)


def test_intervals_are_whole_multiples_since_1970_for_everybody() -> None:
    ticks = IntervalTicks(300.0)
    assert ticks.at_or_before(NOW) == moment("2026-11-29 22:45")
    assert ticks.after(NOW) == moment("2026-11-29 22:50")
    fifths = IntervalTicks(0.2)
    assert len({fifths.at_or_before(NOW + offset) for offset in (0.01, 0.1, 0.19)}) == 1


def test_a_deployment_gathers_rows_for_a_whole_interval_first() -> None:
    created = moment("2026-11-29 22:42")
    schedule = Schedule()
    assert due_tick(schedule, 300.0, created, moment("2026-11-29 22:49:59")) is None
    assert due_tick(schedule, 300.0, created, moment("2026-11-29 22:50")) == moment("2026-11-29 22:50")
    assert next_tick(schedule, 300.0, created, moment("2026-11-29 22:43")) == moment("2026-11-29 22:50")
    nightly = Schedule(cron="0 3 * * *")
    assert due_tick(nightly, 300.0, created, moment("2026-11-30 04:00")) is None
    assert next_tick(nightly, 300.0, created, moment("2026-11-30 04:00")) == moment("2026-12-01 03:00")


def test_of_many_missed_ticks_the_latest_is_due() -> None:
    assert due_tick(Schedule(interval_seconds=60.0), 300.0, 0.0, NOW) == moment("2026-11-29 22:47")


def test_a_paused_schedule_is_never_due_and_makes_nothing_up_when_it_goes_on() -> None:
    assert due_tick(Schedule(paused=True), 300.0, 0.0, NOW) is None
    assert next_tick(Schedule(paused=True), 300.0, 0.0, NOW) is None
    resumed = Schedule(since=NOW)
    assert due_tick(resumed, 300.0, 0.0, NOW + 1.0) is None
    assert due_tick(resumed, 300.0, 0.0, NOW + 300.0) == moment("2026-11-29 22:50")
