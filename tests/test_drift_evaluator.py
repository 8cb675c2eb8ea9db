"""The evaluator's promises: one alarm once, whoever looks, whenever it breaks off, whatever is published."""

import logging
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from calibrator.core.drift.watch import Watch, log_mean
from calibrator.service import drift, recency
from calibrator.service.deployment_settings import RecencySettings
from calibrator.service.drift import DriftEvaluator, open_calibration_alarms
from calibrator.service.drift_options import DriftOptions
from calibrator.service.drift_state import WatchState
from calibrator.store import deployments, drift_state, drift_sums, episodes, parameters, schema
from collectors.pipeline import IngestPipeline
from serving_adapter.clock import ManualClock
from serving_adapter.contract import ParameterDocument, Rounds, seal
from tests.ingest_support import NOW, ListSink, make_batch, message

pytest_plugins = ["tests.store_fixtures"]

GAMMA = 3
FINGERPRINT = "f" * 32
OPTIONS = DriftOptions(reference_rows=1000)


class Site:
    """A deployment whose head may be wrong by some logits, a collector and a clock."""

    def __init__(self, store):
        self.store, self.clock = store, ManualClock(NOW)
        self.pipeline = IngestPipeline(store, ListSink(), self.clock)
        self.random = np.random.default_rng(0)
        self.offset = self.sequence = 0

    def evaluator(self, kind=DriftEvaluator, **options):
        return kind(self.store, self.clock, OPTIONS, **options)

    def serve(self, rows=2000, wrong=0.0, level=0.75, boot="boot", fingerprint=FINGERPRINT, **columns):
        c = np.clip(self.random.normal(level, 0.1, (rows, GAMMA)), 0.05, 0.95)
        accepted = np.cumprod(self.random.random((rows, GAMMA)) < c, axis=1).sum(axis=1)
        rounds = Rounds.build((np.log(c / (1 - c)) + wrong).astype(np.float16), accepted, **columns)
        batch = make_batch(
            rounds, self.sequence, boot=boot, emitted_at=self.clock.now(), fingerprint=fingerprint
        )
        self.pipeline.ingest([message(batch, self.offset)])
        self.offset += 1
        self.sequence += rows
        self.clock.advance(10.0)

    def publish(self, version, at=NOW, offset=-1.0):
        document = ParameterDocument(
            deployment="prod", fingerprint=FINGERPRINT, version=version, previous=version - 1, gamma=GAMMA,
            form="affine", temperatures=[1.0] * GAMMA, offsets=[offset] * GAMMA,
            created_at="2026-01-01T00:00:00Z",
        )  # fmt: skip
        with self.store.write() as connection:
            parameters.append(connection, self.deployment().id, seal(document), at, "published")

    def deployment(self):
        with self.store.read() as connection:
            return deployments.get(connection, "prod")

    def look(self, evaluator=None):
        return (evaluator or self.evaluator()).evaluate("prod", self.clock.now())

    def open(self):
        with self.store.read() as connection:
            return episodes.opened(connection, self.deployment().id)


@pytest.fixture
def site(store):
    return Site(store)


def evidence(site):
    """The largest log evidence of calibration at any position."""
    with site.store.read() as connection:
        stored = drift_state.load(connection, site.deployment().id).state
    watch = WatchState.from_builtins(stored).segments["default"].calibration
    return float(log_mean(watch.log_evidence).max())


def test_an_alarm_is_raised_once_and_logged(site, caplog):
    caplog.set_level(logging.INFO)
    site.serve()
    assert site.look() == []
    for _ in range(3):
        site.serve(wrong=1.0)
        site.look()
    found = site.open()
    assert [(e.kind, e.segment, e.position, e.direction) for e in found] == [
        ("calibration", "default", position, "below") for position in (1, 2, 3)
    ]
    lines = [record.getMessage() for record in caplog.records if "drift_alarm" in record.getMessage()]
    assert len(lines) == 3
    assert "deployment=prod" in lines[0]
    assert "kind=calibration segment=default position=1 direction=below" in lines[0]


def test_an_episode_ends_when_the_labels_agree_again(site, caplog):
    caplog.set_level(logging.INFO)
    for wrong in (0.0, 1.0, 1.0, *[0.0] * 8):
        site.serve(wrong=wrong)
        site.look()
    assert site.open() == []
    with site.store.read() as connection:
        over, _ = episodes.history(connection, site.deployment().id, state="closed")
    assert all(e.started_at <= e.alarmed_at < e.ended_at for e in over)
    assert sum("drift_ended" in record.getMessage() for record in caplog.records) == len(over) == 3


def test_of_two_evaluators_that_look_at_once_one_has_done_nothing(site):
    class Slow(DriftEvaluator):
        """Its colleague looks between its reading and its writing."""

        def _store_look(self, *arguments):
            assert len(site.look()) == 3
            return super()._store_look(*arguments)

    site.serve(rows=6000, wrong=1.0)
    assert site.look(site.evaluator(Slow)) == []
    assert len(site.open()) == 3


def test_many_evaluators_raise_each_alarm_once(site):
    site.serve(rows=6000, wrong=1.0)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: site.look(), range(8)))
    assert sum(map(len, found)) == 3
    assert len(site.open()) == 3


def test_a_crash_while_episodes_are_written_leaves_the_look_for_the_next_evaluator(site, monkeypatch):
    class CrashError(Exception):
        pass

    site.serve(rows=6000, wrong=1.0)
    real, calls = episodes.start, []

    def crash_at_the_second(connection, deployment_id, episode):
        calls.append(episode)
        if len(calls) == 2:
            raise CrashError
        return real(connection, deployment_id, episode)

    with monkeypatch.context() as patched:
        patched.setattr(drift.episodes, "start", crash_at_the_second)
        with pytest.raises(CrashError):
            site.look()
    assert site.open() == []
    assert len(site.look()) == 3
    assert site.look() == []
    assert len(site.open()) == 3


def test_without_news_nothing_is_written(site):
    site.serve()
    site.look()
    site.look()
    with site.store.read() as connection:
        before = drift_state.load(connection, site.deployment().id)
    site.clock.advance(10.0)
    assert site.look() == []
    with site.store.read() as connection:
        assert drift_state.load(connection, site.deployment().id) == before


def test_a_new_version_that_most_rows_were_served_with_ends_the_episodes_of_the_old_one(site):
    for _ in range(2):
        site.serve(wrong=1.0)
        site.look()
    old = site.open()
    site.publish(1)
    # One of many replicas has it: the set of the others is still wrong.
    site.serve(wrong=1.0, version=np.where(np.arange(2000) < 300, 1, 0))
    assert site.look() == []
    site.serve(wrong=1.0, version=np.full(2000, 1))
    ended = site.look()
    assert {e.id for e in ended} == {e.id for e in old}
    assert all(e.ended_at is not None for e in ended)
    # Version 1 is right about this head, whatever late rows of the old version still say.
    site.serve(wrong=1.0, version=np.where(np.arange(2000) < 1500, 1, 0))
    site.serve(wrong=1.0, rows=300)
    assert site.look() == []
    assert site.open() == []


def test_a_new_version_that_is_wrong_too_has_episodes_of_its_own(site):
    for _ in range(2):
        site.serve(wrong=1.0)
        site.look()
    site.publish(1)
    site.serve(rows=6000, version=np.full(6000, 1))
    changed = site.look()
    assert {(e.version, e.direction) for e in changed if e.ended_at is None} == {(1, "above")}
    assert {(e.version, e.direction) for e in changed if e.ended_at is not None} == {(None, "below")}


def test_versions_that_stay_wrong_do_not_put_the_alarm_off(site):
    site.serve()
    site.publish(1, offset=0.0)
    for _ in range(2):
        site.serve(version=np.full(2000, 1))
        assert site.look() == []
    change = site.clock.now()
    # Refreshes publish blends of what was and what is, before any of them has rows enough for an alarm.
    for version, offset, rows in ((1, 0.0, 200), (2, -0.1, 200), (3, -0.1, 600)):
        if version > 1:
            site.publish(version, site.clock.now(), offset)
        site.serve(rows=rows, wrong=0.5, version=np.full(rows, version))
        opened = site.look()
        assert version == 3 or opened == []
    assert {(e.kind, e.direction, e.version) for e in opened} == {("calibration", "below", 3)}
    assert {e.started_at for e in opened} == {change}
    with site.store.read() as connection:
        deployment = site.deployment()
        own = drift_sums.load(connection, deployment.id, GAMMA, 3)[3]["default"].evidence
        found = recency.look(connection, deployment, RecencySettings(), site.clock.now())
    _, alone = Watch.start(GAMMA).extend(own[None], [1.0], OPTIONS.rules.log_threshold(GAMMA))
    assert alone == []
    # So the sample is cut where the traffic changed, not where the latest version came.
    assert [cut.before for cut in found.new] == [change]


def test_under_a_version_that_is_right_the_evidence_against_the_old_one_fades(site):
    site.serve()
    site.look()
    site.publish(1, offset=0.0)
    site.serve(rows=1000, wrong=0.2, version=np.full(1000, 1))
    assert site.look() == []
    assert evidence(site) > 3.0
    site.publish(2, site.clock.now(), offset=-0.2)
    for _ in range(4):
        site.serve(wrong=0.2, version=np.full(2000, 2))
        assert site.look() == []
    assert evidence(site) < 1.0


def test_no_episode_began_before_its_version_was_made_however_late_the_evaluator_looks(site):
    site.serve()
    site.look()
    # Nobody looks for a while, and meanwhile a version comes that is wrong.
    site.clock.advance(500.0)
    made = site.clock.now()
    site.publish(1, made)
    site.serve(rows=6000, version=np.full(6000, 1))
    opened = [e for e in site.look() if e.ended_at is None]
    assert {e.version for e in opened} == {1}
    assert all(made <= e.started_at <= e.alarmed_at == site.clock.now() for e in opened)


def test_at_the_first_look_nothing_began_before_the_first_rows(site):
    site.serve(rows=10)
    with site.store.write() as connection:
        connection.execute(schema.deployments.update().values(created_at=NOW - 1e6))
    site.serve(rows=6000, wrong=1.0)
    assert all(NOW - 600 <= e.started_at <= e.alarmed_at for e in site.look())
    assert len(site.open()) == 3


def test_another_fingerprint_begins_again_without_what_was_learnt(site):
    for _ in range(2):
        site.serve(wrong=1.0)
        site.look()
    assert len(site.open()) == 3
    with site.store.write() as connection:
        deployments.set_fingerprint(connection, site.deployment().id, "another drafter")
    site.sequence = 0
    site.serve(level=0.6, boot="next", fingerprint="another drafter")
    assert all(e.ended_at is not None for e in site.look())
    for _ in range(3):
        site.serve(level=0.6, boot="next", fingerprint="another drafter")
        assert site.look() == []


def test_acceptance_is_compared_with_its_reference(site):
    for _ in range(3):
        site.serve()
        assert site.look() == []
    for _ in range(4):
        site.serve(level=0.6)
        site.look()
    assert {e.kind for e in site.open()} == {"acceptance"}
    # A refit does not make good what the drafter lost: reference and episode are kept.
    site.publish(1)
    for _ in range(3):
        site.serve(level=0.6, wrong=1.0, version=np.full(2000, 1))
        site.look()
    assert {e.kind for e in site.open()} == {"acceptance"}


def test_the_refresher_is_told_since_when(site):
    site.serve()
    site.look()
    assert open_calibration_alarms(site.store, site.deployment()) is None
    began = site.clock.now()
    for _ in range(2):
        site.serve(wrong=1.0)
        site.look()
    since = open_calibration_alarms(site.store, site.deployment())
    assert since == min(e.started_at for e in site.open())
    assert abs(since - began) <= 10.0


def test_a_step_of_the_loop_looks_when_it_is_due(site):
    evaluator = site.evaluator(evaluate_seconds=30.0)
    site.serve(rows=6000, wrong=1.0)
    assert len(evaluator.step(site.deployment())) == 3
    site.serve(rows=6000, wrong=-1.0)
    assert evaluator.step(site.deployment()) == []
    site.clock.advance(30.0)
    assert evaluator.step(site.deployment()) != []


def test_a_deployment_that_does_not_exist_is_an_error(site):
    with pytest.raises(KeyError):
        site.evaluator().evaluate("nobody", NOW)
