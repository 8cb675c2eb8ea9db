"""How much is explored, what was decided and why, and how much of the traffic is verified."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from calibrator.core.windows import SCALARS
from calibrator.store import refresh_history, windows
from calibrator.store.deployments import Deployment

MAX_DECISIONS = 100


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision of a refresh; costs are per round, and None where nothing is known of step times."""

    at: float
    refresh: int
    explore: float
    reason: str
    extra_verified: float | None
    extra_share: float | None
    tokens_per_second: float | None
    relative_speed: float | None


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of one position was verified; ``share`` is None without traffic."""

    position: int
    drafted: int
    verified: int
    share: float | None


def decisions(connection: Connection, deployment_id: int, limit: int = MAX_DECISIONS) -> list[Decision]:
    """Decisions of the newest refreshes, newest first."""
    return [
        _decision(refresh_id, at, part)
        for refresh_id, at, part in refresh_history.parts(connection, deployment_id, "exploration", limit)
    ]


def coverage(connection: Connection, deployment: Deployment, start: float, end: float) -> list[Coverage]:
    """Drafted and verified positions of the windows in ``[start, end)``."""
    points = windows.query(connection, deployment.id, deployment.gamma, start, end, raw=True, bins=False)
    if not points:
        return [Coverage(k + 1, 0, 0, None) for k in range(deployment.gamma)]
    scalars = points[0].sums.scalars
    drafted = scalars[:, SCALARS.index("drafted")].tolist()
    verified = scalars[:, SCALARS.index("verified")].tolist()
    return [
        Coverage(k, d, v, v / d if d else None)
        for k, (d, v) in enumerate(zip(drafted, verified, strict=True), start=1)
    ]


def _decision(refresh_id: int, at: float, part: dict[str, Any]) -> Decision:
    return Decision(
        at=at,
        refresh=refresh_id,
        explore=part["explore"],
        reason=part["reason"],
        extra_verified=part.get("extra_verified"),
        extra_share=part.get("extra_share"),
        tokens_per_second=part.get("tokens_per_second"),
        relative_speed=part.get("relative_speed"),
    )
