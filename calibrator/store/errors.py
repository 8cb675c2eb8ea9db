"""Errors of the store: one root, one class per thing a caller may do about it."""

from __future__ import annotations


class StoreError(Exception):
    """Anything the store could not do."""


class StoreUnavailableError(StoreError):
    """The database is locked, unreachable, full or read-only: nothing was changed, trying again may help."""


class FileReplacedError(StoreUnavailableError):
    """The file of a SQLite database was deleted or replaced while it was open."""


class DataRefusedError(StoreError):
    """The database refused a value (out of range, not storable): trying the same again will not help."""


class RangeTooLargeError(StoreError):
    """The sums of a range are larger than the database adds up; those of each hour are not."""


class SchemaError(StoreError):
    """The database does not have the tables of this release; run the migrations."""


class FencedError(StoreError):
    """Another collector has moved a position since it was read: this commit was rolled back as a whole."""

    def __init__(self, topic: str, partition: int, expected: int | None) -> None:
        super().__init__(f"{topic}/{partition}: another collector moved the position on from {expected}")
        self.topic = topic
        self.partition = partition


class LeaseLostError(StoreError):
    """Another service has taken over what this one held: this transaction was rolled back as a whole."""


class StaleReadError(StoreError):
    """What a plan was made from has changed meanwhile: read again, plan again."""


class ConflictError(StoreError):
    """A row that may exist only once exists already, with other content."""
