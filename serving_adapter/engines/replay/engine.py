"""Recorded rounds served as a live engine: real confidences, real outcomes, truncated as in production."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import EllipsisType
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from serving_adapter.clock import SystemClock
from serving_adapter.contract import EngineIdentity, Rounds
from serving_adapter.engines.replay.cost import Machine
from serving_adapter.engines.replay.drift import DriftScript
from serving_adapter.engines.replay.ledger import Ledger
from serving_adapter.engines.replay.records import Recording, load_recording
from serving_adapter.engines.replay.traffic import RequestTraffic
from serving_adapter.exploration import emits_each
from serving_adapter.exploration_budget import ExplorationBudget
from serving_adapter.parameters import Parameters
from serving_adapter.ports import Clock
from serving_adapter.scheduler import Asynchronous, Scheduler
from serving_adapter.step_cost import StepCost


class AdapterFace(Protocol):
    """What the engine needs of a :class:`serving_adapter.adapter.ServingAdapter`."""

    gamma: int

    @property
    def observe(self) -> Callable[..., None]:
        """Write the rounds of one step, and its step row."""
        ...

    def segment(self, label: str) -> int:
        """Index of a segment label."""
        ...

    def explore_each(
        self, request: ArrayLike, step: ArrayLike, probability: float | None = None
    ) -> NDArray[np.bool_]:
        """Which rounds are to be verified in full."""
        ...

    def current(self) -> Parameters:
        """Parameters in force."""
        ...

    def applied(self, version: int) -> None:
        """Report that this version is computed with."""
        ...

    def refused(self, version: int, reason: str) -> None:
        """Report that this version cannot be taken."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class StepResult:
    """One engine step: what was emitted, which rounds explored, what full verification would have given."""

    rounds: Rounds
    explored: NDArray[np.bool_]
    true_accepted: NDArray[np.uint8]
    seconds: float


class ReplayEngine:
    """Serves recorded requests, a fixed number at a time, with confidences and outcomes as recorded.

    Every step: take the parameters in force, calibrate the recorded raw logits, let the scheduler choose
    lengths, verify explored rounds in full, accept what the recording accepted within the verified
    length, and emit all that through the adapter. A request that was trimmed short of its recorded
    acceptance goes on with its next recorded round all the same, so each label is exact given its
    recorded context, and a trimmed request is not longer than an untrimmed one.

    Free labels. The outcome at position v + 1 is known in every round: after a rejection within v it is
    "rejected", and when all v were accepted the bonus token tells (this engine stands for one that draws
    its bonus token by the acceptance rule on draft token v + 1, which leaves its distribution as it is).
    Taking it only from rounds of the second kind would depend on the outcome; taking it from all does not,
    so ``resolved`` is v + 1 throughout. At sampling temperature 0 the later tokens of the request resolve
    the whole draft, and ``resolved`` is gamma. An engine learns the latter some steps later; the replay
    says it at once.

    Parameters
    ----------
    adapter
        Where rows go and parameters come from; its gamma must be that of the recordings.
    recordings
        Recordings by name; left out, the packaged ones that the script names. Pass
        ``load_recording(name).keep(served)`` to hold requests back for judging.
    script
        What traffic arrives when; left out, all of ``typical``.
    concurrency
        Requests running at a time.
    scheduler
        Chooses verification lengths; left out, :class:`Asynchronous`: the recorded machine has a step in
        its cost between 32 and 48 tokens that early stopping does not get over.
    machine
        What a step really takes; left out, the recorded machine with its noise.
    boot_cost
        What the scheduler believes a step takes until a parameter document brings a curve; left out, the
        machine's own cost, and None for an engine that was never profiled.
    seed
        Fixes traffic and noise. Traffic does not depend on anything but seed, script and concurrency, so
        schedulers can be compared on the same rounds.
    speed
        Seconds of engine time per second of ``clock``; 0 does not wait at all.
    free_labels
        Whether ``resolved`` says more than ``verified``.
    soft_labels
        Whether acceptance probabilities of verified positions are emitted.
    clock
        What waits when ``speed`` is above 0.
    exploration_budget
        Share of the step time that exploring may take; None explores as the parameters say.

    Raises
    ------
    ValueError
        Naming what does not fit: gamma, a recording, a segment, concurrency or speed.
    """

    def __init__(
        self,
        adapter: AdapterFace,
        *,
        recordings: Mapping[str, Recording] | None = None,
        script: DriftScript | None = None,
        concurrency: int = 32,
        scheduler: Scheduler | None = None,
        machine: Machine | None = None,
        boot_cost: StepCost | EllipsisType | None = ...,
        seed: int = 0,
        speed: float = 0.0,
        free_labels: bool = True,
        soft_labels: bool = False,
        clock: Clock | None = None,
        exploration_budget: float | None = None,
    ) -> None:
        if not 0 <= speed < np.inf:
            raise ValueError(f"speed: got {speed}, expected a factor >= 0")
        self.script = DriftScript.steady("typical") if script is None else script
        if recordings is None:
            names = {part.recording for phase in self.script.phases for part in phase.mix}
            recordings = {name: load_recording(name) for name in names}
        traffic_seed, noise_seed = np.random.SeedSequence(seed).spawn(2)
        self._traffic = RequestTraffic(
            recordings, self.script, concurrency, np.random.default_rng(traffic_seed)
        )
        self._noise = np.random.default_rng(noise_seed)
        recorded = self._traffic.rounds
        if recorded.gamma != adapter.gamma:
            raise ValueError(
                f"gamma: got {adapter.gamma} in the adapter, expected {recorded.gamma} as recorded"
            )
        self.gamma = recorded.gamma
        self._adapter = adapter
        self._scheduler: Scheduler = Asynchronous() if scheduler is None else scheduler
        self._machine = Machine.recorded() if machine is None else machine
        self._boot_cost = self._machine.cost if boot_cost is ... else boot_cost
        self._cost = self._boot_cost
        self._speed, self._clock = speed, SystemClock() if clock is None else clock
        self._free_labels, self._soft_labels = free_labels, soft_labels
        self._budget = (
            None if exploration_budget is None else ExplorationBudget(exploration_budget, adapter.gamma)
        )
        self._segment_index = np.array([adapter.segment(s) for s in recorded.segments], dtype=np.uint16)
        self._parameters: Parameters | None = None
        self._refused: int | None = None
        self.ledger = Ledger(self.gamma)

    @property
    def parameters(self) -> Parameters:
        """Parameters that the engine computes with."""
        return Parameters.identity(self.gamma) if self._parameters is None else self._parameters

    @property
    def phase(self) -> int:
        """Which phase of the script the next step belongs to."""
        return self.script.index_at(self.ledger.steps)

    @property
    def requests_started(self) -> int:
        """Requests that began to run, the first ones included."""
        return self._traffic.started

    @property
    def requests_finished(self) -> int:
        """Requests that played their last round."""
        return self._traffic.finished

    def deal_as_new_requests(self) -> None:
        """From now on a recorded request that is dealt again is another request.

        For an engine that serves for ever: whatever is estimated over requests (intervals of a rollout) then
        narrows with time, as it does under traffic that never ends. Held-out rows are then no longer of
        requests that a fit has not seen, so leave it out where that is judged.
        """
        self._traffic.laps_apart = True

    def step(self) -> StepResult:
        """Serve one step of all running requests."""
        parameters = self._take_parameters()
        rows, recorded = self._traffic.rows(), self._traffic.rounds
        request, request_step = self._traffic.requests(), self._traffic.request_steps()
        logits, truth = recorded.logits[rows], recorded.accepted[rows]
        survival = parameters.survival(
            logits, self._segment_index[recorded.segment[rows]], recorded.sampling[rows]
        )
        scheduled = self._scheduler.lengths(survival, self._cost).astype(np.uint8)
        explore = parameters.explore
        if self._budget is not None:
            explore = self._budget.probability(explore, rows.size, self._cost)
            self._budget.observe(float(scheduled.mean()))
        explored = self._adapter.explore_each(request, request_step, explore)
        verified = np.where(explored, np.uint8(self.gamma), scheduled)
        resolved = self._resolved(verified, recorded.sampling[rows])
        rounds = Rounds(
            logits=logits,
            accepted=np.minimum(truth, verified),
            verified=verified,
            scheduled=scheduled,
            resolved=resolved,
            resolved_accepted=np.minimum(truth, resolved),
            draft_stop=recorded.draft_stop[rows],
            request=request,
            step=request_step,
            explore=np.full(rows.size, explore, dtype=np.float16),
            version=np.full(rows.size, parameters.version, dtype=np.uint32),
            segment=recorded.segment[rows],
            sampling=recorded.sampling[rows],
            accept_probability=self._soft(rows, verified) if self._soft_labels else None,
            segments=recorded.segments,
        )
        batch_tokens = rows.size + int(verified.sum(dtype=np.int64))
        seconds = self._machine.step_seconds(batch_tokens, self._noise)
        if self._speed > 0:
            self._clock.sleep(seconds / self._speed)
        self._emit(rounds, survival, batch_tokens, seconds)
        emitted = rows.size
        if parameters.share < 1:
            emitted = int(np.count_nonzero(emits_each(request, parameters.share)))
        self.ledger.book(rounds, truth, explored, seconds, emitted)
        self._traffic.advance(self.ledger.steps)
        return StepResult(rounds, explored, truth, seconds)

    def run(
        self,
        *,
        steps: int | None = None,
        rounds: int | None = None,
        stopped: Callable[[], bool] | None = None,
    ) -> Ledger:
        """Serve until so many more steps or rounds are done, or until ``stopped`` says so between steps.

        Raises
        ------
        ValueError
            None of the three is given: the engine would serve for ever.
        """
        if steps is None and rounds is None and stopped is None:
            raise ValueError("run: got no end, expected steps, rounds or stopped")
        last_step = np.inf if steps is None else self.ledger.steps + steps
        last_round = np.inf if rounds is None else self.ledger.rounds + rounds
        while self.ledger.steps < last_step and self.ledger.rounds < last_round:
            if stopped is not None and stopped():
                break
            self.step()
        return self.ledger

    def _take_parameters(self) -> Parameters:
        offered = self._adapter.current()
        if self._parameters is not None and offered.version in (self._parameters.version, self._refused):
            return self._parameters
        if offered.gamma != self.gamma:
            self._adapter.refused(
                offered.version, f"gamma: got {offered.gamma}, expected {self.gamma}, as this engine drafts"
            )
            self._refused = offered.version
            self.ledger.refused += 1
            self._parameters = self.parameters
            return self._parameters
        self._parameters = offered
        # A curve that holds nothing measured is no reason to forget what was measured at start.
        self._cost = StepCost.from_curve(offered.cost) or self._boot_cost
        self._adapter.applied(offered.version)
        return offered

    def _resolved(
        self, verified: NDArray[np.uint8], sampling: NDArray[np.floating[Any]]
    ) -> NDArray[np.uint8]:
        if not self._free_labels:
            return verified
        greedy = sampling == 0
        known = np.where(greedy, self.gamma, np.minimum(verified + 1, self.gamma))
        return known.astype(np.uint8)

    def _soft(self, rows: NDArray[np.int64], verified: NDArray[np.uint8]) -> NDArray[Any] | None:
        soft = self._traffic.rounds.accept_probability
        if soft is None:
            return None
        return np.where(np.arange(self.gamma) < verified[:, None], soft[rows], np.float16(np.nan))

    def _emit(self, rounds: Rounds, survival: NDArray[np.float64], tokens: int, seconds: float) -> None:
        kept = np.arange(self.gamma) < rounds.verified[:, None]
        self._adapter.observe(
            rounds.logits,
            rounds.accepted,
            request=rounds.request,
            verified=rounds.verified,
            scheduled=rounds.scheduled,
            step=rounds.step,
            explore=float(rounds.explore[0]),
            version=self.parameters.version,
            segment=self._segment_index[rounds.segment],
            sampling=rounds.sampling,
            resolved=rounds.resolved,
            resolved_accepted=rounds.resolved_accepted,
            draft_stop=rounds.draft_stop,
            accept_probability=rounds.accept_probability,
            step_seconds=seconds,
            verify_seconds=seconds,
            batch_tokens=tokens,
            requests=len(rounds),
            predicted_accepted=float(survival[kept].sum()),
            predicted_seconds=0.0 if self._cost is None else float(self._cost.seconds(tokens)),
        )


def replay_identity(gamma: int = 7) -> EngineIdentity:
    """Identity of the engine that the recordings stand for."""
    return EngineIdentity(
        target="SmolLM2-135M-Instruct",
        drafter="recorded",
        gamma=gamma,
        engine="replay",
        accelerator="cpu",
        precision="float32",
    )
