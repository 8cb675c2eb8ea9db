"""Alarms of a segment from growing totals: evidence read once, a reference, and what a version changes."""

import json

import numpy as np
import pytest

from calibrator.core.drift import BELOW, DriftRules, DriftSums
from calibrator.core.drift.segment_watch import SegmentWatch
from calibrator.core.drift.watch import log_mean
from serving_adapter.contract import Rounds, prefix_survival

RULES = DriftRules()
THRESHOLD = RULES.log_threshold(3)
REFERENCE_ROWS = 3000


def sums(seed, rows=1000, level=0.75, wrong=0.0):
    random = np.random.default_rng(seed)
    c = np.clip(random.normal(level, 0.1, (rows, 3)), 0.05, 0.95)
    accepted = np.cumprod(random.random((rows, 3)) < c, axis=1).sum(axis=1)
    said = 1 / (1 + np.exp(-(np.log(c / (1 - c)) + wrong)))
    return DriftSums.fold(Rounds.build(np.log(said / (1 - said)), accepted), prefix_survival(said))


class Watched:
    def __init__(self):
        self.watch, self.total, self.at = SegmentWatch.start(3, 0.0), DriftSums.zeros(3), 0.0

    def take(self, looks, **changes):
        for _ in range(looks):
            self.at += 10.0
            self.total = self.total + sums(int(self.at), **changes)
            stored = json.loads(json.dumps(self.watch.to_builtins()))
            self.watch = SegmentWatch.from_builtins(stored).look(
                self.total, self.at, RULES, THRESHOLD, REFERENCE_ROWS
            )
        return self.watch


def test_the_reference_is_the_first_rows_and_bears_no_evidence():
    watched = Watched()
    watch = watched.take(2)
    assert np.isnan(watch.reference_level(REFERENCE_ROWS)[0]).all()
    watch = watched.take(1)
    level, error = watch.reference_level(REFERENCE_ROWS)
    assert level == pytest.approx(watched.total.acceptance)
    assert (error > 0).all()
    assert not watch.acceptance.log_evidence.any()


def test_gap_and_rows_are_those_since_the_drift_began():
    watched = Watched()
    watched.take(10)
    watch = watched.take(2, wrong=0.8)
    assert (watch.calibration.direction == BELOW).all()
    gap, rows = watch.calibration_gap(1, BELOW)
    assert 2000 <= rows <= 4000
    assert gap == pytest.approx(0.11, abs=0.04)
    assert not watch.acceptance.direction.any()


def test_a_fallen_acceptance_is_told_from_its_reference():
    watched = Watched()
    watched.take(4)
    watch = watched.take(5, level=0.6)
    assert (watch.acceptance.direction == BELOW).all()
    gap, _ = watch.acceptance_gap(1, BELOW, REFERENCE_ROWS)
    assert gap == pytest.approx(-0.15, abs=0.03)
    assert not watch.calibration.direction.any()


def test_another_version_takes_a_new_reference_unless_acceptance_has_fallen():
    calm = Watched()
    calm.take(4)
    assert not calm.watch.restart(calm.at).reference.any()
    fallen = Watched()
    fallen.take(4)
    fallen.take(5, level=0.6, wrong=0.8)
    again = fallen.watch.restart(fallen.at)
    assert not again.calibration.direction.any()
    assert (again.acceptance.direction == BELOW).all()
    assert (again.reference == fallen.watch.reference).all()
    assert not again.read.values.any()


def test_evidence_of_calibration_goes_on_under_another_version():
    watched = Watched()
    watched.take(4)
    before = watched.take(1, wrong=0.25)
    grown = log_mean(before.calibration.log_evidence)
    assert 3.0 < grown.max() < THRESHOLD
    after = before.restart(watched.at + 5.0)
    assert (log_mean(after.calibration.log_evidence) == grown).all()
    assert after.calibration_gap(1, BELOW) == before.calibration_gap(1, BELOW)
    # Evidence remembers when it began; where there is none, nothing began before the version.
    risen = before.calibration.log_evidence > 0.0
    assert (after.calibration.since[risen] == before.calibration.since[risen]).all()
    assert (after.calibration.since[~risen] == watched.at + 5.0).all()
    # Nobody fitted the identity: what it got wrong says nothing of a change.
    assert not before.restart(watched.at, calibrated=False).calibration.log_evidence.any()


def test_another_version_ends_an_alarm_and_its_stream_begins_again():
    watched = Watched()
    watch = watched.take(4, wrong=0.8)
    assert (watch.calibration.direction == BELOW).all()
    again = watch.restart(watched.at)
    assert not again.calibration.log_evidence.any()
    assert not again.calibration.direction.any()
    assert again.calibration_gap(1, BELOW) == (None, 0)


def test_no_new_rows_change_nothing():
    watched = Watched()
    watch = watched.take(1)
    assert watch.look(watched.total, 99.0, RULES, THRESHOLD, REFERENCE_ROWS) is watch
