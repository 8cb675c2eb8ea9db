"""What became of every row that replicas numbered."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, select

from calibrator.store import boots, schema
from calibrator.store.boots import LedgerTotals

MAX_BOOTS = 500
"""Process starts shown; the totals count all."""


@dataclass(frozen=True, slots=True)
class BootRow:
    """Rounds of one process start."""

    replica: str
    boot: str
    first_seen: float
    last_seen: float
    folded: int
    lost: int
    dead_lettered: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class Accounting:
    """The ledger of a deployment, and its newest process starts (most recently seen first)."""

    rounds: LedgerTotals
    steps: LedgerTotals
    boots: list[BootRow]


def accounting(connection: Connection, deployment_id: int, limit: int = MAX_BOOTS) -> Accounting:
    """Add up the ledger. ``connection`` is of :meth:`Store.read`."""
    return Accounting(
        boots.totals(connection, deployment_id, "round"),
        boots.totals(connection, deployment_id, "step"),
        _boots(connection, deployment_id, limit),
    )


def _boots(connection: Connection, deployment_id: int, limit: int) -> list[BootRow]:
    table = schema.boots
    rows = connection.execute(
        select(
            table.c.replica,
            table.c.boot,
            table.c.first_seen,
            table.c.last_seen,
            table.c.round_folded,
            table.c.round_lost,
            table.c.round_dead_lettered,
            table.c.round_next_sequence
            - table.c.round_folded
            - table.c.round_lost
            - table.c.round_dead_lettered,
        )
        .where(table.c.deployment_id == deployment_id)
        .order_by(table.c.last_seen.desc(), table.c.id.desc())
        .limit(limit)
    )
    return [BootRow(*row) for row in rows]
