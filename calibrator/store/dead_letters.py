"""What was refused, why, and whose rows it held: a bounded list beside the dead-letter topic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields

from sqlalchemy import Connection, delete, func, select

from calibrator.store import schema
from calibrator.store.boots import BootKey
from calibrator.store.upsert import insert_into

MAX_DEAD_LETTERS = 10_000
MAX_REASON = 500

_table = schema.dead_letters


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One refused message. From ``deployment`` on: whose rows it held, where it could still be read.

    ``rows_lost`` are rounds before ``first_row`` that it said were lost; the same for steps.
    """

    topic: str
    partition: int
    offset: int
    reason: str
    at: float
    size: int
    deployment: str | None = None
    replica: str | None = None
    boot: str | None = None
    first_row: int | None = None
    row_count: int | None = None
    rows_lost: int | None = None
    first_step: int | None = None
    step_count: int | None = None
    steps_lost: int | None = None


def append(connection: Connection, letters: Iterable[DeadLetter], keep: int = MAX_DEAD_LETTERS) -> None:
    """Add letters and drop the oldest beyond ``keep``; one that is there already is left alone."""
    rows = [{**asdict(letter), "reason": storable(letter.reason)[:MAX_REASON]} for letter in letters]
    if not rows:
        return
    statement = insert_into(connection.dialect.name, _table).on_conflict_do_nothing(
        index_elements=["topic", "partition", "offset"]
    )
    connection.execute(statement, rows)
    newest = connection.execute(select(func.max(_table.c.id))).scalar_one()
    connection.execute(delete(_table).where(_table.c.id <= newest - keep))


def recent(connection: Connection, limit: int = 100) -> list[DeadLetter]:
    """Newest first."""
    columns = [_table.c[f.name] for f in fields(DeadLetter)]
    rows = connection.execute(select(*columns).order_by(_table.c.id.desc()).limit(limit))
    return [DeadLetter(*row) for row in rows]


def of_boot(connection: Connection, deployment: str, key: BootKey) -> list[DeadLetter]:
    """Letters of one boot that say which rows they held: what to book when it is first heard of."""
    columns = [_table.c[f.name] for f in fields(DeadLetter)]
    rows = connection.execute(
        select(*columns)
        .where(
            _table.c.deployment == deployment,
            _table.c.replica == key[0],
            _table.c.boot == key[1],
            _table.c.first_row.is_not(None),
        )
        .order_by(_table.c.id)
    )
    return [DeadLetter(*row) for row in rows]


def storable(text: str) -> str:
    """Text that every database takes: no NUL, no half of a surrogate pair."""
    return text.replace("\x00", "\ufffd").encode("utf-8", errors="replace").decode("utf-8")
