"""What calibration alarms do to old rows: once the drift is dated, rows from before it are not fitted to.

Half-lives are long, so that a steady mix gives steady parameters; what changes abruptly is forgotten at its
alarm (docs/recency.md). Cuts are stored, so an episode that ends does not bring old rows back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from calibrator.service.deployment_settings import RecencySettings, read_settings
from calibrator.store import episodes, forgetting, runs
from calibrator.store.deployments import Deployment
from calibrator.store.episodes import Episode
from calibrator.store.forgetting import Cut
from calibrator.store.leases import database_now
from calibrator.store.sample import WeightedSample
from calibrator.store.store import Store
from serving_adapter.contract import ContractError

AGAIN_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Forgetting:
    """Cuts that apply to a fit: those stored, and those that open alarms ask for now.

    ``waits`` says which alarms have too few rows behind them yet.
    """

    stored: tuple[Cut, ...]
    new: tuple[Cut, ...]
    waits: tuple[str, ...]

    def evidence(self) -> dict[str, Any]:
        """What a refresh notes, as JSON: times in seconds since 1970 by segment, ``*`` for all."""
        return {
            "forgotten_before": {name or "*": before for name, before in _latest(self).items()},
            "forgotten_now": [
                {"segment": c.segment, "before": c.before, "reason": c.reason} for c in self.new
            ],
            "waits": list(self.waits),
        }


def look(connection: Connection, deployment: Deployment, settings: RecencySettings, now: float) -> Forgetting:
    """Read the cuts in force, and decide which open alarms make new ones.

    An alarm makes a cut at the time its drift began once ``min_rows`` sampled rows have come since. Alarms of
    a drift that began before the latest cut was made are of the drift that was cut at: they make none.
    """
    stored = tuple(forgetting.cuts(connection, deployment.id))
    if not settings.forget:
        return Forgetting(stored, (), ())
    waits: list[str] = []
    wanted: dict[str | None, Cut] = {}
    for alarm in episodes.opened(connection, deployment.id, "calibration"):
        made = [cut.at for cut in stored if cut.segment in (None, alarm.segment)]
        if made and alarm.started_at <= max(made):
            continue
        rows = forgetting.rows_since(
            connection, deployment.id, alarm.started_at, alarm.segment, deployment.fingerprint
        )
        where = _named(alarm)
        if rows < settings.min_rows:
            waits.append(f"alarm of {where}: {rows} of {settings.min_rows} rows since the drift began")
            continue
        known = wanted.get(alarm.segment)
        if known is None or alarm.started_at > known.before:
            reason = f"calibration drift of {where}"
            wanted[alarm.segment] = Cut(alarm.segment, alarm.started_at, now, reason)
    return Forgetting(stored, tuple(wanted.values()), tuple(waits))


def wants_refresh(
    connection: Connection, deployment: Deployment, settings: RecencySettings, now: float
) -> bool:
    """Whether an alarm has gathered the rows that a refresh without the old ones needs."""
    return bool(look(connection, deployment, settings, now).new)


def remember(connection: Connection, deployment_id: int, cuts: Iterable[Cut]) -> int:
    """Make these cuts for good; return how many rows went. One transaction, the caller's."""
    return sum(forgetting.forget(connection, deployment_id, cut) for cut in cuts)


def kept(rows: WeightedSample, found: Forgetting) -> NDArray[np.bool_]:
    """Rows that no cut forgets, shape ``[rows]``."""
    mask = np.ones(len(rows), dtype=np.bool_)
    names: NDArray[Any] | None = None
    for segment, before in _latest(found).items():
        old = rows.arrival < before
        if segment is not None and old.any():
            names = np.array(rows.rounds.segment_names(), dtype=object) if names is None else names
            old &= names == segment
        mask &= ~old
    return mask


def _latest(found: Forgetting) -> dict[str | None, float]:
    latest: dict[str | None, float] = {}
    cuts: Sequence[Cut] = (*found.stored, *found.new)
    for cut in cuts:
        latest[cut.segment] = max(cut.before, latest.get(cut.segment, cut.before))
    return latest


def _named(alarm: Episode) -> str:
    where = "all traffic" if alarm.segment is None else f"segment {alarm.segment}"
    return where if alarm.position is None else f"{where}, position {alarm.position}"


class RefreshAtAlarms:
    """Asks for a run when an alarm has the rows that it needs; a step of the service's loop.

    Asking again is left alone while a run is under way, and for :data:`AGAIN_SECONDS` after one that this
    asked for, so that a refresh that cannot be made is not tried all the time.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def __call__(self, deployment: Deployment) -> None:
        """Look at one deployment; a frozen one, or one whose settings cannot be read, is left alone."""
        try:
            settings = read_settings(deployment.settings)
        except ContractError:
            return
        if deployment.frozen or not settings.recency.forget:
            return
        with self._store.read() as connection:
            now = database_now(connection)
            if not wants_refresh(connection, deployment, settings.recency, now):
                return
            last = runs.latest(connection, [deployment.id]).get(deployment.id)
        if last is not None:
            if last.state in (runs.WAITING, runs.RUNNING):
                return
            if last.trigger == runs.ALARM and last.created_at > now - AGAIN_SECONDS:
                return
        with self._store.write() as connection:
            runs.request_run(connection, deployment.id, runs.ALARM)
