"""Idempotency keys: a mutation that is sent twice under one key is done once and answered twice."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, and_, delete, or_, select, update

from calibrator.store import schema
from calibrator.store.upsert import insert_into

KEEP_SECONDS = 86_400.0
"""An answer can be asked for again this long."""
ABANDONED_SECONDS = 120.0
"""A request without an answer for so long has died with its service: the next one may try."""

_table = schema.idempotency_keys


@dataclass(frozen=True, slots=True)
class Answer:
    """What was answered under a key; ``status`` None while the first request is being worked on."""

    request_sha256: str
    status: int | None
    headers: dict[str, str]
    body: bytes


def claim(connection: Connection, subject: str, key: str, request_sha256: str, now: float) -> Answer | None:
    """Take the key for a request; None when it is ours now, else what is known under it."""
    expired = or_(
        _table.c.created_at < now - KEEP_SECONDS,
        and_(_table.c.status.is_(None), _table.c.created_at < now - ABANDONED_SECONDS),
    )
    connection.execute(delete(_table).where(expired))
    taken = connection.execute(
        insert_into(connection.dialect.name, _table)
        .values(subject=subject, key=key, request_sha256=request_sha256, created_at=now)
        .on_conflict_do_nothing(index_elements=["subject", "key"])
        .returning(_table.c.key)
    ).scalar_one_or_none()
    if taken is not None:
        return None
    row = connection.execute(
        select(_table.c.request_sha256, _table.c.status, _table.c.headers, _table.c.body).where(
            _ours(subject, key)
        )
    ).one()
    return Answer(row.request_sha256, row.status, row.headers or {}, row.body or b"")


def keep(
    connection: Connection, subject: str, key: str, status: int, headers: dict[str, str], body: bytes
) -> None:
    """Keep the answer."""
    connection.execute(
        update(_table).where(_ours(subject, key)).values(status=status, headers=headers, body=body)
    )


def release(connection: Connection, subject: str, key: str) -> None:
    """Forget the key: the request failed on our side and may be tried again."""
    connection.execute(delete(_table).where(_ours(subject, key), _table.c.status.is_(None)))


def _ours(subject: str, key: str) -> ColumnElement[bool]:
    return and_(_table.c.subject == subject, _table.c.key == key)
