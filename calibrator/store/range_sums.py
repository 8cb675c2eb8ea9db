"""Sums over a range of time that no integer of the database holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from sqlalchemy.exc import DBAPIError

from calibrator.store.errors import RangeTooLargeError

_LATEST = 4_102_444_800.0  # 2100: all of time, for which no calendar has a name


@contextmanager
def adding_up(start: float, end: float) -> Iterator[None]:
    """Tell sums that are too large from a database that is away.

    Every hour is kept below what can be added up (:func:`calibrator.store.windows.add`); many of them, full
    of rows that were explored with tiny probabilities, are not.

    Parameters
    ----------
    start, end
        The range that the statement inside adds up, seconds since 1970.

    Raises
    ------
    RangeTooLargeError
        Naming the range.
    """
    try:
        yield
    except DBAPIError as error:
        # SQLite has no code for it; PostgreSQL's is numeric_value_out_of_range.
        if str(error.orig) != "integer overflow" and getattr(error.orig, "sqlstate", None) != "22003":
            raise
        raise RangeTooLargeError(
            f"from {_time(start)} to {_time(end)}: got sums larger than 64 bits hold, "
            "expected a shorter range or step: rows were explored with a very small probability"
        ) from error


def _time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(min(seconds, _LATEST), UTC):%Y-%m-%dT%H:%M:%SZ}"
