"""Several replicas of a replay engine on one embedded bus, parameter store and database."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from calibrator.cli.placement import private_ring
from calibrator.core.candidate import ProposalOptions
from calibrator.service.publisher import PUBLISHED, Publisher
from calibrator.service.refresh import Refresher
from calibrator.service.rollout.controller import RolloutController
from calibrator.service.rollout.operations import Rollouts
from calibrator.store import Store, boots, deployments, parameters, rollouts
from calibrator.store.deployments import Deployment
from calibrator.store.rollouts import Rollout
from collectors.collector import Collector
from collectors.options import PipelineOptions
from collectors.pipeline import IngestPipeline
from serving_adapter.adapter import ServingAdapter
from serving_adapter.buses import open_dead_letters, open_sink, open_source
from serving_adapter.clock import SystemClock
from serving_adapter.contract import ParameterDocument
from serving_adapter.engines.replay.engine import ReplayEngine, replay_identity
from serving_adapter.parameter_stores import open_parameter_store
from serving_adapter.settings import Settings
from serving_adapter.sidecar import Sidecar

NAME = "chat"
DEADLINE = 120.0


class Fleet:
    """Engines step only when told to; everything behind them runs by itself."""

    def __init__(self, folder: Path, redis_url: str, replicas: tuple[str, ...]) -> None:
        self.clock = SystemClock()
        settings = {
            name: Settings(
                deployment=NAME,
                replica=name,
                ring=private_ring(),
                bus_path=str(folder / "bus.db"),
                database_url=f"sqlite:///{folder / 'store.db'}",
                redis_url=redis_url,
                explore=0.02,
                poll_seconds=0.1,
                report_seconds=0.1,
            )
            for name in replicas
        }
        common = next(iter(settings.values()))
        self.store = Store(common.database_url)
        self.store.migrate()
        self.parameter_store = open_parameter_store(common)
        self.publisher = Publisher(self.store, self.parameter_store, self.clock)
        self.rollouts = Rollouts(self.store, self.parameter_store, self.publisher, self.clock)
        self.controller = self.another_controller()
        self.refresher = Refresher(
            self.store, self.parameter_store, self.publisher, self.clock, ProposalOptions(resamples=50)
        )
        self.adapters = {
            name: ServingAdapter(replay_identity(), NAME, name, each.ring, explore=0.02)
            for name, each in settings.items()
        }
        self.engines = {
            name: ReplayEngine(adapter, concurrency=4, seed=i)
            for i, (name, adapter) in enumerate(self.adapters.items())
        }
        self.sidecars = [
            Sidecar(each, open_sink=lambda each=each: open_sink(each), clock=self.clock)  # type: ignore[misc]
            for each in settings.values()
        ]
        self._collector = Collector(
            IngestPipeline(self.store, open_dead_letters(common), self.clock, PipelineOptions()),
            common.kafka_topic,
            lambda listener: open_source(common, listener),
            self.clock,
            poll_seconds=0.02,
        )
        self._stop = threading.Event()
        self._collecting = threading.Thread(target=self._collector.run, args=(self._stop,), daemon=True)

    def __enter__(self) -> Fleet:
        for sidecar in self.sidecars:
            sidecar.start()
        self._collecting.start()
        self.serve(64)
        self.until(lambda: set(self.parameter_store.reports(NAME)) == set(self.engines))
        self.until(lambda: self._known() is not None)
        return self

    def __exit__(self, *error: object) -> None:
        for sidecar in self.sidecars:
            sidecar.stop()
        self._stop.set()
        self._collecting.join(timeout=10.0)
        for adapter in self.adapters.values():
            adapter.close()
        self.parameter_store.close()
        self.store.close()

    def another_controller(self) -> RolloutController:
        """Make a controller as a second service would have it."""
        return RolloutController(self.store, self.parameter_store, self.publisher, self.clock)

    @property
    def deployment(self) -> Deployment:
        """The deployment as stored."""
        known = self._known()
        assert known is not None
        return known

    def _known(self) -> Deployment | None:
        with self.store.read() as connection:
            return deployments.get(connection, NAME)

    def configure(self, **rollout: object) -> None:
        """Set how versions are rolled out."""
        with self.store.write() as connection:
            deployments.set_settings(connection, self.deployment.id, {"rollout": rollout})

    def serve(self, rounds: int = 512) -> None:
        """Let every engine serve some rounds."""
        for engine in self.engines.values():
            engine.run(rounds=rounds)

    def versions(self) -> dict[str, int]:
        """What every engine computes with."""
        return {name: engine.parameters.version for name, engine in self.engines.items()}

    def publish(self, document: ParameterDocument) -> None:
        """Put a version in force, past any rollout."""
        sealed = self.publisher.seal(document)
        with self.store.write() as connection:
            parameters.append(connection, self.deployment.id, sealed, self.clock.now(), PUBLISHED)
        assert self.publisher.put_in_force(sealed)

    def serve_until(self, condition: Callable[[], bool], controller: RolloutController | None = None) -> None:
        """Serve, look, and serve on until ``condition`` holds."""

        def turn() -> bool:
            self.serve()
            self.until(self._caught_up)
            (controller or self.controller).step(self.deployment)
            return condition()

        self.until(turn)

    def rollout(self, rollout_id: int) -> Rollout:
        """Read a rollout."""
        with self.store.read() as connection:
            found = rollouts.get(connection, rollout_id)
        assert found is not None
        return found

    def state_of(self, version: int) -> str:
        """What became of a version."""
        with self.store.read() as connection:
            return next(
                v.state for v in parameters.history(connection, self.deployment.id)
                if v.document.version == version
            )  # fmt: skip

    def _caught_up(self) -> bool:
        emitted = sum(engine.ledger.emitted for engine in self.engines.values())
        with self.store.read() as connection:
            known = deployments.get(connection, NAME)
            total = None if known is None else boots.totals(connection, known.id)
        return total is not None and total.folded + total.lost + total.dead_lettered >= emitted

    @staticmethod
    def until(condition: Callable[[], bool]) -> None:
        """Wait for something that other threads bring about."""
        deadline = time.monotonic() + DEADLINE
        while not condition():
            assert time.monotonic() < deadline, "nothing happened"
            time.sleep(0.02)
