"""The real application over a real store: replayed rounds in SQLite, parameters in an embedded Valkey."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import redis
from fastapi import FastAPI
from starlette.testclient import TestClient

from calibrator.core.candidate import ProposalOptions
from calibrator.service.access import AccessPolicy, Role
from calibrator.service.access.tokens import create
from calibrator.service.publisher import Publisher
from calibrator.service.refresh import Refresher
from calibrator.service.web.app import create_app
from calibrator.service.web.context import ServiceContext
from calibrator.store import Store
from collectors.options import PipelineOptions
from collectors.pipeline import IngestPipeline
from serving_adapter.clock import ManualClock
from serving_adapter.contract import Rounds, Steps, VerifyBatch
from serving_adapter.contract.events import CONTENT_TYPE_HEADER, CONTENT_TYPE_MSGPACK, encode_msgpack
from serving_adapter.parameter_stores.embedded import EmbeddedParameterStore
from serving_adapter.ports import Message, ReplicaReport
from serving_adapter.settings import load_settings
from tests.recorded import recorded

ADDRESS = "http://127.0.0.1:8080"
SEGMENTS = ("chat", "code")


class NoDeadLetters:
    def publish(self, messages: object) -> int:
        raise AssertionError(f"dead letters: {messages}")

    def close(self) -> None: ...


@dataclasses.dataclass
class Service:
    """A service in this process, and the ways to fill it and to ask it."""

    context: ServiceContext
    app: FastAPI
    client: TestClient
    tokens: dict[Role, str]
    clock: ManualClock
    offset: int = 0
    rows: dict[tuple[str, str, str], int] = dataclasses.field(default_factory=dict)
    steps: dict[tuple[str, str, str], int] = dataclasses.field(default_factory=dict)

    def headers(self, role: Role = Role.OPERATOR) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.tokens[role]}"}

    def get(self, path: str, role: Role = Role.VIEWER, **options: object):
        return self._ask("GET", path, role, **options)

    def post(self, path: str, json: object = None, role: Role = Role.OPERATOR, **options: object):
        return self._ask("POST", path, role, json=json, **options)

    def put(self, path: str, json: object = None, role: Role = Role.OPERATOR, **options: object):
        return self._ask("PUT", path, role, json=json, **options)

    def patch(self, path: str, json: object = None, role: Role = Role.OPERATOR, **options: object):
        return self._ask("PATCH", path, role, json=json, **options)

    def _ask(self, method: str, path: str, role: Role, **options: object):
        headers = {**self.headers(role), **options.pop("headers", {})}  # type: ignore[dict-item]
        return self.client.request(method, path, headers=headers, **options)  # type: ignore[arg-type]

    def ingest(
        self,
        rounds: Rounds,
        deployment: str = "chat",
        fingerprint: str = "f",
        replica: str = "pod-0",
        boot: str = "b0",
        steps: Steps | None = None,
        spread_seconds: float = 0.0,
    ) -> None:
        """Fold rounds as a collector does, arriving evenly over ``spread_seconds`` of the manual clock."""
        pipeline = IngestPipeline(self.context.store, NoDeadLetters(), self.clock, PipelineOptions())
        whose = (deployment, replica, boot)
        starts = range(0, len(rounds), 1000)
        for start in starts:
            part = rounds.take(slice(start, start + 1000))
            batch = VerifyBatch(
                deployment=deployment, fingerprint=fingerprint, replica=replica, boot=boot,
                sequence=self.rows.get(whose, 0), lost=0, emitted_at=int(self.clock.now() * 1e9),
                rounds=part, steps=Steps.empty() if start or steps is None else steps, gamma=rounds.gamma,
                steps_sequence=self.steps.get(whose, 0),
            )  # fmt: skip
            headers = ((CONTENT_TYPE_HEADER, CONTENT_TYPE_MSGPACK.encode()),)
            message = Message("t", 0, self.offset, replica.encode(), encode_msgpack(batch), headers)
            self.offset += 1
            self.rows[whose] = self.rows.get(whose, 0) + len(part)
            self.steps[whose] = self.steps.get(whose, 0) + len(batch.steps)
            pipeline.ingest([message])
            if spread_seconds:
                self.clock.advance(spread_seconds / len(starts))

    def report(
        self, deployment: str = "chat", replica: str = "pod-0", applied: int = 0, **fields: object
    ) -> None:
        """Let a replica say what it runs."""
        options: dict[str, object] = {"forms": ("temperature", "affine"), **fields}
        told = ReplicaReport(replica, applied=applied, reported_at=self.clock.now(), **options)  # type: ignore[arg-type]
        self.context.parameter_store.report(deployment, told, 3600.0)

    def fill(self, rounds: int = 6000, deployment: str = "chat") -> None:
        """Replay real traffic with step times, and publish version 1 from it."""
        self.ingest(
            segmented(recorded("typical").take(slice(0, rounds))), deployment, steps=measured_steps(),
            spread_seconds=600.0,
        )  # fmt: skip
        self.report(deployment)
        self.context.refresher.refresh(deployment)
        self.report(deployment, applied=1)
        self.ingest(recorded("typical").take(slice(rounds, rounds + 2000)), deployment, spread_seconds=120.0)


def segmented(rounds: Rounds) -> Rounds:
    """The same rounds, dealt to two segments by request."""
    return Rounds.build(
        rounds.logits,
        rounds.accepted,
        request=rounds.request,
        step=rounds.step,
        draft_stop=rounds.draft_stop,
        sampling=rounds.sampling,
        segment=(rounds.request % 2).astype(np.uint16),
        segments=SEGMENTS,
    )


def measured_steps(gamma: int = 7, seed: int = 0) -> Steps:
    """Steps of an engine whose time grows with the batch, a tooth at every 64 tokens, with noise."""
    draws = np.random.default_rng(seed)
    sizes = np.repeat(np.arange(8, 8 * (1 + gamma) + 1, 4), 40)
    seconds = (8e-3 + 4e-5 * sizes + 1.5e-3 * (sizes // 64)) * draws.lognormal(0.0, 0.02, len(sizes))
    return Steps.build(step_seconds=seconds, batch_tokens=sizes, requests=np.full(len(sizes), 8))


@contextmanager
def open_service(
    url: str, parameter_store: EmbeddedParameterStore, folder: Path, **settings: object
) -> Iterator[Service]:
    """A service with a token of every role; ``settings`` are overrides by name."""
    redis.Redis.from_url(parameter_store.url).flushall()
    options = {"database_url": url, "bus_path": str(folder / "bus.db"), **settings}
    store = Store(url)
    if store.revision() is None:
        store.migrate()
    clock = ManualClock()
    publisher = Publisher(store, parameter_store, clock)
    refresher = Refresher(store, parameter_store, publisher, clock, ProposalOptions(resamples=100))
    context = ServiceContext(
        store, parameter_store, publisher, refresher, clock, load_settings(options, environment={})
    )
    tokens = {role: create(store, role, clock.now(), name=f"test {role}")[0] for role in Role}
    app = create_app(context, AccessPolicy(store, clock))
    with TestClient(app, base_url=ADDRESS, raise_server_exceptions=False) as client:
        yield Service(context, app, client, tokens, clock)
    store.close()
