"""The ledger in SQL: one row per process start of a replica, moved by compare-and-set."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from sqlalchemy import Connection, Row, func, select, tuple_, update

from calibrator.store import schema
from calibrator.store.errors import StaleReadError
from calibrator.store.ledger import RowLedger
from calibrator.store.schema import LEDGER_COUNTERS
from calibrator.store.upsert import insert_into

_table = schema.boots

BootKey = tuple[str, str]
"""(replica, boot)"""


@dataclass(slots=True)
class Boot:
    """What is known of one process start. ``id`` is None and ``revision`` 0 until it is stored."""

    replica: str
    boot: str
    fingerprint: str
    first_seen: float
    last_seen: float
    rounds: RowLedger = field(default_factory=RowLedger)
    steps: RowLedger = field(default_factory=RowLedger)
    unknown_version: int = 0
    misdated: int = 0
    id: int | None = None
    revision: int = 0


@dataclass(frozen=True, slots=True)
class LedgerTotals:
    """Rows of a deployment by what became of them.

    ``emitted = folded + lost + dead_lettered + in_flight``; ``emitted`` is what the replicas numbered as
    far as messages have told.
    """

    emitted: int
    folded: int
    lost: int
    dead_lettered: int
    duplicates_discarded: int
    unknown_version: int = 0
    misdated: int = 0

    @property
    def in_flight(self) -> int:
        """Rows that were numbered and of which nothing is known yet."""
        return self.emitted - self.folded - self.lost - self.dead_lettered

    def to_dict(self) -> dict[str, int]:
        """All counters by name."""
        return {**asdict(self), "in_flight": self.in_flight}


def load(connection: Connection, deployment_id: int, keys: Iterable[BootKey]) -> dict[BootKey, Boot]:
    """Boots of these (replica, boot) pairs, those that exist."""
    wanted = sorted(set(keys))
    found: dict[BootKey, Boot] = {}
    for i in range(0, len(wanted), 400):
        rows = connection.execute(
            select(_table).where(
                _table.c.deployment_id == deployment_id,
                tuple_(_table.c.replica, _table.c.boot).in_(wanted[i : i + 400]),
            )
        )
        found.update({(row.replica, row.boot): _boot(row) for row in rows})
    return found


def save(connection: Connection, deployment_id: int, boot: Boot) -> int:
    """Store a boot if nobody changed it since it was read; return its id.

    Raises
    ------
    StaleReadError
        Somebody did.
    """
    values: dict[str, Any] = {
        "fingerprint": boot.fingerprint,
        "revision": boot.revision + 1,
        "round_intervals": boot.rounds.intervals(),
        "step_intervals": boot.steps.intervals(),
        **{f"round_{name}": value for name, value in boot.rounds.counters().items()},
        **{f"step_{name}": value for name, value in boot.steps.counters().items()},
        "unknown_version": boot.unknown_version,
        "misdated": boot.misdated,
        "first_seen": boot.first_seen,
        "last_seen": boot.last_seen,
    }
    if boot.id is None:
        key = {"deployment_id": deployment_id, "replica": boot.replica, "boot": boot.boot}
        made = connection.execute(
            insert_into(connection.dialect.name, _table)
            .values(**key, **values)
            .on_conflict_do_nothing(index_elements=list(key))
            .returning(_table.c.id)
        ).scalar_one_or_none()
        if made is None:
            raise StaleReadError(f"boot {boot.replica}/{boot.boot} was stored by another collector")
        return int(made)
    changed = connection.execute(
        update(_table).where(_table.c.id == boot.id, _table.c.revision == boot.revision).values(**values)
    ).rowcount
    if changed != 1:
        raise StaleReadError(f"boot {boot.replica}/{boot.boot} was changed by another collector")
    return boot.id


def every(connection: Connection, deployment_id: int, since: float = 0.0) -> list[Boot]:
    """Boots last seen at or after ``since``, in order of replica and first sight."""
    rows = connection.execute(
        select(_table)
        .where(_table.c.deployment_id == deployment_id, _table.c.last_seen >= since)
        .order_by(_table.c.replica, _table.c.first_seen, _table.c.id)
    )
    return [_boot(row) for row in rows]


def fingerprints(connection: Connection, deployment_id: int, since: float = 0.0) -> dict[str, int]:
    """Fingerprint -> replicas' boots that run it and were seen at or after ``since``."""
    rows = connection.execute(
        select(_table.c.fingerprint, func.count())
        .where(_table.c.deployment_id == deployment_id, _table.c.last_seen >= since)
        .group_by(_table.c.fingerprint)
    )
    return {row[0]: row[1] for row in rows}


def totals(connection: Connection, deployment_id: int | None = None, kind: str = "round") -> LedgerTotals:
    """Add up the ledger of a deployment (None: of all).

    Parameters
    ----------
    connection
        From :meth:`Store.read`.
    deployment_id
        Which one.
    kind
        ``round`` or ``step``.
    """
    names = [f"{kind}_{name}" for name in LEDGER_COUNTERS]
    names += ["unknown_version", "misdated"]
    statement = select(*(func.coalesce(func.sum(_table.c[name]), 0) for name in names))
    if deployment_id is not None:
        statement = statement.where(_table.c.deployment_id == deployment_id)
    return LedgerTotals(*(int(value) for value in connection.execute(statement).one()))


def _boot(row: Row[Any]) -> Boot:
    named = row._mapping
    ledgers = {
        kind: RowLedger.load(
            named[f"{kind}_intervals"], {name: named[f"{kind}_{name}"] for name in LEDGER_COUNTERS}
        )
        for kind in ("round", "step")
    }
    return Boot(
        replica=row.replica,
        boot=row.boot,
        fingerprint=row.fingerprint,
        first_seen=row.first_seen,
        last_seen=row.last_seen,
        rounds=ledgers["round"],
        steps=ledgers["step"],
        unknown_version=row.unknown_version,
        misdated=row.misdated,
        id=row.id,
        revision=row.revision,
    )
