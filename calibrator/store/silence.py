"""Ending transactions of ours whose process has fallen silent, so that the others can go on.

PostgreSQL's ``idle_in_transaction_session_timeout`` is meant for this and misses it: its clock only runs
after the answer that ends a command. In the middle of a COPY it does not run, nor after psycopg's
``executemany``, whose last word is a request to flush. A collector frozen there would keep its locks, and
with them its whole deployment, for as long as it stays frozen.
"""

from __future__ import annotations

import logging

from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError

from calibrator.store.engine import APPLICATION, IDLE_SECONDS

log = logging.getLogger(__name__)

_LOCK_NOT_AVAILABLE = "55P03"
_END = text(
    "SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE datname = current_database() AND usename = current_user AND application_name = :application "
    "AND pid <> pg_backend_pid() AND xact_start IS NOT NULL AND wait_event = 'ClientRead' "
    "AND state_change < clock_timestamp() - make_interval(secs => :seconds)"
)


def waited_for_lock(error: BaseException) -> bool:
    """Whether a statement failed because a lock was not to be had in time."""
    cause = error.__cause__
    return isinstance(cause, DBAPIError) and getattr(cause.orig, "sqlstate", None) == _LOCK_NOT_AVAILABLE


def end_silent_transactions(engine: Engine, seconds: float = IDLE_SECONDS) -> int:
    """End transactions of this program and account that have waited for their client for so long.

    Returns
    -------
    How many. A client that wakes up finds its connection closed and nothing of its transaction kept.
    """
    try:
        with engine.connect() as connection, connection.begin():
            ended = connection.execute(_END, {"application": APPLICATION, "seconds": seconds}).all()
    except DBAPIError as error:
        log.warning("store_silent_transactions_stay reason=%r", str(error.orig))
        return 0
    if ended:
        log.warning("store_silent_transactions_ended processes=%s", [row[0] for row in ended])
    return len(ended)
