"""The drift alarms of the demo: looked at as the service looks, told in rounds instead of times."""

from __future__ import annotations

import numpy as np

from calibrator.cli.demo_run import EpisodeSeen, RefreshMade
from calibrator.cli.placement import EmbeddedPlacement
from calibrator.service import recency
from calibrator.service.deployment_settings import RecencySettings
from calibrator.service.drift import DriftEvaluator
from calibrator.store import deployments, episodes
from calibrator.store.episodes import Episode
from serving_adapter.engines.replay.engine import ReplayEngine
from serving_adapter.ports import Clock


class DemoDrift:
    """Looks for drift every ``DSPARK_EVALUATE_SECONDS`` of engine time.

    Parameters
    ----------
    placement
        Whose store is looked at.
    engine
        Whose rounds are counted.
    clock
        Engine time.
    """

    def __init__(self, placement: EmbeddedPlacement, engine: ReplayEngine, clock: Clock) -> None:
        self._placement, self._engine, self._clock = placement, engine, clock
        self._name = placement.settings.deployment
        self._evaluator = DriftEvaluator(placement.store, clock)
        self.started_at = self._looked_at = clock.now()
        # Engine time and rounds, piece by piece: what the store dates by the one is told by the other.
        self._trace: list[tuple[float, int]] = [(self.started_at, 0)]

    def look_if_due(self) -> bool:
        """Look if it is time; say whether an alarm now asks for a refresh."""
        now = self._clock.now()
        self._trace.append((now, self._engine.ledger.rounds))
        if now - self._looked_at < self._placement.settings.evaluate_seconds:
            return False
        self.look()
        with self._placement.store.read() as connection:
            known = deployments.get(connection, self._name)
            assert known is not None
            # An alarm asks when it has the rows behind it that a refit without older ones needs.
            return recency.wants_refresh(connection, known, RecencySettings(), now)

    def look(self) -> None:
        """Let the collector catch up and take one look."""
        self._placement.catch_up(self._engine.ledger.emitted)
        self._looked_at = self._clock.now()
        self._evaluator.evaluate(self._name, self._looked_at)

    def episodes(self, refreshes: list[RefreshMade]) -> list[EpisodeSeen]:
        """Read every episode, oldest first."""
        with self._placement.store.read() as connection:
            known = deployments.get(connection, self._name)
            assert known is not None
            found = episodes.history(connection, known.id)[0]
        return [self._seen(episode, refreshes) for episode in reversed(found)]

    def _seen(self, episode: Episode, refreshes: list[RefreshMade]) -> EpisodeSeen:
        began, alarmed = self._rounds_at(episode.started_at), self._rounds_at(episode.alarmed_at)
        if episode.ended_at is None:
            return EpisodeSeen(episode, began, alarmed, None, None)
        ended = self._rounds_at(episode.ended_at)
        newer = [
            made.outcome.document.version
            for made in refreshes
            if made.outcome.document is not None and alarmed <= made.rounds < ended
        ]
        return EpisodeSeen(episode, began, alarmed, ended, newer[-1] if newer else None)

    def _rounds_at(self, moment: float) -> int:
        times, rounds = zip(*self._trace, strict=True)
        return round(float(np.interp(moment, times, rounds)))
