"""The engine in a thread of its own, and what a front end needs of it."""

from __future__ import annotations

import logging
import queue
import threading
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from serving_adapter.engines.torch.building import BuiltEngine
from serving_adapter.engines.torch.engine import StepResult
from serving_adapter.engines.torch.requests import FinishReason, GenerationRequest
from serving_adapter.engines.torch.text import Texts

log = logging.getLogger(__name__)


class OverloadedError(Exception):
    """Too many requests wait already."""


class EngineFailedError(Exception):
    """The engine could not go on with this request."""


class ShuttingDownError(Exception):
    """The engine is about to end: it takes no new requests, and did not finish this one."""


@dataclass(slots=True)
class Totals:
    """Counts since the start; ``seconds`` is the time of all steps, prompts apart."""

    steps: int = 0
    rounds: int = 0
    tokens: int = 0
    batch_tokens: int = 0
    seconds: float = 0.0
    prefill_seconds: float = 0.0
    finished: int = 0

    def add(self, result: StepResult) -> None:
        """Enter a step."""
        self.steps += 1
        self.rounds += result.requests
        self.tokens += result.committed
        self.batch_tokens += result.batch_tokens
        self.seconds += result.step_seconds
        self.prefill_seconds += result.prefill_seconds


Piece = tuple[Sequence[int], FinishReason | None]


@dataclass(slots=True, eq=False)
class Generation:
    """A running generation: iterate for new tokens, each time with the reason once it has ended."""

    request_id: str
    service: EngineService
    pieces: queue.SimpleQueue[Piece | Exception] = field(default_factory=queue.SimpleQueue)

    def __iter__(self) -> Iterator[Piece]:
        return (piece for piece in self.each() if piece is not None)

    def each(self, look_seconds: float | None = None) -> Iterator[Piece | None]:
        """Iterate, with None in between whenever nothing came for so long: time to see who still listens.

        Raises
        ------
        EngineFailedError, ShuttingDownError
            The request ends unfinished.
        """
        while True:
            try:
                piece = self.pieces.get(timeout=look_seconds)
            except queue.Empty:
                yield None
                continue
            if isinstance(piece, Exception):
                raise piece
            yield piece
            if piece[1] is not None:
                return

    def cancel(self) -> None:
        """Give up: nobody listens any more."""
        self.service.engine.cancel(self.request_id)


class EngineService:
    """Steps the engine whenever there is something to do.

    Parameters
    ----------
    built
        Engine and tokenizer.
    max_waiting
        Requests that may wait for a place in the batch.
    """

    def __init__(self, built: BuiltEngine, *, max_waiting: int = 1024) -> None:
        self.built, self.engine, self.texts = built, built.engine, Texts(built.tokenizer)
        self.totals = Totals()
        self._max_waiting = max_waiting
        self._work = threading.Event()
        self._stopping = threading.Event()
        self._refusing = False
        self._open: dict[str, Generation] = {}
        self._thread = threading.Thread(target=self._run, name="dspark-engine", daemon=True)

    def start(self) -> None:
        """Begin to step."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the engine's thread runs."""
        return self._thread.is_alive()

    @property
    def refusing(self) -> bool:
        """Whether new requests are refused because the engine is about to end."""
        return self._refusing

    def refuse_new(self) -> None:
        """Take no new requests; those under way go on until :meth:`stop`."""
        self._refusing = True

    def stop(self, timeout: float = 30.0) -> None:
        """End after the current step; what still runs is told that the engine is shutting down."""
        self.refuse_new()
        self._stopping.set()
        self._work.set()
        self._thread.join(timeout)

    def generate(
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int | None,
        temperature: float,
        seed: int | None,
        segment: str = "default",
    ) -> Generation:
        """Submit a request; without ``max_tokens`` it may fill the context.

        Raises
        ------
        ValueError
            It can never be served, and why.
        OverloadedError
            Try again later.
        ShuttingDownError
            Try another replica.
        EngineFailedError
            The engine has ended.
        """
        if self._refusing:
            raise _shutting_down()
        if self.engine.waiting >= self._max_waiting:
            raise OverloadedError(f"{self._max_waiting} requests are waiting already")
        if max_tokens is None:
            max_tokens = max(1, self.engine.target.limit - self.engine.gamma - len(prompt))
        generation = Generation(uuid.uuid4().hex, self)

        def put(tokens: Sequence[int], reason: FinishReason | None) -> None:
            if reason is not None:
                self.totals.finished += 1
                self._open.pop(generation.request_id, None)
            generation.pieces.put((tokens, reason))

        request = GenerationRequest(
            request_id=generation.request_id,
            prompt=tuple(prompt),
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
            stop_tokens=self.built.stop_tokens,
            segment=segment,
            on_tokens=put,
        )
        self._open[generation.request_id] = generation
        try:
            self.engine.submit(request)
        except ValueError:
            self._open.pop(generation.request_id, None)
            raise
        if self._stopping.is_set():
            self._fail_open(_shutting_down())
        elif self._thread.ident is not None and not self.alive:
            self._fail_open(EngineFailedError("the engine has ended"))
        self._work.set()
        return generation

    def stats(self) -> dict[str, Any]:
        """Totals, speed, what runs and waits, and the parameters in force."""
        totals, adapter = self.totals, self.engine.adapter
        return asdict(totals) | {
            "tokens_per_second": totals.tokens / totals.seconds if totals.seconds else 0.0,
            "running": self.engine.running,
            "waiting": self.engine.waiting,
            "version": self.engine.parameters.version,
            "fingerprint": "" if adapter is None else adapter.identity.fingerprint(),
        }

    def _run(self) -> None:
        try:
            self._serve()
        finally:
            # Whatever ended the thread, nobody waits for it in vain.
            stopped = self._stopping.is_set()
            self._fail_open(_shutting_down() if stopped else EngineFailedError("the engine has ended"))

    def _serve(self) -> None:
        while not self._stopping.is_set():
            self._work.clear()
            try:
                while not self.engine.idle and not self._stopping.is_set():
                    result = self.engine.step()
                    if result is not None:
                        self.totals.add(result)
            except Exception:
                log.exception("engine_failed running=%d", self.engine.running)
                self.engine.abandon()
                self._fail_open(EngineFailedError("the engine failed on this request"))
            if not self._stopping.is_set():
                self._work.wait()
        self.engine.close()

    def _fail_open(self, error: Exception) -> None:
        for request_id in list(self._open):
            generation = self._open.pop(request_id, None)
            if generation is not None:
                generation.pieces.put(error)


def _shutting_down() -> ShuttingDownError:
    return ShuttingDownError("shutting down: this replica takes no requests any more")
