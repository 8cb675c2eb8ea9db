"""Ranges of time are cut into points that the store answers quickly."""

import pytest

from calibrator.service.reading.ranges import MAX_POINTS, cut_range, whole_hours

NOW = 1_700_000_123.5


@pytest.mark.parametrize("seconds", [60, 600, 3600, 6 * 3600, 86_400, 7 * 86_400, 30 * 86_400, 366 * 86_400])
def test_a_range_has_at_most_two_hundred_points_and_one_more_at_each_end(seconds):
    steps = cut_range(NOW - seconds, NOW, None, 60.0)
    assert 1 <= steps.count <= MAX_POINTS + 1
    assert steps.start <= NOW - seconds
    assert steps.end >= NOW
    assert steps.start % steps.step == steps.end % steps.step == 0


def test_ranges_beyond_six_hours_take_whole_hours():
    assert cut_range(NOW - 6 * 3600, NOW, None, 60.0).step == 120
    assert cut_range(NOW - 7 * 3600, NOW, None, 60.0).step == 3600
    assert cut_range(NOW - 30 * 86_400, NOW, None, 60.0).step == 4 * 3600


def test_a_step_that_was_asked_for_is_rounded_up_to_whole_windows():
    assert cut_range(NOW - 86_400, NOW, 90.0, 60.0).step == 120
    assert cut_range(NOW - 86_400, NOW, 1.0, 60.0).step == 60
    assert cut_range(NOW - 86_400, NOW, 1e6, 60.0).step == 1_000_020


def test_an_instant_is_one_point():
    assert cut_range(120.0, 120.5, None, 60.0).count == 1


def test_whole_hours_hold_the_range():
    assert whole_hours(7200.0, 10_800.0) == (7200, 10_800)
    assert whole_hours(7201.0, 10_801.0) == (7200, 14_400)
