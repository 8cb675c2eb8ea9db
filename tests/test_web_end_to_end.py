"""What an operator does through the API reaches the engine: replayed traffic, real ring, bus and Valkey."""

import numpy as np
from starlette.testclient import TestClient

from calibrator.cli.placement import EmbeddedPlacement, private_ring
from calibrator.core.candidate import ProposalOptions
from calibrator.service.access import AccessPolicy, Role
from calibrator.service.access.tokens import create
from calibrator.service.web.app import create_app
from calibrator.service.web.context import ServiceContext
from collectors.options import PipelineOptions
from serving_adapter.clock import SystemClock
from serving_adapter.engines.replay import replay_identity
from serving_adapter.engines.replay.engine import ReplayEngine
from serving_adapter.engines.replay.records import load_recording
from serving_adapter.settings import Settings
from tests.web_support import ADDRESS


def test_import_and_rollback_reach_the_replay_engine(tmp_path):
    settings = Settings(
        deployment="demo",
        replica="replay-0",
        ring=private_ring(),
        bus_path=str(tmp_path / "bus.db"),
        database_url=f"sqlite:///{tmp_path / 'store.db'}",
        poll_seconds=0.2,
        report_seconds=0.5,
    )
    clock = SystemClock()
    placement = EmbeddedPlacement(
        settings, replay_identity(), tmp_path, clock, ProposalOptions(), PipelineOptions()
    )
    engine = ReplayEngine(
        placement.adapter, recordings={"typical": load_recording("typical")}, concurrency=32, seed=0
    )
    context = ServiceContext(
        placement.store, placement.parameter_store, placement.publisher, placement.refresher, clock, settings
    )
    token, _ = create(placement.store, Role.OPERATOR, clock.now())
    app = create_app(context, AccessPolicy(placement.store, clock))
    headers = {"Authorization": f"Bearer {token}"}
    with placement, TestClient(app, base_url=ADDRESS, headers=headers) as client:
        engine.run(rounds=6000)
        assert placement.catch_up(engine.ledger.emitted)
        assert placement.refresh().outcome == "published"
        assert placement.wait_for_version(1)
        first = placement.adapter.current()

        content = {"temperatures": [3.0] * first.gamma}
        imported = client.post(
            "/v1/deployments/demo/versions",
            json={"format": "sglang", "content": content, "reason": "a mistake"},
        )
        assert imported.status_code == 201, imported.text
        assert placement.wait_for_version(2)
        engine.step()
        assert placement.adapter.current().temperatures.tolist() == [3.0] * first.gamma

        answer = client.post("/v1/deployments/demo/rollback", json={"version": 1, "reason": "undo it"})
        assert answer.status_code == 201, answer.text
        assert answer.json()["version"] == 3
        assert placement.wait_for_version(3)
        engine.step()
        restored = placement.adapter.current()
        assert restored.version == 3
        np.testing.assert_array_equal(restored.temperatures, first.temperatures)
        np.testing.assert_array_equal(restored.offsets, first.offsets)

        emitted = engine.ledger.rounds
        engine.run(rounds=2000)
        assert engine.ledger.rounds > emitted
        assert placement.catch_up(engine.ledger.emitted)
