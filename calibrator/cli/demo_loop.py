"""The demo: recorded traffic served live and refreshed while it runs; then it drifts, and an alarm refits."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from calibrator.cli.demo_drift import DemoDrift
from calibrator.cli.demo_run import BINS, PHASES, DemoRun, Phase, RefreshMade, Trigger, raw_survival
from calibrator.cli.placement import EmbeddedPlacement, private_ring
from calibrator.cli.profile import ReplayTimer
from calibrator.core.candidate import ProposalOptions
from calibrator.core.report import position_report
from calibrator.service.deployment_settings import merge_settings
from calibrator.service.reading.period import period_numbers
from calibrator.service.refresh import RefreshOutcome
from calibrator.store import deployments
from collectors.options import PipelineOptions
from serving_adapter.contract import Rounds
from serving_adapter.engines.replay.clock import EngineClock
from serving_adapter.engines.replay.drift import DriftScript, Traffic
from serving_adapter.engines.replay.engine import ReplayEngine, replay_identity
from serving_adapter.engines.replay.records import load_recording, split_requests
from serving_adapter.profiling import profile, unseen_sizes
from serving_adapter.settings import Settings

CONCURRENCY = 16
"""With 32 at a time verifying nothing at all is right for the drafter that comes with the drift."""
HELD_OUT_FRACTION = 0.4
REFRESHES = 2
"""Per phase: few and on many rows, as in production, where a refresh sees far more rows than a demo has."""
EXPLORE = 0.02
MIN_ROUNDS = 4000
PROFILE_SECONDS = 5.0
"""Of drawn step times, not waited for."""
STEP_SECONDS = 0.1
"""What a step of this batch takes on the recorded machine, rounded up."""
WINDOW_SECONDS = 4.0
EVALUATE_SECONDS = 4.0
"""Between two looks for drift, of engine time: a demo lives through days of traffic in a minute or two."""
REFRESH_SECONDS = 30.0
"""Between two refreshes once the demo goes on under the dashboard."""

BEFORE_DRIFT = (Traffic("typical"),)
AFTER_DRIFT = (Traffic("hard"),)
PIECE = 512
"""Rounds between two looks at the clock; the ring holds many times as many."""


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
        for name in sorted({part.recording for part in (*BEFORE_DRIFT, *AFTER_DRIFT)}):
            recording = load_recording(name)
            served, held_out = split_requests(recording, HELD_OUT_FRACTION)
            recordings[name] = recording.keep(served)
            self._held_out[name] = recording.rows_of(held_out)
        self._drift_step = rounds // 2 // CONCURRENCY
        script = DriftScript.switch(BEFORE_DRIFT, AFTER_DRIFT, self._drift_step)
        # Stamps of the run lie in the past, so that a page that shows the loop can go on from now.
        self.clock = EngineClock(start=time.time() - STEP_SECONDS * 2 * self._drift_step)
        # A half-life of half a phase: engines know no rounds, only time.
        half_life = max(5.0, STEP_SECONDS * self._drift_step / 2)
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
            evaluate_seconds=EVALUATE_SECONDS,
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
        self._drift = DemoDrift(self.placement, self.engine, self.clock)

    def run(self) -> DemoRun:
        """Serve both phases; needs the placement to be entered."""
        self._profile()
        for index in range(2):
            asked = False
            for part in range(REFRESHES):
                asked |= self._serve(self._rounds // 2 // REFRESHES, index)
                # What an alarm has just asked for need not be done again on a few rows more.
                if part == REFRESHES - 1 or not asked:
                    self.refresh()
            # The version that the last refresh published comes into force with the next step.
            self.engine.step()
            self.run_state.phases.append(self._judge(index))
            if index == 0:
                self.run_state.drift_at = self.engine.ledger.rounds
        self._drift.look()
        self.run_state.ledger = {"emitted": self.engine.ledger.emitted, **self.placement.ledger()}
        self.run_state.episodes = self._drift.episodes(self.run_state.refreshes)
        self.run_state.period = self._read_period()
        return self.run_state

    def _profile(self) -> None:
        """Time steps of every size and report them, as an engine does that is profiled at its start.

        The scheduler of the run stays at the sizes that it likes; without the others there is no curve to
        publish, and nothing to replay a scheduler with.
        """
        gamma = self.placement.adapter.identity.gamma
        sizes = [size for size in unseen_sizes(CONCURRENCY * (1 + gamma)) if size >= CONCURRENCY]
        steps = profile(ReplayTimer(), sizes, budget_seconds=PROFILE_SECONDS).steps
        for seconds, tokens in zip(steps.step_seconds.tolist(), steps.batch_tokens.tolist(), strict=True):
            self.placement.adapter.observe(
                np.zeros((0, gamma)),
                np.zeros(0),
                request=np.zeros(0, dtype=np.uint64),
                step_seconds=seconds,
                verify_seconds=seconds,
                batch_tokens=tokens,
                requests=CONCURRENCY,
            )

    def _explore_all_the_same(self) -> None:
        """Keep exploring: an engine that replays is never idle, which would count as saturation."""
        with self.placement.store.write() as connection:
            known = deployments.get(connection, self.placement.settings.deployment)
            assert known is not None
            settings = merge_settings(known.settings, {"explore": {"mode": "fixed", "explore": EXPLORE}})
            deployments.set_settings(connection, known.id, settings)

    def _serve(self, rounds: int, phase: int) -> bool:
        """Serve so many rounds, looking for drift; say whether an alarm asked for a refresh, which it got."""
        ledger, asked = self.engine.ledger, False
        target = ledger.rounds + rounds
        while ledger.rounds < target:
            self.engine.run(rounds=min(PIECE, target - ledger.rounds))
            self._on_progress(ledger.rounds, "before the drift" if phase == 0 else "after the drift")
            if self._drift.look_if_due():
                self.refresh("alarm")
                asked = True
        return asked

    def refresh(self, trigger: Trigger = "schedule") -> RefreshOutcome:
        """Let the collector catch up, refresh, and wait until the engine can apply what was published."""
        self._on_progress(self.engine.ledger.rounds, "refreshing")
        self.placement.catch_up(self.engine.ledger.emitted)
        if not self.run_state.refreshes:
            self._explore_all_the_same()
        outcome = self.placement.refresh()
        self.run_state.refreshes.append(RefreshMade(self.engine.ledger.rounds, trigger, outcome))
        if outcome.document is not None:
            self.placement.wait_for_version(outcome.document.version)
        return outcome

    def _read_period(self) -> dict[str, Any]:
        """Read the whole run as a report would."""
        end, settings = self.clock.now() + 1.0, self.placement.settings
        with self.placement.store.read() as connection:
            known = deployments.get(connection, settings.deployment)
            assert known is not None
            return period_numbers(connection, known, self._drift.started_at, end, settings.window_seconds)

    def _judge(self, index: int) -> Phase:
        judged = self._judged_rows(BEFORE_DRIFT if index == 0 else AFTER_DRIFT)
        parameters = self.engine.parameters
        made = reversed(self.run_state.refreshes)
        proposal = next(each.outcome.proposal for each in made if each.outcome.proposal is not None)
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
            before=position_report(raw_survival(judged), judged, BINS),
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
