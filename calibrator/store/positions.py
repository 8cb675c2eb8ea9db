"""How far each partition is read: moved by compare-and-set, in the transaction of what was read."""

from __future__ import annotations

from sqlalchemy import Connection, insert, select, update

from calibrator.store import schema
from calibrator.store.errors import FencedError
from calibrator.store.upsert import insert_into

_table = schema.positions


def read(connection: Connection, group: str, topic: str | None = None) -> dict[tuple[str, int], int]:
    """(topic, partition) -> offset of the next message to read."""
    statement = select(_table.c.topic, _table.c.partition, _table.c.next_offset).where(
        _table.c.consumer_group == group
    )
    if topic is not None:
        statement = statement.where(_table.c.topic == topic)
    return {(row[0], row[1]): row[2] for row in connection.execute(statement)}


def advance(
    connection: Connection,
    group: str,
    topic: str,
    partition: int,
    expected: int | None,
    next_offset: int,
    at: float,
) -> None:
    """Move one position from ``expected`` (None: never read) to ``next_offset``.

    Raises
    ------
    FencedError
        The position is not where it was expected: another collector has taken over. The caller's
        transaction must be rolled back, which leaving it by this exception does.
    """
    if expected is None:
        row = {"consumer_group": group, "topic": topic, "partition": partition}
        statement = insert_into(connection.dialect.name, _table).on_conflict_do_nothing(
            index_elements=list(row)
        )
        statement = statement.values(**row, next_offset=next_offset, updated_at=at)
        changed = len(connection.execute(statement.returning(_table.c.next_offset)).all())
    else:
        changed = connection.execute(
            update(_table)
            .where(
                _table.c.consumer_group == group,
                _table.c.topic == topic,
                _table.c.partition == partition,
                _table.c.next_offset == expected,
            )
            .values(next_offset=next_offset, updated_at=at)
        ).rowcount
    if changed != 1:
        raise FencedError(topic, partition, expected)


def place(
    connection: Connection, group: str, topic: str, partition: int, next_offset: int, at: float
) -> None:
    """Set a position by hand, for an operator who wants to skip or to read again."""
    where = (
        _table.c.consumer_group == group,
        _table.c.topic == topic,
        _table.c.partition == partition,
    )
    values = {"next_offset": next_offset, "updated_at": at}
    if not connection.execute(update(_table).where(*where).values(**values)).rowcount:
        connection.execute(
            insert(_table).values(consumer_group=group, topic=topic, partition=partition, **values)
        )
