"""The embedded placement: everything of the picture in the README in one process, on private servers."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from calibrator.core.candidate import ProposalOptions
from calibrator.service.publisher import Publisher
from calibrator.service.refresh import Refresher, RefreshOutcome
from calibrator.store import Store, boots, deployments
from collectors.collector import Collector
from collectors.options import PipelineOptions
from collectors.pipeline import IngestPipeline
from serving_adapter.adapter import ServingAdapter
from serving_adapter.buses import open_dead_letters, open_sink, open_source
from serving_adapter.contract import EngineIdentity
from serving_adapter.parameter_stores import open_parameter_store
from serving_adapter.ports import Clock
from serving_adapter.settings import Settings
from serving_adapter.sidecar import Sidecar


class EmbeddedPlacement:
    """Ring, sidecar, bus, collector, store, calibrator and parameter store, started and stopped together.

    Parameters
    ----------
    settings
        Options; servers that they name are used, the others are embedded.
    identity
        Of the engine that is served.
    folder
        Where the embedded servers keep their files.
    clock
        What stamps rows and weighs them by age.
    options
        What a refresh may do.
    pipeline
        What the collector does with rows.
    """

    def __init__(
        self,
        settings: Settings,
        identity: EngineIdentity,
        folder: Path,
        clock: Clock,
        options: ProposalOptions,
        pipeline: PipelineOptions,
    ) -> None:
        self.settings = settings
        self.folder = folder
        self.store = Store(settings.database_url)
        self.store.migrate()
        self.parameter_store = open_parameter_store(settings)
        self.publisher = Publisher(self.store, self.parameter_store, clock, settings.signing_key_bytes)
        self.refresher = Refresher(
            self.store,
            self.parameter_store,
            self.publisher,
            clock,
            options,
            explore=settings.explore,
            half_life_seconds=settings.half_life_seconds,
        )
        self.adapter = ServingAdapter(
            identity,
            settings.deployment,
            settings.replica,
            settings.ring,
            explore=settings.explore,
            salt=settings.salt,
            signing_key=settings.signing_key_bytes,
            segment_sets=True,
        )
        self.sidecar = Sidecar(settings, open_sink=lambda: open_sink(settings), clock=clock)
        self.collector = Collector(
            IngestPipeline(self.store, open_dead_letters(settings), clock, pipeline),
            settings.kafka_topic,
            lambda listener: open_source(settings, listener),
            clock,
            poll_seconds=0.02,
        )
        self._stop_collecting = threading.Event()
        self._collecting = threading.Thread(
            target=self.collector.run, args=(self._stop_collecting,), name="dspark-collector", daemon=True
        )

    def __enter__(self) -> Self:
        self.sidecar.start()
        self._collecting.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.sidecar.stop()
        self._stop_collecting.set()
        self._collecting.join(timeout=10.0)
        self.adapter.close()
        self.parameter_store.close()
        self.store.close()

    def ledger(self) -> dict[str, int]:
        """What the store says became of every round: ``folded``, ``lost`` and ``dead_lettered``."""
        with self.store.read() as connection:
            known = deployments.get(connection, self.settings.deployment)
            if known is None:
                return {"folded": 0, "lost": 0, "dead_lettered": 0}
            totals = boots.totals(connection, known.id)
        return {"folded": totals.folded, "lost": totals.lost, "dead_lettered": totals.dead_lettered}

    def catch_up(self, emitted: int, timeout: float = 60.0) -> bool:
        """Wait until every round that the engine emitted is accounted for."""
        return _until(lambda: sum(self.ledger().values()) >= emitted, timeout)

    def wait_for_version(self, version: int, timeout: float = 30.0) -> bool:
        """Wait until the engine's mirror holds that version (it applies it at its next step)."""
        return _until(lambda: self.adapter.current().version >= version, timeout)

    def refresh(self) -> RefreshOutcome:
        """Refresh this deployment now."""
        return self.refresher.refresh(self.settings.deployment)


def private_ring() -> str:
    """Name a ring that nobody else uses."""
    return f"dspark-{uuid.uuid4().hex[:12]}"


def _until(condition: Callable[[], bool], timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
