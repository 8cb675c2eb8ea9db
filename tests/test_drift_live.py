"""Through ring, sidecar, bus and collector: the ledger is the engine's, and a wrong head raises alarms."""

import pytest

from calibrator.cli.placement import EmbeddedPlacement, private_ring
from calibrator.core.candidate import ProposalOptions
from calibrator.service.drift import DriftEvaluator
from calibrator.store import cost_drift, deployments, episodes, ledger_sums
from collectors.options import PipelineOptions
from serving_adapter.clock import SystemClock
from serving_adapter.engines.replay import ReplayEngine, replay_identity
from serving_adapter.settings import Settings

ROUNDS = 24_000


@pytest.fixture
def placement(tmp_path):
    settings = Settings(
        deployment="chat",
        replica="replay-0",
        ring=private_ring(),
        bus_path=str(tmp_path / "bus.db"),
        database_url=f"sqlite:///{tmp_path / 'store.db'}",
        explore=0.05,
        poll_seconds=0.2,
    )
    with EmbeddedPlacement(
        settings,
        replay_identity(),
        tmp_path,
        SystemClock(),
        ProposalOptions(resamples=100),
        PipelineOptions(),
    ) as running:
        yield running


def test_ledger_costs_and_alarms_of_a_live_engine(placement):
    engine = ReplayEngine(placement.adapter, concurrency=32)
    clock = SystemClock()
    evaluator = DriftEvaluator(placement.store, clock)

    def serve(rounds):
        found = []
        for _ in range(4):
            engine.run(rounds=rounds // 4)
            assert placement.catch_up(engine.ledger.emitted)
            found += evaluator.evaluate("chat", clock.now())
        return found

    opened = serve(ROUNDS)
    assert {e.kind for e in opened} == {"calibration"}
    assert {e.direction for e in opened} == {"below"}

    with placement.store.read() as connection:
        own = deployments.get(connection, "chat").id
        ledger = ledger_sums.total(connection, own, 0, 4e9)
        costs = cost_drift.figures(connection, own, 0, 4e9)
    books, figures = engine.ledger, ledger.figures()
    assert figures.rounds == books.rounds
    assert figures.steps == pytest.approx(books.steps, abs=2)  # a step may follow in the next message
    assert figures.accepted_length == pytest.approx(books.accepted / books.rounds)
    assert figures.wasted == pytest.approx(1 - books.accepted / books.verified)
    assert figures.budget == pytest.approx(books.verified / books.rounds)
    # Of the messages whose rounds and steps could be joined: a step may be read just after its rounds were.
    assert figures.tokens_per_second == pytest.approx(books.tokens_per_second, rel=0.2)
    assert [each.requests_from for each in ledger.by_load()] == [32]
    assert costs[0].n_eff == pytest.approx(books.steps, abs=2)
    assert abs(costs[0].bias) < 0.02

    placement.refresh()
    assert placement.wait_for_version(1)
    ended = serve(ROUNDS)
    assert {e.id for e in opened} <= {e.id for e in ended if e.ended_at is not None}
    with placement.store.read() as connection:
        assert all(e.version == 1 for e in episodes.opened(connection, own))
