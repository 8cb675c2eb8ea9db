"""The closed loop on live generation: the torch engine serves a real model, nothing is recorded.

It answers questions about mathematics and code while its scheduler hides labels; calibration is fitted,
gated, published and applied while it runs. Judged on questions of another domain, every draft verified.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrator.cli import output
from calibrator.cli.placement import EmbeddedPlacement, private_ring
from calibrator.core.candidate import ProposalOptions
from calibrator.core.parameter_set import ParameterSet
from calibrator.core.report import PositionReport, mean_ece, mean_noise_floor, position_report
from calibrator.service.refresh import RefreshOutcome
from collectors.options import PipelineOptions
from serving_adapter.adapter import ServingAdapter
from serving_adapter.clock import SystemClock
from serving_adapter.contract import EngineIdentity, Rounds
from serving_adapter.parameters import Parameters
from serving_adapter.scheduler import EarlyStop, VerifyAll
from serving_adapter.settings import Settings

if TYPE_CHECKING:
    from serving_adapter.engines.torch.building import BuiltEngine
    from serving_adapter.engines.torch.engine import TorchEngine
    from serving_adapter.engines.torch.requests import GenerationRequest

BINS = 15
EXPLORE = 0.05
TEMPERATURE = 0.7
ANSWER_TOKENS = 64
SERVED_DOMAINS = ("math", "code")
JUDGED_DOMAIN = "chat"
REFRESHES = 2


@dataclass(frozen=True, slots=True, eq=False)
class LiveRun:
    """What a live demo found; ``before`` under the identity, ``after`` under what was published."""

    judged: Rounds
    before: list[PositionReport]
    after: list[PositionReport]
    parameters: Parameters
    refreshes: list[RefreshOutcome]
    served: int
    tokens_per_second: float
    ledger: dict[str, int]


class LiveDemo:
    """Serves, refreshes and judges with one engine.

    Parameters
    ----------
    folder
        For the embedded servers and the store.
    rounds
        To serve before judging.
    judged_rounds
        To judge on.
    on_progress
        Called with the rounds served so far and what is going on.
    model, drafter
        See :class:`serving_adapter.engines.torch.building.EngineOptions`.
    concurrency
        Requests at a time.
    """

    def __init__(
        self,
        folder: Path,
        rounds: int,
        judged_rounds: int,
        on_progress: Callable[[int, str], None] = lambda _rounds, _text: None,
        *,
        model: str = "smollm2",
        drafter: str = "self",
        concurrency: int = 16,
    ) -> None:
        from serving_adapter.engines.torch.building import EngineOptions, build_engine

        self._folder, self._rounds, self._judged_rounds = folder, rounds, judged_rounds
        self._on_progress, self._concurrency = on_progress, concurrency
        on_progress(0, f"loading {model}")
        self._placements: list[EmbeddedPlacement] = []
        options = EngineOptions(model=model, drafter=drafter, max_requests=concurrency, max_context=512)
        self._built: BuiltEngine = build_engine(options, EarlyStop(), self._adapter_for)

    @property
    def placement(self) -> EmbeddedPlacement:
        """Everything around the engine; enter it before :meth:`run`."""
        return self._placements[0]

    def run(self) -> LiveRun:
        """Serve and refresh in turn, then judge."""
        engine = self._built.engine
        questions = self._requests(SERVED_DOMAINS)
        served, tokens, seconds, refreshes = 0, 0, 0.0, []
        for part in range(1, REFRESHES + 1):
            while served < self._rounds * part // REFRESHES:
                result = _keep_busy(engine, questions, self._concurrency)
                served, tokens = served + result.requests, tokens + result.committed
                seconds += result.step_seconds
                self._on_progress(served, "serving math and code")
            # Rounds that wait for labels of a running text are not emitted yet, so this waits for none.
            self._on_progress(served, "refreshing")
            self.placement.catch_up(self._emitted())
            outcome = self.placement.refresh()
            refreshes.append(outcome)
            if outcome.document is not None:
                self.placement.wait_for_version(outcome.document.version)
        parameters = self.placement.adapter.current()
        judged = self._judge()
        identity = ParameterSet.identity(judged.gamma)
        return LiveRun(
            judged=judged,
            before=position_report(identity.survival(judged), judged, BINS),
            after=position_report(parameters.survival_of(judged), judged, BINS),
            parameters=parameters,
            refreshes=refreshes,
            served=served,
            tokens_per_second=tokens / seconds if seconds else 0.0,
            ledger={"emitted": self._emitted(), **self.placement.ledger()},
        )

    def _judge(self) -> Rounds:
        """Rounds of the other domain, every draft verified, seen by nobody but the judge."""
        from serving_adapter.engines.torch.engine import TorchEngine

        engine = self._built.engine
        witness = Witness(self.placement.adapter.identity)
        judge = TorchEngine(
            engine.target, engine.drafter, VerifyAll(), witness, max_requests=self._concurrency
        )
        questions, done = self._requests((JUDGED_DOMAIN,)), 0
        while done < self._judged_rounds:
            done += _keep_busy(judge, questions, self._concurrency).requests
            self._on_progress(self._rounds + done, "judging on chat")
        return witness.rounds()

    def _adapter_for(self, identity: EngineIdentity) -> ServingAdapter:
        settings = Settings(
            deployment="live",
            replica="torch-0",
            ring=private_ring(),
            bus_path=str(self._folder / "bus.db"),
            database_url=f"sqlite:///{self._folder / 'store.db'}",
            explore=EXPLORE,
            poll_seconds=0.2,
        )
        placement = EmbeddedPlacement(
            settings,
            identity,
            self._folder,
            SystemClock(),
            ProposalOptions(bins=BINS),
            PipelineOptions(window_seconds=10),
        )
        self._placements.append(placement)
        return placement.adapter

    def _emitted(self) -> int:
        ring = self.placement.adapter.ring
        return 0 if ring is None else ring.written

    def _requests(self, domains: tuple[str, ...]) -> Iterator[GenerationRequest]:
        from serving_adapter.engines.torch.prompts import chat_tokens, prompts
        from serving_adapter.engines.torch.requests import GenerationRequest

        for number in itertools.count():
            domain = domains[number % len(domains)]
            text = prompts(domain, 1, first=number // len(domains))[0]
            yield GenerationRequest(
                request_id=f"{domain}-{number}",
                prompt=chat_tokens(self._built.tokenizer, text),
                max_tokens=ANSWER_TOKENS,
                temperature=TEMPERATURE,
                seed=number,
                stop_tokens=self._built.stop_tokens,
                segment=domain,
            )


class Witness(ServingAdapter):
    """Sees every round and tells nobody."""

    def __init__(self, identity: EngineIdentity) -> None:
        super().__init__(identity, "judge", "judge")
        self._columns: list[dict[str, Any]] = []

    def observe(self, logits: Any, accepted: Any, **columns: Any) -> None:
        """See :meth:`ServingAdapter.observe`."""
        if len(logits):
            self._columns.append({"logits": logits, "accepted": accepted, **columns})

    def rounds(self) -> Rounds:
        """All rounds so far."""
        names = ("logits", "accepted", "verified", "request", "step", "draft_stop")
        joined: dict[str, Any] = {n: np.concatenate([c[n] for c in self._columns]) for n in names}
        return Rounds.build(**joined)


def _keep_busy(engine: TorchEngine, questions: Iterator[GenerationRequest], concurrency: int) -> Any:
    while engine.running + engine.waiting < concurrency:
        engine.submit(next(questions))
    result = engine.step()
    assert result is not None
    return result


def as_json(run: LiveRun) -> dict[str, Any]:
    """The run as one object."""
    return {
        "served_rounds": run.served,
        "judged_rounds": len(run.judged),
        "mean_ece_before": mean_ece(run.before),
        "mean_ece_after": mean_ece(run.after),
        "mean_noise_floor": mean_noise_floor(run.after),
        "version": run.parameters.version,
        "form": run.parameters.form,
        "tokens_per_second": run.tokens_per_second,
        "positions": [
            {
                "position": before.position,
                "observed": before.observed,
                "ece_before": before.ece,
                "ece_after": after.ece,
                "noise_floor": after.noise_floor,
                "temperature": float(run.parameters.temperatures[k]),
                "offset": float(run.parameters.offsets[k]),
            }
            for k, (before, after) in enumerate(zip(run.before, run.after, strict=True))
        ],
        "refreshes": [
            {
                "outcome": outcome.outcome,
                "version": outcome.document.version if outcome.document else None,
                "reasons": list(outcome.reasons),
            }
            for outcome in run.refreshes
        ],
        "ledger": run.ledger,
    }


def print_run(run: LiveRun) -> None:
    """The run as the demo's table."""
    f = output.figure
    rows = [
        (
            str(p["position"]), f(p["observed"], 3), f(p["ece_before"]), f(p["ece_after"]),
            f(p["noise_floor"]), f(p["temperature"], 3), f(p["offset"], 3),
        )
        for p in as_json(run)["positions"]
    ]  # fmt: skip
    columns = ("pos", "observed", "ECE before", "ECE after", "floor", "T", "offset")
    title = f"live generation: version {run.parameters.version}, form {run.parameters.form}"
    output.out.print(output.table(title, columns, rows))
    output.out.print(
        f"mean ECE {f(mean_ece(run.before))} -> {f(mean_ece(run.after))} on {len(run.judged):,} rounds of "
        f"{JUDGED_DOMAIN}, fitted on {' and '.join(SERVED_DOMAINS)}; noise floor "
        f"{f(mean_noise_floor(run.after))}; {run.tokens_per_second:.1f} tokens/s",
        markup=False,
    )
    for number, outcome in enumerate(run.refreshes, 1):
        reasons = f": {'; '.join(outcome.reasons)}" if outcome.reasons else ""
        output.out.print(f"refresh {number}: {outcome.outcome}{reasons}", markup=False, soft_wrap=True)
    ledger = run.ledger
    output.out.print(
        f"Rounds: {ledger['emitted']:,} emitted, {ledger['folded']:,} folded, {ledger['lost']:,} lost, "
        f"{ledger['dead_lettered']:,} dead-lettered.",
        markup=False,
    )
