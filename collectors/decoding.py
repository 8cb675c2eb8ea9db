"""From a message of the bus to a verify batch, or to the reason why not."""

from __future__ import annotations

from dataclasses import dataclass

from serving_adapter.contract import ContractError, VerifyBatch
from serving_adapter.contract.events import (
    CONTENT_TYPE_HEADER,
    CONTENT_TYPE_MSGPACK,
    decode,
    peek_rows,
    peek_steps,
)
from serving_adapter.ports import Message


@dataclass(frozen=True, slots=True)
class RowRange:
    """Whose rows a refused message held, and how many it said were lost before them; its steps as well."""

    deployment: str
    replica: str
    boot: str
    first: int
    count: int
    lost: int = 0
    steps_first: int = 0
    steps_count: int = 0
    steps_lost: int = 0


@dataclass(frozen=True, slots=True)
class Decoded:
    """A message with its batch, or (``batch`` None) with the reason why it is refused."""

    message: Message
    batch: VerifyBatch | None
    reason: str = ""
    rows: RowRange | None = None


MAX_ROW_NUMBER = 2**53
"""No replica numbers this many rows; sums over many ledgers must fit the database's integers."""


def decode_message(message: Message) -> Decoded:
    """Decode and validate; whatever is wrong with the message is a reason, never an exception."""
    kind = message.header(CONTENT_TYPE_HEADER, CONTENT_TYPE_MSGPACK)
    try:
        batch = decode(message.value, kind)
        _check_storable(batch)
    except ContractError as error:
        return refused(message, str(error))
    except Exception as error:
        return refused(message, f"unexpected {type(error).__name__}: {error}")
    return Decoded(message, batch)


def refused(message: Message, reason: str, batch: VerifyBatch | None = None) -> Decoded:
    """Refuse a message, decoded or not, with what can still be said of its rows."""
    if batch is not None:
        rows = RowRange(
            batch.deployment,
            batch.replica,
            batch.boot,
            batch.sequence,
            batch.count,
            batch.lost,
            batch.steps_sequence,
            len(batch.steps),
            batch.steps_lost,
        )
        return Decoded(message, None, reason, rows)
    kind = message.header(CONTENT_TYPE_HEADER, CONTENT_TYPE_MSGPACK)
    try:
        peeked = peek_rows(message.value, kind)
        steps = (0, 0, 0) if peeked is None else peek_steps(message.value, kind)
    except Exception:  # it is refused already: what it says of itself is worth no more trouble
        peeked = None
    readable = peeked is not None and all(text.isprintable() for text in peeked[:3])
    if peeked is None or not readable or peeked[3] >= MAX_ROW_NUMBER:
        return Decoded(message, None, reason)
    if steps[0] >= MAX_ROW_NUMBER:
        steps = (0, 0, 0)
    return Decoded(message, None, reason, RowRange(*peeked, *steps))


def _check_storable(batch: VerifyBatch) -> None:
    """Refuse what no database stores: NUL, halves of surrogate pairs, numbers beyond reason."""
    for name in ("deployment", "fingerprint", "replica", "boot"):
        value = getattr(batch, name)
        if not value.isprintable():
            raise ContractError(name, value, "printable characters")
    for name in ("sequence", "steps_sequence"):
        if getattr(batch, name) >= MAX_ROW_NUMBER:
            raise ContractError(name, getattr(batch, name), f"below {MAX_ROW_NUMBER}")
