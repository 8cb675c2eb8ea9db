"""What a calibration alarm does to old rows: forgotten once, for good, and soon after the alarm."""

from dataclasses import replace

import numpy as np
import pytest

from calibrator.core.drift import DriftRules, DriftSums, Watch
from calibrator.core.parameter_set import ParameterSet
from calibrator.core.report import mean_ece, position_report
from calibrator.service.deployment_settings import RecencySettings
from calibrator.service.recency import RefreshAtAlarms, look, wants_refresh
from calibrator.service.refresh import Refresher
from calibrator.store import deployments, episodes, forgetting, refreshes, runs
from calibrator.store.deployments import Deployment
from calibrator.store.episodes import Episode
from serving_adapter.contract import Rounds
from serving_adapter.engines.replay import (
    DriftScript,
    Machine,
    ReplayEngine,
    Traffic,
    load_recording,
)
from tests.recorded import recorded
from tests.refresh_support import Place, open_place
from tests.replay_doubles import RecordingAdapter, parameters

pytest_plugins = ["tests.refresh_fixtures"]

SETTINGS = RecencySettings(min_rows=500)


def the(place: Place) -> Deployment:
    with place.store.read() as connection:
        found = deployments.get(connection, "chat")
    assert found is not None
    return found


def alarm(place: Place, started_at: float, segment: str | None = None, kind: str = "calibration") -> int:
    episode = Episode(
        kind, segment, 3, None, None, "above", started_at, place.clock.now(), None, 0.1, "drifted", "refit", 1
    )
    with place.store.write() as connection:
        return episodes.start(connection, the(place).id, episode)


def close(place: Place, episode_id: int) -> None:
    with place.store.write() as connection:
        episodes.end(connection, episode_id, place.clock.now())


def looked(place: Place, settings: RecencySettings = SETTINGS):
    with place.store.read() as connection:
        return look(connection, the(place), settings, place.clock.now())


def configure(place: Place, **settings) -> None:
    with place.store.write() as connection:
        deployments.set_settings(connection, the(place).id, settings)


def rows_used(place: Place) -> int:
    with place.store.read() as connection:
        return int(refreshes.recent(connection, the(place).id)[0].evidence["rows"])


def two_batches(place: Place, second: int = 2000) -> float:
    """6 000 old rows, ``second`` new ones; the time in between."""
    rows = recorded("typical")
    place.ingest(rows.take(slice(0, 6000)))
    place.clock.advance(1000.0)
    between = place.clock.now() - 500.0
    place.ingest(rows.take(slice(6000, 6000 + second)))
    place.report()
    configure(place, recency={"min_rows": 500})
    return between


def test_without_an_alarm_nothing_is_forgotten(place: Place) -> None:
    two_batches(place)
    assert looked(place).new == ()
    place.refresher.refresh("chat")
    assert rows_used(place) == 8000


def test_rows_from_before_the_drift_are_not_used_from_the_alarm_on(place: Place) -> None:
    between = two_batches(place)
    alarm(place, between)
    place.refresher.refresh("chat")
    assert rows_used(place) == 2000
    with place.store.read() as connection:
        stored = forgetting.cuts(connection, the(place).id)
        evidence = refreshes.recent(connection, the(place).id)[0].evidence["recency"]
    assert [(cut.segment, cut.before) for cut in stored] == [(None, between)]
    assert evidence["forgotten_before"] == {"*": between}
    assert evidence["rows_forgotten"] == 6000
    assert evidence["forgotten_now"][0]["reason"] == "calibration drift of all traffic, position 3"


def test_old_rows_do_not_return_when_the_episode_closes(place: Place) -> None:
    between = two_batches(place)
    episode = alarm(place, between)
    place.refresher.refresh("chat")
    close(place, episode)
    place.clock.advance(10.0)
    place.refresher.refresh("chat")
    assert rows_used(place) == 2000


def test_late_rows_from_before_the_drift_are_left_out_too(place: Place) -> None:
    between = two_batches(place)
    alarm(place, between)
    place.refresher.refresh("chat")
    place.ingest(recorded("typical").take(slice(8000, 9000)), at=between - 100.0)
    place.refresher.refresh("chat")
    assert rows_used(place) == 2000


def test_an_alarm_waits_for_enough_rows_and_says_so(place: Place) -> None:
    between = two_batches(place, second=300)
    alarm(place, between)
    found = looked(place)
    assert found.new == ()
    assert found.waits == ("alarm of all traffic, position 3: 300 of 500 rows since the drift began",)
    outcome = place.refresher.refresh("chat")
    assert rows_used(place) == 6300
    assert "recency: " + found.waits[0] in outcome.reasons


def test_one_drift_is_cut_at_once_however_many_positions_notice(place: Place) -> None:
    between = two_batches(place)
    alarm(place, between)
    place.refresher.refresh("chat")
    place.clock.advance(60.0)
    alarm(place, between + 100.0)
    assert looked(place).new == ()
    # A drift that began after the cut is another one.
    alarm(place, place.clock.now() - 30.0)
    place.ingest(recorded("typical").take(slice(8000, 9000)))
    assert [cut.before for cut in looked(place).new] == [place.clock.now() - 30.0]


def test_an_alarm_of_one_segment_forgets_that_segment_only(place: Place) -> None:
    rows = load_recording("typical").rounds
    place.ingest(rows.take(slice(0, 6000)))
    place.clock.advance(1000.0)
    place.ingest(rows.take(slice(6000, 9000)))
    place.report()
    configure(place, recency={"min_rows": 500})
    names = np.array(rows.segment_names())
    alarm(place, place.clock.now() - 500.0, segment="chat")
    place.refresher.refresh("chat")
    assert rows_used(place) == 9000 - int((names[:6000] == "chat").sum())


@pytest.mark.parametrize("kind", ["acceptance", "traffic", "cost"])
def test_only_calibration_makes_it_forget(place: Place, kind: str) -> None:
    alarm_at = two_batches(place)
    alarm(place, alarm_at, kind=kind)
    assert looked(place).new == ()


def test_an_operator_may_keep_old_rows(place: Place) -> None:
    alarm(place, two_batches(place))
    configure(place, recency={"forget": False})
    place.refresher.refresh("chat")
    assert rows_used(place) == 8000


def test_a_dry_run_forgets_nothing_for_good(place: Place) -> None:
    alarm(place, two_batches(place))
    place.refresher.refresh("chat", dry_run=True)
    assert rows_used(place) == 2000
    with place.store.read() as connection:
        assert forgetting.cuts(connection, the(place).id) == []
    assert looked(place).new != ()


def test_a_run_is_asked_for_once_per_alarm(place: Place) -> None:
    between = two_batches(place)
    ask = RefreshAtAlarms(place.store)

    def asked() -> list[str]:
        ask(the(place))
        with place.store.read() as connection:
            return [run.trigger for run in runs.recent(connection, deployment_id=the(place).id)]

    assert asked() == []
    alarm(place, between)
    assert asked() == ["alarm"]
    assert asked() == ["alarm"]
    with place.store.read() as connection:
        assert wants_refresh(connection, the(place), SETTINGS, place.clock.now())
    place.refresher.refresh("chat")
    with place.store.read() as connection:
        assert not wants_refresh(connection, the(place), SETTINGS, place.clock.now())


def test_no_run_is_asked_for_where_nothing_would_come_of_it(place: Place) -> None:
    between = two_batches(place)
    alarm(place, between)
    ask = RefreshAtAlarms(place.store)
    ask(replace(the(place), frozen=True))
    ask(replace(the(place), settings={"recency": {"forget": False}}))
    ask(replace(the(place), settings={"recency": {"forget": "perhaps"}}))
    with place.store.read() as connection:
        assert runs.recent(connection, deployment_id=the(place).id) == []


class Loop:
    """The replay engine behind a refresher: code, then chat; alarms as the e-process raises them."""

    CHUNK, CHUNKS = 500, 6
    CODE, CHAT = 2, 3

    def __init__(self, place: Place, forget: bool) -> None:
        self.place = place
        self.adapter = RecordingAdapter(explore=0.02)
        self.recording = load_recording("typical")
        steps = self.CODE * self.CHUNKS * self.CHUNK // 50
        script = DriftScript.switch((Traffic("typical", ("code",)),), (Traffic("typical", ("chat",)),), steps)
        self.engine = ReplayEngine(
            self.adapter, script=script, concurrency=50, machine=Machine.with_knee(256), free_labels=False
        )
        names = np.array(self.recording.rounds.segment_names())
        self.judged = self.recording.rounds.take(names == "chat")
        self.refresher = Refresher(
            place.store, place.parameter_store, place.publisher, place.clock,
            replace(place.refresher._options, form="affine", folds=3), explore=0.02, half_life_seconds=1e9,
        )  # fmt: skip
        self.settings = {"recency": {"forget": forget, "min_rows": 1000}}
        self.watch = Watch.start(7)
        self.open: list[int] = []

    def serve(self) -> None:
        """One interval; an alarm opens an episode, pooled over segments."""
        for _ in range(self.CHUNKS):
            parts = [self.engine.step().rounds for _ in range(self.CHUNK // 50)]
            rounds = Rounds.concatenate(parts)
            self.place.clock.advance(float(self.CHUNK))
            self.place.ingest(rounds)
            evidence = DriftSums.fold(rounds, self.in_force.survival(rounds)).evidence
            threshold = DriftRules().log_threshold(7)
            self.watch, events = self.watch.extend(evidence[None], [self.place.clock.now()], threshold)
            for event in events:
                if event.kind == "start":
                    self.open.append(alarm(self.place, event.since))

    @property
    def in_force(self) -> ParameterSet:
        now = self.engine.parameters
        return ParameterSet(now.form, np.array(now.temperatures), np.array(now.offsets))

    def refresh(self) -> None:
        self.place.report()
        configure(self.place, **self.settings)
        document = self.refresher.refresh("chat").document
        if document is None:
            return
        self.adapter.parameters = replace(
            parameters(document.version, explore=document.explore),
            form=document.form,
            temperatures=np.array(document.temperatures),
            offsets=np.array(document.offsets),
        )
        self.watch = self.watch.next_version(self.place.clock.now())
        for episode in self.open:
            close(self.place, episode)
        self.open = []

    def error(self) -> float:
        """Mean ECE on all of chat, with every label, under what was published last."""
        now = self.adapter.parameters
        survival = now.survival(self.judged.logits)
        return mean_ece(position_report(survival, self.judged, 15)) or 0.0

    def run(self) -> list[float]:
        """Error after each refresh since the traffic changed."""
        errors = []
        for interval in range(self.CODE + self.CHAT):
            self.serve()
            self.refresh()
            if interval >= self.CODE:
                errors.append(self.error())
        return errors


def test_after_a_change_of_traffic_the_error_returns_sooner_with_forgetting(tmp_path, place: Place) -> None:
    with_forgetting = Loop(place, forget=True).run()
    with place.store.read() as connection:
        assert forgetting.cuts(connection, the(place).id)
    other = open_place(tmp_path / "other.db", place.parameter_store)
    keeping = Loop(other, forget=False).run()
    other.store.close()
    assert np.mean(with_forgetting) < 0.75 * np.mean(keeping)
    assert min(with_forgetting) < min(keeping)
