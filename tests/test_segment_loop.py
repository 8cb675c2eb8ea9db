"""Sets per segment and sampling bucket, all the way round: engine, ring, bus, store, refresh, engine."""

import dataclasses

import numpy as np
import pytest

from calibrator.cli.placement import EmbeddedPlacement, private_ring
from calibrator.core.candidate import ProposalOptions
from calibrator.core.report import mean_ece, position_report
from calibrator.store import deployments, refreshes, windows
from collectors.options import PipelineOptions
from serving_adapter.clock import SystemClock
from serving_adapter.contract import Rounds, sigmoid
from serving_adapter.engines.replay import Recording, ReplayEngine, replay_identity
from serving_adapter.engines.replay.drift import DriftScript
from serving_adapter.scheduler import Threshold
from serving_adapter.settings import Settings

GAMMA = 7


def kinds(sizes, offsets, samplings=None, seed=0):
    """Requests of ten rounds each, of kinds whose head is off by these offsets."""
    random = np.random.default_rng(seed)
    names = tuple(sizes)
    kind = np.repeat(np.arange(len(names)), [sizes[name] * 10 for name in names])
    z = random.normal(0.8, 1.2, (kind.size, GAMMA)).astype(np.float16)
    c = sigmoid(z.astype(float) + np.array([offsets[name] for name in names])[kind][:, None])
    accepted = np.cumprod(random.random(c.shape) < c, axis=1).sum(axis=1)
    sampling = np.zeros(kind.size) if samplings is None else np.array([samplings[n] for n in names])[kind]
    labelled = samplings is None  # otherwise the kinds are told apart by sampling temperature alone
    return Rounds.build(
        z, accepted, request=np.arange(kind.size) // 10, step=np.arange(kind.size) % 10, sampling=sampling,
        segment=kind if labelled else 0 * kind, segments=names if labelled else ("default",),
    )  # fmt: skip


@dataclasses.dataclass
class Loop:
    placement: EmbeddedPlacement
    engine: ReplayEngine

    def serve(self, rounds):
        while rounds > 0:
            self.engine.run(rounds=1024)
            rounds -= 1024
        assert self.placement.catch_up(self.engine.ledger.emitted)

    def serve_and_refresh(self, rounds):
        self.serve(rounds)
        outcome = self.placement.refresh()
        if outcome.document is not None:
            assert self.placement.wait_for_version(outcome.document.version)
        self.engine.step()
        return outcome

    def evidence(self):
        with self.placement.store.read() as connection:
            known = deployments.get(connection, "chat")
            return refreshes.recent(connection, known.id)[0].evidence

    def ece(self, judged, mine):
        """Mean ECE of rows the engine has not served, under the parameters that it computes with."""
        rows = judged.take(mine)
        return mean_ece(position_report(self.engine.parameters.survival_of(rows), rows, 15))


@pytest.fixture
def loop(tmp_path):
    placements = []

    def start(served):
        settings = Settings(
            deployment="chat", replica="pod-1", ring=private_ring(), bus_path=str(tmp_path / "bus.db"),
            database_url=f"sqlite:///{tmp_path / 'store.db'}", explore=0.05, poll_seconds=0.2,
        )  # fmt: skip
        placement = EmbeddedPlacement(
            settings, replay_identity(), tmp_path, SystemClock(), ProposalOptions(resamples=100),
            PipelineOptions(window_seconds=1),
        )  # fmt: skip
        placements.append(placement.__enter__())
        recordings = {"kinds": Recording.build("kinds", served)}
        engine = ReplayEngine(
            placement.adapter,
            recordings=recordings,
            script=DriftScript.steady("kinds"),
            concurrency=64,
            scheduler=Threshold(0.2),
        )
        return Loop(placement, engine)

    yield start
    for placement in placements:
        placement.__exit__(None, None, None)


def test_segments_that_are_wrong_in_opposite_directions_get_sets_of_their_own(loop):
    offsets = {"code": 1.2, "chat": -1.2, "rare": -1.2}
    sizes = {"code": 800, "chat": 800, "rare": 12}
    running = loop(kinds(sizes, offsets))
    judged = kinds({"code": 400, "chat": 400, "rare": 400}, offsets, seed=1)
    names = np.array(judged.segment_names())
    before = {name: running.ece(judged, names == name) for name in sizes}

    document = running.serve_and_refresh(9_000).document
    published = {(entry.segment, entry.sampling): entry for entry in document.segments}
    assert {("code", "*"), ("chat", "*")} <= set(published)
    assert min(published["code", "*"].offsets) > 0.5
    assert max(published["chat", "*"].offsets) < -0.5
    assert running.engine.parameters.version == document.version
    after = {name: running.ece(judged, names == name) for name in sizes}
    assert after["code"] < 0.25 * before["code"]
    assert after["chat"] < 0.25 * before["chat"]

    evidence = running.evidence()["segments"]
    assert set(evidence) == set(sizes)
    assert evidence["code"]["published"]
    assert evidence["code"]["after"]["mean_ece"] < 0.5 * evidence["code"]["before"]["mean_ece"]
    assert min(evidence["code"]["own_share"]) > 0.8
    # The sparse one borrows: from the pooled set, or with a set that goes only part of the way.
    assert evidence["rare"]["rows"] < 400
    assert ("rare", "*") not in published or max(evidence["rare"]["own_share"]) < 0.99

    # Rows that the sets served are scored with them: the figure in force is that of the sets.
    running.serve(6_000)
    with running.placement.store.read() as connection:
        known = deployments.get(connection, "chat")
        for name in ("code", "chat"):
            raw, in_force = (
                windows.query(connection, known.id, GAMMA, 0, 1 << 52, raw=raw, segment=name)[0].sums
                for raw in (True, False)
            )
            assert predicted_gap(in_force) < 0.75 * predicted_gap(raw)
    assert running.engine.ledger.refused == 0


def predicted_gap(sums):
    """Distance of mean prediction and mean outcome of position 1; includes what was served before."""
    weight = sums.scalar("weight")[0]
    return abs(sums.scalar("weight_predicted")[0] - sums.scalar("weight_accepted")[0]) / weight


def test_greedy_and_hot_traffic_get_sets_of_their_own(loop):
    offsets, samplings = {"greedy": 1.2, "hot": -1.2}, {"greedy": 0.0, "hot": 1.3}
    running = loop(kinds({"greedy": 600, "hot": 600}, offsets, samplings))
    judged = kinds({"greedy": 400, "hot": 400}, offsets, samplings, seed=1)
    hot = judged.sampling > 0
    before = running.ece(judged, ~hot), running.ece(judged, hot)
    document = running.serve_and_refresh(7_000).document
    assert {(entry.segment, entry.sampling) for entry in document.segments} == {
        ("*", "greedy"),
        ("*", "high"),
    }
    after = running.ece(judged, ~hot), running.ece(judged, hot)
    assert after[0] < 0.25 * before[0]
    assert after[1] < 0.25 * before[1]
    evidence = running.evidence()
    assert {name: each["published"] for name, each in evidence["samplings"].items()} == {
        "greedy": True,
        "high": True,
    }
    assert evidence["segments"] == {}
