"""The drift evaluator: reads what collectors added up, raises each alarm once and ends it once.

Collectors only add evidence, in the transaction that stores the rows. One evaluator at a time takes the
difference since the last look, for each deployment: its state is replaced by compare-and-set in the
transaction that opens and ends episodes, so that of two services that look at once one wins and the other
has done nothing, and a crash at any point leaves either the state before the look or the one after it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from calibrator.service.drift_findings import ongoing
from calibrator.service.drift_options import DriftOptions
from calibrator.service.drift_state import WatchState
from calibrator.service.traffic_watch import TrafficWatch
from calibrator.store import cost_drift, deployments, drift_state, drift_sums, episodes, parameters, traffic
from calibrator.store.deployments import Deployment
from calibrator.store.episodes import Episode
from calibrator.store.errors import StaleReadError
from calibrator.store.store import Store
from serving_adapter.ports import Clock

log = logging.getLogger(__name__)

EVALUATE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class _Changes:
    """Episodes to open, to end, and those that last and of which more is known."""

    opened: Sequence[Episode]
    ended: Sequence[Episode]
    described: Sequence[Episode]


class DriftEvaluator:
    """Watches deployments for drift of calibration, acceptance, traffic and step costs.

    Parameters
    ----------
    store
        Migrated.
    clock
        Dates alarms, and decides when :meth:`step` is due.
    options
        What counts as drift; the same in every service.
    evaluate_seconds
        Time between two looks at a deployment.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        options: DriftOptions | None = None,
        *,
        evaluate_seconds: float = EVALUATE_SECONDS,
    ) -> None:
        self._store = store
        self._clock = clock
        self._options = options or DriftOptions()
        self._evaluate_seconds = evaluate_seconds
        self._due: dict[str, float] = {}

    def step(self, deployment: Deployment) -> list[Episode]:
        """Evaluate a deployment if its time has come: a step of the calibrator's loop."""
        now = self._clock.monotonic()
        if now < self._due.get(deployment.name, now):
            return []
        self._due[deployment.name] = now + self._evaluate_seconds
        return self.evaluate(deployment.name, self._clock.now())

    def evaluate(self, name: str, now: float) -> list[Episode]:
        """Take one look at a deployment.

        Parameters
        ----------
        name
            Of the deployment.
        now
            Seconds since 1970.

        Returns
        -------
        Episodes that this look opened (``ended_at`` is None) or ended, none when another evaluator was
        faster.

        Raises
        ------
        KeyError
            There is no deployment of that name.
        StoreError
            The store cannot be reached; nothing was changed.
        """
        with self._store.read() as connection:
            deployment = deployments.get(connection, name)
            if deployment is None:
                raise KeyError(name)
            read = drift_state.load(connection, deployment.id)
            known = WatchState.from_builtins(read.state) if read.revision else WatchState()
            evidence = drift_sums.load(connection, deployment.id, deployment.gamma, known.version)
            totals = cost_drift.totals(connection, deployment.id)
            before = read.evaluated_at or _first_rows(connection, deployment, now)
            made = parameters.created(connection, deployment.id, known.version)
            changed = bool(read.revision) and known.fingerprint != deployment.fingerprint
            if changed:
                known = known.forgotten(deployment.gamma, evidence, totals, now)
            known = replace(
                known,
                fingerprint=deployment.fingerprint,
                tempering=known.tempering.refreshed(connection, deployment, known.version, evidence, now),
            )
            state = known.look(deployment.gamma, evidence, totals, before, now, self._options, made)
            if changed or (read.revision and state.version != known.version):
                shifts = TrafficWatch.restart(connection, deployment)
            else:
                shifts = state.traffic.look(connection, deployment, self._options)
            state = replace(state, traffic=shifts)
            lasting = episodes.opened(connection, deployment.id)
        changes = _changes(lasting, ongoing(state, self._options, now), now)
        try:
            stored = self._store_look(deployment, read, now, state, changes)
        except StaleReadError:
            return []
        for episode in stored:
            _log(name, episode)
        return stored

    def _store_look(
        self,
        deployment: Deployment,
        read: drift_state.DriftState,
        now: float,
        state: WatchState,
        changes: _Changes,
    ) -> list[Episode]:
        built = state.to_builtins()
        idle = read.revision and built == read.state
        if idle and not (changes.opened or changes.ended):
            return []
        with self._store.write() as connection:
            drift_state.save(connection, deployment.id, read, now, built)
            for episode in changes.ended:
                episodes.end(connection, episode.id, now)
            for episode in changes.described:
                episodes.describe(connection, episode)
            opened = [
                replace(episode, id=episodes.start(connection, deployment.id, episode))
                for episode in changes.opened
            ]
        return [*opened, *changes.ended]


def open_calibration_alarms(store: Store, deployment: Deployment) -> float | None:
    """Return since when the calibration in force has been wrong, None while no alarm says so.

    The earliest estimate of all segments and positions in alarm: every row that came before it is of the
    time before the drift.
    """
    with store.read() as connection:
        alarms = episodes.opened(connection, deployment.id, "calibration")
    return min((alarm.started_at for alarm in alarms), default=None)


def _first_rows(connection: Connection, deployment: Deployment, now: float) -> float:
    """When what is looked at for the first time began: with the first rows, not with their deployment."""
    span = traffic.span(connection, deployment.id)
    return deployment.created_at if span is None else min(now, max(deployment.created_at, float(span[0])))


def _changes(lasting: Sequence[Episode], now_ongoing: Sequence[Episode], now: float) -> _Changes:
    """Compare the episodes that are open with those that should be."""
    wanted = {_identity(episode): episode for episode in now_ongoing}
    known = {_identity(episode): episode for episode in lasting}
    described = []
    for identity, episode in known.items():
        found = wanted.get(identity)
        # Of costs, the first steps of a drift do not always tell its kind yet.
        if found is not None and episode.kind == "cost" and found.remedy != episode.remedy:
            described.append(replace(episode, gap=found.gap, summary=found.summary, remedy=found.remedy))
    return _Changes(
        opened=[episode for identity, episode in wanted.items() if identity not in known],
        ended=[
            replace(episode, ended_at=now) for identity, episode in known.items() if identity not in wanted
        ],
        described=described,
    )


def _identity(episode: Episode) -> tuple[object, ...]:
    """Of calibration also the version: another one is another set, and its drift another episode."""
    return (*episode.key, episode.version if episode.kind == "calibration" else None)


def _log(name: str, episode: Episode) -> None:
    ended = episode.ended_at is not None
    fields = {
        "kind": episode.kind,
        "segment": episode.segment,
        "position": episode.position,
        "load_regime": episode.load_regime,
        "context_bucket": episode.context_bucket,
        "direction": episode.direction,
        "version": episode.version,
        "gap": None if episode.gap is None else round(episode.gap, 4),
    }
    told = " ".join(f"{key}={value}" for key, value in fields.items() if value is not None)
    if ended:
        log.info("drift_ended deployment=%s episode=%d %s", name, episode.id, told)
    else:
        log.warning(
            "drift_alarm deployment=%s episode=%d %s summary=%r remedy=%r",
            name, episode.id, told, episode.summary, episode.remedy,
        )  # fmt: skip
