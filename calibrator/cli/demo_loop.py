"""The demo: recorded traffic served live, refreshed while it runs, shifted, and refreshed again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from calibrator.cli.placement import EmbeddedPlacement, private_ring
from calibrator.core.candidate import ProposalOptions
from calibrator.core.ece import Reliability, reliability
from calibrator.core.labels import drafted, prefix_labels
from calibrator.core.parameter_set import ParameterSet
from calibrator.core.report import PositionReport, mean_ece, mean_noise_floor, position_report
from calibrator.service.refresh import RefreshOutcome
from collectors.options import PipelineOptions
from serving_adapter.contract import Rounds
from serving_adapter.engines.replay.clock import EngineClock
from serving_adapter.engines.replay.drift import DriftScript, Traffic
from serving_adapter.engines.replay.engine import ReplayEngine, replay_identity
from serving_adapter.engines.replay.records import load_recording, split_requests
from serving_adapter.parameters import Parameters
from serving_adapter.settings import Settings

CONCURRENCY = 32
HELD_OUT_FRACTION = 0.4
REFRESHES = 2
"""Per phase: few and on many rows, as in production, where a refresh sees far more rows than a demo has."""
BINS = 15
EXPLORE = 0.02
MIN_ROUNDS = 4000
SEGMENT_OF_DRIFT = "chat"
STEP_SECONDS = 0.16
"""What a step of this batch takes on the recorded machine, rounded up."""
WINDOW_SECONDS = 1.0
REFRESH_SECONDS = 30.0
"""Between two refreshes once the demo goes on under the dashboard."""

BEFORE_DRIFT = (Traffic("typical"),)
AFTER_DRIFT = (Traffic("typical", (SEGMENT_OF_DRIFT,)), Traffic("typical-hot", (SEGMENT_OF_DRIFT,)))

PHASES = (
    (
        "before the drift: math, code and chat",
        """Questions of three domains, sampled at temperature 0.7. The head that scores them was trained on
        few rounds of math and code and never saw chat.""",
    ),
    (
        "after the drift: chat, hotter",
        """The mix turns to chat alone, part of it sampled at temperature 1.0. What was fitted before does
        not travel.""",
    ),
)


@dataclass(frozen=True, slots=True, eq=False)
class Phase:
    """One stretch of traffic, judged on requests that were never served.

    ``before`` is under the identity, ``after`` under the parameters in force at its end, and
    ``temperature_form`` holds the mean-free ECE per position that the best temperatures leave.
    """

    name: str
    text: str
    judged: Rounds
    before: list[PositionReport]
    after: list[PositionReport]
    temperature_form: list[float | None]
    parameters: Parameters
    coverage: list[float]
    statuses: list[str]

    @property
    def mean_before(self) -> float | None:
        """Mean ECE over positions under the identity."""
        return mean_ece(self.before)

    @property
    def mean_after(self) -> float | None:
        """Mean ECE over positions under the parameters in force."""
        return mean_ece(self.after)

    @property
    def mean_noise_floor(self) -> float | None:
        """What a perfectly calibrated head would show on these rows."""
        return mean_noise_floor(self.after)

    def reliability(self, position: int, *, before: bool) -> Reliability:
        """Reliability of one position (1-based) on the judged rows."""
        k = position - 1
        survival = _identity(self.judged) if before else self.parameters.survival_of(self.judged)
        inside = drafted(self.judged)[:, k]
        labels = prefix_labels(self.judged)[:, k]
        return reliability(survival[inside, k], labels[inside], BINS)


@dataclass(slots=True)
class DemoRun:
    """What a demo produced so far; ``refreshes`` are (rounds served, outcome)."""

    phases: list[Phase] = field(default_factory=list)
    refreshes: list[tuple[int, RefreshOutcome]] = field(default_factory=list)
    ledger: dict[str, int] = field(default_factory=dict)


class DemoLoop:
    """The closed loop on recorded traffic.

    Parameters
    ----------
    folder
        For the embedded servers and the store.
    rounds
        To serve in all, half of them before the drift.
    on_progress
        Called with the rounds served so far and what is going on.
    seed
        Fixes the traffic.
    """

    def __init__(
        self,
        folder: Path,
        rounds: int,
        on_progress: Callable[[int, str], None] = lambda _rounds, _text: None,
        seed: int = 0,
    ) -> None:
        self._rounds = rounds
        self._on_progress = on_progress
        recordings, self._held_out = {}, {}
        for name in ("typical", "typical-hot"):
            recording = load_recording(name)
            served, held_out = split_requests(recording, HELD_OUT_FRACTION)
            recordings[name] = recording.keep(served)
            self._held_out[name] = recording.rows_of(held_out)
        self._drift_step = rounds // 2 // CONCURRENCY
        script = DriftScript.switch(BEFORE_DRIFT, AFTER_DRIFT, self._drift_step)
        # Stamps of the run lie in the past, so that a page that shows the loop can go on from now.
        self.clock = EngineClock(start=time.time() - STEP_SECONDS * 2 * self._drift_step)
        # A half-life of half a phase: engines know no rounds, only time. 0.1 s is about what a step
        # of this batch takes on the recorded machine.
        half_life = max(5.0, 0.1 * self._drift_step / 2)
        settings = Settings(
            deployment="demo",
            replica="replay-0",
            ring=private_ring(),
            bus_path=str(folder / "bus.db"),
            database_url=f"sqlite:///{folder / 'store.db'}",
            explore=EXPLORE,
            half_life_seconds=half_life,
            poll_seconds=0.2,
            window_seconds=WINDOW_SECONDS,
            refresh_seconds=REFRESH_SECONDS,
        )
        self.placement = EmbeddedPlacement(
            settings,
            replay_identity(),
            folder,
            self.clock,
            ProposalOptions(bins=BINS),
            PipelineOptions(window_seconds=int(WINDOW_SECONDS), half_life_seconds=half_life),
        )
        self.engine = ReplayEngine(
            self.placement.adapter,
            recordings=recordings,
            script=script,
            concurrency=CONCURRENCY,
            seed=seed,
        )
        self.clock.follow(lambda: self.engine.ledger.seconds)
        self.run_state = DemoRun()

    def run(self) -> DemoRun:
        """Serve both phases; needs the placement to be entered."""
        for index in range(2):
            for _ in range(REFRESHES):
                self._serve(self._rounds // 2 // REFRESHES, index)
                self.refresh()
            # The version that the last refresh published comes into force with the next step.
            self.engine.step()
            self.run_state.phases.append(self._judge(index))
        self.placement.catch_up(self.engine.ledger.emitted)
        self.run_state.ledger = {"emitted": self.engine.ledger.emitted, **self.placement.ledger()}
        return self.run_state

    def _serve(self, rounds: int, phase: int) -> None:
        ledger = self.engine.ledger
        target = ledger.rounds + rounds
        while ledger.rounds < target:
            # The ring holds more than a refresh needs, so an engine without a GPU in it cannot outrun it.
            self.engine.run(rounds=min(1024, target - ledger.rounds))
            self._on_progress(ledger.rounds, "before the drift" if phase == 0 else "after the drift")

    def refresh(self) -> RefreshOutcome:
        """Let the collector catch up, refresh, and wait until the engine can apply what was published."""
        self._on_progress(self.engine.ledger.rounds, "refreshing")
        self.placement.catch_up(self.engine.ledger.emitted)
        outcome = self.placement.refresh()
        self.run_state.refreshes.append((self.engine.ledger.rounds, outcome))
        if outcome.document is not None:
            self.placement.wait_for_version(outcome.document.version)
        return outcome

    def _judge(self, index: int) -> Phase:
        judged = self._judged_rows(BEFORE_DRIFT if index == 0 else AFTER_DRIFT)
        parameters = self.engine.parameters
        proposal = next(o.proposal for _, o in reversed(self.run_state.refreshes) if o.proposal is not None)
        best_temperature = proposal.alternatives.get("temperature")
        limited: list[float | None] = (
            [None] * judged.gamma
            if best_temperature is None
            else [r.ece for r in position_report(best_temperature.survival(judged), judged, BINS)]
        )
        return Phase(
            name=PHASES[index][0],
            text=PHASES[index][1],
            judged=judged,
            before=position_report(_identity(judged), judged, BINS),
            after=position_report(parameters.survival_of(judged), judged, BINS),
            temperature_form=limited,
            parameters=parameters,
            coverage=[r.coverage or 0.0 for r in proposal.before],
            statuses=[g.status for g in proposal.gates],
        )

    def _judged_rows(self, mix: tuple[Traffic, ...]) -> Rounds:
        parts = []
        for traffic in mix:
            rows = self._held_out[traffic.recording]
            if traffic.segments:
                names = np.array(rows.segment_names())
                rows = rows.take(np.isin(names, traffic.segments))
            parts.append(rows)
        return Rounds.concatenate(parts)


def _identity(rounds: Rounds) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return ParameterSet.identity(rounds.gamma).survival(rounds)
