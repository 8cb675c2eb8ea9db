"""The service's own estimate of what rounds of a request have in common: stored, renewed and applied."""

import numpy as np
import pytest

from calibrator.core.affine import fit_affine
from calibrator.core.drift import DriftRules, DriftSums, Watch, tempering
from calibrator.core.drift.dependence import UNKNOWN_TEMPERING
from calibrator.core.labels import at_risk, prefix_labels
from calibrator.core.survival import survival
from calibrator.service.drift import DriftEvaluator
from calibrator.service.drift_state import WatchState
from calibrator.service.tempering import ESTIMATE_SECONDS, TemperingState, _still_well_sampled, estimate
from calibrator.store import Store, deployments, drift_state, drift_sums, parameters
from calibrator.store.sample import WeightedSample
from collectors.pipeline import IngestPipeline
from serving_adapter.clock import ManualClock
from serving_adapter.contract import ParameterDocument, Rounds, seal
from serving_adapter.engines.replay import load_recording
from tests.ingest_support import NOW, ListSink, make_batch, message

GAMMA = 7
LOG_THRESHOLD = DriftRules().log_threshold(GAMMA)
TOO_HIGH = 0.2
"""Logits: so little that there is always some evidence, and never enough for an alarm in these tests."""


class OneAtATime:
    """Recorded requests of ``hard``, one after the other, predicted by version 1, a little too high."""

    def __init__(self, store):
        self.store, self.clock = store, ManualClock(NOW)
        self.pipeline = IngestPipeline(store, ListSink(), self.clock)
        self.evaluator = DriftEvaluator(store, self.clock)
        recording = load_recording("hard")
        fit = fit_affine(recording.rounds.logits, prefix_labels(recording.rounds), at_risk(recording.rounds))
        self.set = fit.temperatures.tolist(), (fit.offsets + TOO_HIGH).tolist()
        dealt = np.random.default_rng(0).permutation(len(recording))
        order = np.concatenate([np.arange(*recording.starts[i : i + 2]) for i in dealt])
        self.rounds = recording.rounds.take(order)
        self.served = self.offset = 0
        self.watch = Watch.start(GAMMA)
        self.read = DriftSums.zeros(GAMMA)
        with store.write() as connection:
            self.id = deployments.register(connection, "prod", GAMMA, "f" * 32, NOW).id
            document = ParameterDocument(
                deployment="prod", fingerprint="f" * 32, version=1, previous=0, gamma=GAMMA, form="affine",
                temperatures=self.set[0], offsets=self.set[1], created_at="2026-01-01T00:00:00Z",
            )  # fmt: skip
            parameters.append(connection, self.id, seal(document), NOW, "published")

    def serve(self, rows, wrong=0.0, segment="default"):
        """Ingest the next rows, ``wrong`` logits too high, and look: the episodes that changed."""
        self.ingest(rows, wrong, segment)
        return self.look()

    def ingest(self, rows, wrong=0.0, segment="default"):
        part = self.rounds.take(slice(self.served, self.served + rows))
        rounds = Rounds.build(
            (part.logits + wrong).astype(np.float16),
            part.accepted,
            request=part.request,
            step=part.step,
            version=np.ones(rows, dtype=np.uint32),
            segment=np.zeros(rows, dtype=np.uint16),
            segments=[segment],
        )
        batch = make_batch(rounds, self.served, emitted_at=self.clock.now())
        self.pipeline.ingest([message(batch, self.offset)])
        self.offset += 1
        self.served += rows

    def look(self):
        self.clock.advance(10.0)
        return self.evaluator.evaluate("prod", self.clock.now())

    def state(self):
        with self.store.read() as connection:
            return WatchState.from_builtins(drift_state.load(connection, self.id).state)

    def powers(self):
        """As stored, of calibration and acceptance."""
        found = self.state().tempering.segments["default"]
        return [found.calibration.tolist(), found.acceptance.tolist()]

    def expected(self):
        """By the statistic itself, of all rows served so far."""
        rounds = self.rounds.take(slice(self.served))
        labels, counted = prefix_labels(rounds), np.ones((self.served, GAMMA), dtype=bool)
        logits = rounds.logits.astype(np.float16)  # as they are sent
        residuals = labels - survival(logits, *self.set)
        return [
            pytest.approx(tempering(residuals, counted, rounds.request), rel=1e-9),
            pytest.approx(tempering(labels, counted, rounds.request, variance=0.25), rel=1e-9),
        ]

    def is_tempered_by(self, power):
        """Whether the evidence of the last look was taken in to that power."""
        with self.store.read() as connection:
            total = drift_sums.load(connection, self.id, GAMMA)[1]["default"]
        evidence = (total - self.read).evidence
        self.watch, _ = self.watch.extend(evidence[None], [self.clock.now()], LOG_THRESHOLD, power)
        self.read = total
        stored = self.state().segments["default"].calibration.log_evidence
        return bool(stored.any()) and stored.tolist() == self.watch.log_evidence.tolist()


@pytest.fixture
def place(tmp_path):
    store = Store(f"sqlite:///{tmp_path}/store.db")
    store.migrate()
    yield OneAtATime(store)
    store.close()


def test_evidence_is_tempered_by_what_the_stored_rows_have_in_common(place):
    assert place.serve(1000) == []
    assert place.state().tempering.segments == {}
    assert place.is_tempered_by(UNKNOWN_TEMPERING)

    assert place.serve(3500) == []
    first = place.powers()
    assert first == place.expected()
    assert first[0][0] < 0.3  # rounds of one request that repeat each other three times
    assert place.is_tempered_by(first[0])

    # Before rows have doubled or time has passed it is kept, also by an evaluator that knows nothing yet.
    place.evaluator = DriftEvaluator(place.store, place.clock)
    assert place.serve(1000) == []
    assert place.powers() == first
    assert place.is_tempered_by(first[0])

    assert place.serve(3500) == []
    doubled = place.powers()
    assert doubled == place.expected() != first
    assert place.is_tempered_by(doubled[0])

    place.clock.advance(ESTIMATE_SECONDS)
    assert place.serve(1000) == []
    assert place.powers() == place.expected() != doubled

    alarms = [e for e in place.serve(3000, wrong=1.0) if e.kind == "calibration"]
    assert {(e.direction, e.version) for e in alarms} == {("below", 1)}
    assert {e.position for e in alarms} == set(range(1, GAMMA + 1))


def test_a_segment_that_appears_late_is_estimated_when_it_has_rows_and_when_they_double(place):
    place.serve(2000)
    place.serve(1000)
    place.serve(500, segment="late")
    alone = place.state().tempering
    assert set(alone.segments) == {"default"}  # too few rows of it, and too few in all

    place.serve(500, segment="late")
    first = place.state().tempering
    assert first.served == {"default": 3000, "late": 1000}
    assert set(first.segments) == {"default", "late"}
    assert (first.at, first.rows) == (alone.at, alone.rows)  # all are due when they were

    place.serve(900, segment="late")
    assert place.state().tempering.to_builtins() == first.to_builtins()
    place.serve(100, segment="late")
    second = place.state().tempering
    assert second.served == {"default": 3000, "late": 2000}
    assert (second.segments["late"].calibration != UNKNOWN_TEMPERING).any()  # of requests enough by now
    assert second.segments["default"].to_builtins() == alone.segments["default"].to_builtins()


def test_one_look_estimates_one_segment_and_the_next_look_the_other(place):
    place.serve(2000)
    place.serve(1000)
    place.ingest(1000, segment="late")
    place.ingest(1100, segment="later")
    place.look()
    assert place.state().tempering.served == {"default": 3000, "later": 1100}
    place.look()
    assert place.state().tempering.served == {"default": 3000, "later": 1100, "late": 1000}


def test_a_state_of_an_older_release_is_read_and_its_segments_are_due(place):
    place.serve(2000)
    place.serve(1000)
    state = place.state().tempering
    built = state.to_builtins()
    assert TemperingState.from_builtins(built).to_builtins() == built
    del built["served"]
    old = TemperingState.from_builtins(built)
    assert old.to_builtins() == {**built, "served": {}}
    place.ingest(10)
    with place.store.read() as connection:
        deployment = deployments.get(connection, "prod")
        evidence = drift_sums.load(connection, place.id, GAMMA)
        renewed = old.refreshed(connection, deployment, 1, evidence, place.clock.now())
    assert renewed.served == {"default": 3010}
    assert renewed.segments["default"].to_builtins() != old.segments["default"].to_builtins()


def test_rows_that_are_in_the_sample_by_luck_do_not_decide_what_the_others_bear():
    """A request of long ago, whose few rows stand for thousands and are all alike."""
    request = np.r_[np.arange(400), np.full(20, 400)]
    accepted = np.r_[np.arange(400) % 2, np.ones(20)]
    rounds = Rounds.build(np.zeros((420, 1)), accepted, request=request)
    weights = np.r_[np.ones(400), np.full(20, 1e5)]
    nothing = np.zeros(420, dtype=np.int64)
    sampled = WeightedSample(rounds, weights, weights, np.full(420, "f"), nothing, nothing)
    kept = _still_well_sampled(sampled)
    assert len(kept) == 400
    assert estimate(kept, None).calibration[0] > 0.7
    assert estimate(sampled, None).calibration[0] < 0.2
