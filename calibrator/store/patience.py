"""How long a request waits for a database that does not answer.

A server that was stopped, or whose machine hangs, keeps its connections open: the kernel on the other side
still acknowledges, so neither keepalives nor ``tcp_user_timeout`` notice, and a ``statement_timeout`` is kept
by the very process that stands still. Who answers people therefore counts the seconds itself, and lets go.

Work that nobody waits for (collectors, refreshes) has no such limit: its transactions may be long, and when
the server goes on, so do they.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from time import monotonic
from typing import Any

import psycopg
from sqlalchemy import Engine, event

_SHORTEST_CONNECT = 2
"""Seconds: psycopg waits for a connection at least this long."""


@dataclass(slots=True)
class Patience:
    """Seconds that may still be spent on waiting for the database, however many statements that are."""

    left: float

    def spend(self, seconds: float) -> None:
        """Take off what was waited."""
        self.left -= seconds


_patience: ContextVar[Patience | None] = ContextVar("database_patience", default=None)


@contextmanager
def patience(seconds: float) -> Iterator[Patience]:
    """Let everything inside, in this context and in threads that it is copied to, wait so long altogether."""
    given = Patience(seconds)
    token = _patience.set(given)
    try:
        yield given
    finally:
        _patience.reset(token)


class ImpatientConnection(psycopg.Connection[Any]):
    """A connection that is given up when the patience of its user is exhausted."""

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **options: Any) -> Any:
        """Wait for an answer as psycopg does, but no longer than there is patience for.

        Raises
        ------
        psycopg.OperationalError
            The server did not answer in time. The connection is closed: what it was doing is unknown.
        """
        found = _patience.get()
        if found is None:
            return super().wait(gen, *args, **options)
        began = monotonic()
        try:
            return super().wait(_limited(gen, began + max(found.left, 0.0)), *args, **options)
        except _NoAnswerError as error:
            self.pgconn.finish()
            raise psycopg.OperationalError("the server does not answer") from error
        finally:
            found.spend(monotonic() - began)


class _NoAnswerError(Exception):
    """Raised inside psycopg's wait, where it reports that nothing came for a while."""


def _limited(gen: Generator[Any, Any, Any], deadline: float) -> Generator[Any, Any, Any]:
    try:
        state = next(gen)
        while True:
            ready = yield state
            if not ready and monotonic() >= deadline:
                raise _NoAnswerError
            state = gen.send(ready)
    except StopIteration as ended:
        return ended.value


def keep_patience(engine: Engine) -> None:
    """Make the connections of a PostgreSQL engine impatient ones, also while they are being opened."""
    event.listen(engine, "do_connect", _connect)


def _connect(_dialect: Any, _record: Any, arguments: Any, options: dict[str, Any]) -> Any:
    found = _patience.get()
    if found is None:
        return ImpatientConnection.connect(*arguments, **options)
    if found.left <= 0.0:
        raise psycopg.OperationalError("the server does not answer")
    seconds = min(int(options["connect_timeout"]), max(_SHORTEST_CONNECT, int(found.left)))
    began = monotonic()
    try:
        return ImpatientConnection.connect(*arguments, **{**options, "connect_timeout": seconds})
    finally:
        found.spend(monotonic() - began)
