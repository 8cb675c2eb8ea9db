"""A store, an embedded parameter store and a refresher over them, for tests of what refreshes do.

The fixture is in :mod:`tests.refresh_fixtures`.
"""

import dataclasses
from pathlib import Path

import redis

from calibrator.core.candidate import ProposalOptions
from calibrator.service.publisher import Publisher
from calibrator.service.refresh import Refresher
from calibrator.store import Store
from collectors.options import PipelineOptions
from collectors.pipeline import IngestPipeline
from serving_adapter.clock import ManualClock
from serving_adapter.contract import Rounds, Steps, VerifyBatch, decode_document
from serving_adapter.contract.events import CONTENT_TYPE_HEADER, CONTENT_TYPE_MSGPACK, encode_msgpack
from serving_adapter.parameter_stores.embedded import EmbeddedParameterStore
from serving_adapter.ports import Message, ReplicaReport

BOTH_FORMS = ("temperature", "affine")


class NoDeadLetters:
    def publish(self, messages: object) -> int:
        raise AssertionError(f"dead letters: {messages}")

    def close(self) -> None: ...


@dataclasses.dataclass
class Place:
    store: Store
    parameter_store: EmbeddedParameterStore
    publisher: Publisher
    refresher: Refresher
    clock: ManualClock
    offset: int = 0
    sequence: int = 0
    steps_sequence: int = 0
    pipeline: PipelineOptions = dataclasses.field(default_factory=PipelineOptions)

    def ingest(
        self,
        rounds: Rounds,
        deployment: str = "chat",
        fingerprint: str = "f",
        boot: str = "b0",
        steps: Steps | None = None,
        at: float | None = None,
    ) -> None:
        pipeline = IngestPipeline(self.store, NoDeadLetters(), self.clock, self.pipeline)
        messages = []
        emitted_at = int((self.clock.now() if at is None else at) * 1e9)
        for start in range(0, len(rounds), 1000):
            part = rounds.take(slice(start, start + 1000))
            batch = VerifyBatch(
                deployment=deployment, fingerprint=fingerprint, replica="pod-0", boot=boot,
                sequence=self.sequence, lost=0, emitted_at=emitted_at,
                rounds=part, steps=Steps.empty() if start or steps is None else steps, gamma=rounds.gamma,
                steps_sequence=self.steps_sequence,
            )  # fmt: skip
            headers = ((CONTENT_TYPE_HEADER, CONTENT_TYPE_MSGPACK.encode()),)
            messages.append(Message("t", 0, self.offset, b"pod-0", encode_msgpack(batch), headers))
            self.offset += 1
            self.steps_sequence += len(batch.steps)
            self.sequence += len(part)
        pipeline.ingest(messages)

    def report(
        self, *, forms: tuple[str, ...] = BOTH_FORMS, replica: str = "pod-0", segment_sets: bool = False
    ) -> None:
        report = ReplicaReport(
            replica, applied=0, reported_at=self.clock.now(), forms=forms, segment_sets=segment_sets
        )
        self.parameter_store.report("chat", report, 60.0)

    def served(self) -> int:
        payload = self.parameter_store.read("chat")
        return 0 if payload is None else decode_document(payload).version


def open_place(database: Path, parameter_store: EmbeddedParameterStore) -> Place:
    """Everything empty: a new database, and the parameter store flushed. Close its store afterwards."""
    redis.Redis.from_url(parameter_store.url).flushall()
    store = Store(f"sqlite:///{database}")
    store.migrate()
    clock = ManualClock()
    publisher = Publisher(store, parameter_store, clock)
    refresher = Refresher(store, parameter_store, publisher, clock, ProposalOptions(resamples=100))
    return Place(store, parameter_store, publisher, refresher, clock)
