"""The engine: draft, schedule, verify, accept, again and again, with requests joining and leaving."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from serving_adapter.adapter import ServingAdapter
from serving_adapter.engines.torch.acceptance import Verdict, verify
from serving_adapter.engines.torch.packed_model import PackedModel
from serving_adapter.engines.torch.packing import PackedBatch
from serving_adapter.engines.torch.plan import VerificationPlan
from serving_adapter.engines.torch.profile import StepProfile
from serving_adapter.engines.torch.proposal import Drafter, Proposal
from serving_adapter.engines.torch.requests import GenerationRequest, RunningRequest
from serving_adapter.engines.torch.rounds_log import Round, RoundsLog
from serving_adapter.exploration import request_hash
from serving_adapter.parameters import Parameters
from serving_adapter.scheduler import Scheduler, VerifyAll
from serving_adapter.step_cost import StepCost

PREFILL_TOKENS = 1024
"""Prompt tokens of several requests that are processed in one pass; a longer prompt has one of its own."""


@dataclass(frozen=True, slots=True, eq=False)
class StepResult:
    """What one step did: batch tokens, committed tokens, seconds (prompts apart), and its plan."""

    requests: int
    batch_tokens: int
    committed: int
    prefill_seconds: float
    draft_seconds: float
    verify_seconds: float
    step_seconds: float
    plan: VerificationPlan | None


class TorchEngine:
    """Continuous batching over one target and one drafter.

    :meth:`submit` and :meth:`cancel` may be called from any thread, :meth:`step` from one.

    Parameters
    ----------
    target
        The language model whose output is served.
    drafter
        Proposes tokens; None decodes one token at a time, without telemetry.
    scheduler
        How much of each draft to verify.
    adapter
        Where rows go and parameters come from; None for an engine on its own.
    max_requests
        Most requests in a batch; more wait.
    profile
        Measured cost of a step, used until the adapter brings a cost curve; see :func:`measure_profile`.
    late_labels
        Whether greedy rounds wait for the labels of what was not verified.
    """

    def __init__(
        self,
        target: PackedModel,
        drafter: Drafter | None,
        scheduler: Scheduler | None = None,
        adapter: ServingAdapter | None = None,
        *,
        max_requests: int = 16,
        profile: StepProfile | None = None,
        late_labels: bool = True,
    ) -> None:
        self.target, self.drafter, self.adapter = target, drafter, adapter
        self.scheduler: Scheduler = VerifyAll() if scheduler is None else scheduler
        self.max_requests = max_requests
        self.profile = profile
        self.gamma = 0 if drafter is None else drafter.gamma
        if adapter is not None and adapter.gamma != self.gamma:
            raise ValueError(f"gamma: got an adapter for {adapter.gamma}, expected {self.gamma}")
        self.parameters = Parameters.identity(max(self.gamma, 1))
        self._cost: StepCost | None = None
        self._running: list[RunningRequest] = []
        self._waiting: deque[RunningRequest] = deque()
        self._cancelled: set[str] = set()
        self._lock = threading.Lock()
        self._log = RoundsLog(late_labels)

    @property
    def running(self) -> int:
        """Requests in the batch."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests not yet in the batch."""
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self._running and not self._waiting

    def submit(self, request: GenerationRequest) -> RunningRequest:
        """Queue a request; it joins the batch between two steps.

        Raises
        ------
        ValueError
            Prompt and output, with a draft behind them, do not fit the context, or a token is not one
            of the vocabulary.
        """
        needed = len(request.prompt) + request.max_tokens + self.gamma
        if needed > self.target.limit:
            raise ValueError(
                f"prompt and max_tokens: got {len(request.prompt)} + {request.max_tokens}, "
                f"expected at most {self.target.limit - self.gamma} tokens together"
            )
        wrong = [token for token in request.prompt if not 0 <= token < self.target.vocab_size]
        if wrong:
            raise ValueError(f"prompt: got token {wrong[0]}, expected 0 to {self.target.vocab_size - 1}")
        salt = "" if self.adapter is None else self.adapter.salt
        running = RunningRequest.start(request, request_hash(request.request_id, salt))
        with self._lock:
            self._waiting.append(running)
        return running

    def cancel(self, request_id: str) -> None:
        """End a request between two steps; unknown ids do no harm."""
        with self._lock:
            self._cancelled.add(request_id)

    @torch.inference_mode()
    def step(self) -> StepResult | None:
        """Advance every running request by one round; None when there is nothing to do."""
        self._apply_parameters()
        self._drop_cancelled()
        began = time.perf_counter()
        self._join()
        if not self._running:
            self._hand_over()  # the rounds of requests that were cancelled
            return None
        prefilled = time.perf_counter()
        numbers = self._uniforms()
        temperature = torch.tensor(
            [r.request.temperature for r in self._running], dtype=torch.float64, device=self.target.device
        )
        proposal = self._draft(temperature, numbers)
        # The plan needs the confidences on the host: this waits for the draft.
        drafts, logits = proposal.tokens.cpu().numpy(), proposal.confidence.cpu().numpy()
        plan = self._plan(logits)
        drafted = time.perf_counter()
        verdict = self._verify(proposal, drafts, plan, temperature, numbers)
        committed = self._commit(drafts, logits, plan, verdict)
        ended = time.perf_counter()
        requests, batch_tokens = len(self._running), len(self._running)
        if plan is not None:
            batch_tokens += int(plan.verified.sum())
        result = StepResult(
            requests=requests,
            batch_tokens=batch_tokens,
            committed=committed,
            prefill_seconds=prefilled - began,
            draft_seconds=drafted - prefilled,
            verify_seconds=ended - drafted,
            step_seconds=ended - prefilled,
            plan=plan,
        )
        self._emit(result)
        self._leave()
        return result

    def run(self) -> None:
        """Step until nothing is left to do."""
        while not self.idle:
            self.step()

    def abandon(self) -> None:
        """Forget every request, for a step failed: their cache cannot be trusted, their rounds can."""
        with self._lock:
            self._waiting.clear()
        self._running.clear()
        self.close()

    def close(self) -> None:
        """Hand over rounds that still wait for labels, with those they have."""
        self._log.flush()
        self._hand_over()

    def _apply_parameters(self) -> None:
        """Between two steps: what a document brings holds from the next draft on."""
        if self.adapter is None:
            return
        parameters = self.adapter.current()
        if parameters is self.parameters:
            return
        changed = parameters.version != self.parameters.version
        self.parameters = parameters
        self._cost = StepCost.from_curve(parameters.cost)
        if changed:
            self.adapter.applied(parameters.version)

    def _drop_cancelled(self) -> None:
        with self._lock:
            cancelled, self._cancelled = self._cancelled, set()
            if not cancelled:
                return
            dropped = [r for r in self._waiting if r.request.request_id in cancelled]
            self._waiting = deque(r for r in self._waiting if r.request.request_id not in cancelled)
        for running in (*dropped, *self._running):
            if running.request.request_id in cancelled:
                running.cancel()
        self._leave()

    def _join(self) -> None:
        """Let waiting requests in and process their prompts, all but the last token of each."""
        row = len(self._running)
        with self._lock:
            while self._waiting and len(self._running) < self.max_requests:
                self._running.append(self._waiting.popleft())
        while row < len(self._running):
            prompts = [self._running[row].tokens[:-1]]
            # Several short prompts go in one pass; together they stay small, or padding would be large.
            for running in self._running[row + 1 :]:
                if sum(map(len, prompts)) + len(running.tokens) > PREFILL_TOKENS:
                    break
                prompts.append(running.tokens[:-1])
            if any(prompts):
                self._prefill(prompts, row)
            row += len(prompts)

    def _prefill(self, prompts: list[list[int]], first_row: int) -> None:
        batch = PackedBatch.build(prompts, [0] * len(prompts), self.target.device, first_row)
        layers = () if self.drafter is None else self.drafter.feature_layers
        place = torch.zeros(1, dtype=torch.long, device=self.target.device)
        output = self.target.forward(batch, place, feature_layers=layers)  # of its logits nothing is needed
        if self.drafter is not None:
            self.drafter.prefill(batch, output.features)

    def _uniforms(self) -> Tensor:
        drawn = np.zeros((len(self._running), 2 * self.gamma + 1))
        for row, running in enumerate(self._running):
            if running.request.temperature > 0:
                drawn[row] = running.uniforms(self.gamma)
        return torch.from_numpy(drawn).to(self.target.device)

    def _draft(self, temperature: Tensor, numbers: Tensor) -> Proposal:
        if self.drafter is not None:
            sequences = [running.tokens for running in self._running]
            return self.drafter.propose(sequences, temperature, numbers[:, : self.gamma])
        empty = temperature.new_zeros((len(self._running), 0))
        return Proposal(empty.long(), empty, empty.reshape(*empty.shape, 0), empty.float())

    def _plan(self, logits: NDArray[np.float32]) -> VerificationPlan | None:
        if self.drafter is None:
            return None
        requests = logits.shape[0]
        explored, explore = np.zeros(requests, dtype=np.bool_), 0.0
        # With requests waiting every verified token is paid for by somebody: nothing is explored then.
        # Neither the queue nor the hash knows what was drafted in this step.
        if self.adapter is not None and not self._waiting and self.parameters.explore > 0:
            explore = self.parameters.explore
            explored = self.adapter.explore_each(
                np.array([r.hash for r in self._running], dtype=np.uint64),
                np.array([r.rounds for r in self._running], dtype=np.uint64),
            )
        return VerificationPlan.make(
            logits,
            self.parameters,
            self.scheduler,
            self._cost_of(requests),
            explored,
            explore,
            *self._kinds(),
        )

    def _kinds(self) -> tuple[Sequence[int], Sequence[float]]:
        """Segment index and sampling temperature of every request: which set of parameters serves it."""
        if self.adapter is None or self.parameters.sets is None:
            return (0,), (0.0,)  # the pooled set serves all
        segments = [self.adapter.segment(r.request.segment) for r in self._running]
        return segments, [r.request.temperature for r in self._running]

    def _cost_of(self, requests: int) -> StepCost | None:
        """The published curve where there is one, else what was measured at start."""
        if self._cost is not None:
            return self._cost
        return None if self.profile is None else self.profile.cost(requests)

    def _verify(
        self,
        proposal: Proposal,
        drafts: NDArray[np.int64],
        plan: VerificationPlan | None,
        temperature: Tensor,
        numbers: Tensor,
    ) -> Verdict:
        lengths = np.zeros(len(self._running), dtype=np.int64) if plan is None else plan.verified
        tokens = [
            [running.tokens[-1], *drafts[row, : lengths[row]].tolist()]
            for row, running in enumerate(self._running)
        ]
        starts = [running.anchor for running in self._running]
        batch = PackedBatch.build(tokens, starts, self.target.device)
        layers = () if self.drafter is None else self.drafter.feature_layers
        output = self.target.forward(batch, feature_layers=layers)
        accept, bonus = numbers[:, self.gamma : 2 * self.gamma], numbers[:, 2 * self.gamma]
        verdict = verify(output.logits, batch, proposal, temperature, accept, bonus)
        if self.drafter is not None:
            self.drafter.commit(batch, output.features, [int(n) + 1 for n in verdict.accepted])
        return verdict

    def _commit(
        self,
        drafts: NDArray[np.int64],
        logits: NDArray[np.float32],
        plan: VerificationPlan | None,
        verdict: Verdict,
    ) -> int:
        total = 0
        for row, running in enumerate(self._running):
            anchor, before = running.anchor, len(running.tokens)
            running.append([*drafts[row, : verdict.accepted[row]].tolist(), int(verdict.bonus[row])])
            total += len(running.tokens) - before
            if plan is not None:
                self._record(row, running, anchor, drafts[row].tolist(), logits[row], plan, verdict)
            running.rounds += 1
        return total

    def _record(
        self,
        row: int,
        running: RunningRequest,
        anchor: int,
        draft: list[int],
        logits: NDArray[np.float32],
        plan: VerificationPlan,
        verdict: Verdict,
    ) -> None:
        if self.adapter is None:
            return
        segment = self.adapter.segment(running.request.segment)
        self._log.enter(running, Round.of(running, row, anchor, segment, logits, plan, verdict), draft)
        self._log.follow(running)

    def _emit(self, result: StepResult) -> None:
        if self.adapter is None or result.plan is None:
            return
        step: dict[str, Any] = {
            "step_seconds": result.step_seconds,
            "draft_seconds": result.draft_seconds,
            "verify_seconds": result.verify_seconds,
            "batch_tokens": result.batch_tokens,
            "requests": result.requests,
            "context_tokens": float(np.mean([len(r.tokens) for r in self._running])),
            "predicted_accepted": result.plan.predicted_accepted,
            "predicted_seconds": result.plan.predicted_seconds,
        }
        self._log.end_step(step)
        self._hand_over()

    def _hand_over(self) -> None:
        """Give the adapter the steps of which all labels are in."""
        if self.adapter is not None:
            for columns in self._log.take():
                self.adapter.observe(**columns)

    def _leave(self) -> None:
        """Take ended requests out; the last rows move into the places that become free."""
        row = 0
        while row < len(self._running):
            running = self._running[row]
            if running.finished is None:
                row += 1
                continue
            self._log.follow(running)
            last = len(self._running) - 1
            if row != last:
                self.target.cache.move(last, row, len(self._running[last].tokens))
                if self.drafter is not None:
                    self.drafter.move(last, row)
                self._running[row] = self._running[last]
            self._running.pop()


def generate(engine: TorchEngine, requests: Sequence[GenerationRequest]) -> list[list[int]]:
    """Run requests to their end and return what each generated, in order."""
    running = [engine.submit(request) for request in requests]
    engine.run()
    return [r.output for r in running]
