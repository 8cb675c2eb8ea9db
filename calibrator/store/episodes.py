"""Episodes of drift: when each began, was noticed and ended, and what helps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Literal

from sqlalchemy import Connection, func, insert, select, update

from calibrator.store import schema

_table = schema.episodes

EpisodeKind = Literal["calibration", "acceptance", "traffic", "cost"]
EPISODE_KINDS: tuple[EpisodeKind, ...] = ("calibration", "acceptance", "traffic", "cost")
EpisodeState = Literal["open", "closed", "all"]
EpisodeKey = tuple[str, str | None, int | None, int | None, int | None, str | None]
"""(kind, segment, position, load regime, context bucket, direction): one episode of each at a time."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One stretch of drift; ``id`` is 0 until it is stored.

    Parameters
    ----------
    segment, position
        Where, None: not of one segment or (1-based) draft position.
    load_regime, context_bucket
        Of step costs that drifted there only (:func:`calibrator.core.cost.buckets.load_regime`).
    direction
        ``above`` or ``below``: where labels, or acceptance, lie; ``slower`` or ``faster`` for steps.
    started_at
        Estimate of when it began; ``alarmed_at`` is when that was sure.
    gap
        Calibration: mean prediction less mean label. Acceptance: distance to its reference. Traffic:
        Kolmogorov-Smirnov distance. Cost: relative deviation of the median step.
    version
        Of the parameters that were watched.
    """

    kind: EpisodeKind
    segment: str | None
    position: int | None
    load_regime: int | None
    context_bucket: int | None
    direction: str | None
    started_at: float
    alarmed_at: float
    ended_at: float | None
    gap: float | None
    summary: str
    remedy: str
    version: int | None
    id: int = 0

    @property
    def key(self) -> EpisodeKey:
        """What may be open once at a time."""
        return (
            self.kind,
            self.segment,
            self.position,
            self.load_regime,
            self.context_bucket,
            self.direction,
        )


_COLUMNS = [_table.c[field.name] for field in fields(Episode)]


def start(connection: Connection, deployment_id: int, episode: Episode) -> int:
    """Store an episode; return its id. Whoever holds the drift state of the deployment may."""
    values = asdict(episode)
    del values["id"]
    made = connection.execute(
        insert(_table).values(deployment_id=deployment_id, **values).returning(_table.c.id)
    )
    return int(made.scalar_one())


def end(connection: Connection, episode_id: int, at: float) -> None:
    """Note that an episode is over."""
    connection.execute(update(_table).where(_table.c.id == episode_id).values(ended_at=at))


def describe(connection: Connection, episode: Episode) -> None:
    """Store what more is known of an open episode: its gap, summary and remedy."""
    connection.execute(
        update(_table)
        .where(_table.c.id == episode.id)
        .values(gap=episode.gap, summary=episode.summary, remedy=episode.remedy)
    )


def opened(connection: Connection, deployment_id: int, kind: EpisodeKind | None = None) -> list[Episode]:
    """Episodes that last, in order of alarm."""
    statement = select(*_COLUMNS).where(_table.c.deployment_id == deployment_id, _table.c.ended_at.is_(None))
    if kind is not None:
        statement = statement.where(_table.c.kind == kind)
    return [Episode(*row) for row in connection.execute(statement.order_by(_table.c.id))]


def history(
    connection: Connection,
    deployment_id: int,
    *,
    state: EpisodeState = "all",
    kinds: Sequence[EpisodeKind] = (),
    before: int | None = None,
    limit: int = 100,
) -> tuple[list[Episode], int | None]:
    """One page of episodes, newest alarm first.

    Parameters
    ----------
    connection
        From :meth:`Store.read`.
    deployment_id
        Whose.
    state
        Only those that last (``open``) or are over (``closed``).
    kinds
        Only these; none given: all.
    before
        Cursor: what the page before returned.
    limit
        Episodes per page.

    Returns
    -------
    The episodes, and the cursor of the next page, None on the last one.
    """
    statement = select(*_COLUMNS).where(_table.c.deployment_id == deployment_id)
    if state != "all":
        lasts = _table.c.ended_at.is_(None)
        statement = statement.where(lasts if state == "open" else ~lasts)
    if kinds:
        statement = statement.where(_table.c.kind.in_(kinds))
    if before is not None:
        statement = statement.where(_table.c.id < before)
    # Ids rise with the time of the alarm: one evaluator at a time writes them.
    found = [
        Episode(*row) for row in connection.execute(statement.order_by(_table.c.id.desc()).limit(limit + 1))
    ]
    page = found[:limit]
    return page, page[-1].id if len(found) > limit else None


def open_kinds(connection: Connection) -> dict[int, dict[str, int]]:
    """Deployment id -> kind -> episodes that last, for an overview of all deployments."""
    rows = connection.execute(
        select(_table.c.deployment_id, _table.c.kind, func.count())
        .where(_table.c.ended_at.is_(None))
        .group_by(_table.c.deployment_id, _table.c.kind)
    )
    kinds: dict[int, dict[str, int]] = {}
    for deployment_id, kind, count in rows:
        kinds.setdefault(int(deployment_id), {})[kind] = int(count)
    return kinds
