"""Refused messages on their way to the dead-letter topic."""

from __future__ import annotations

from serving_adapter.ports import Message, OutgoingMessage

REASON_HEADER = "dead-letter-reason"
TOPIC_HEADER = "dead-letter-topic"
PARTITION_HEADER = "dead-letter-partition"
OFFSET_HEADER = "dead-letter-offset"
SIZE_HEADER = "dead-letter-size"

MAX_VALUE_BYTES = 512 * 1024
"""Brokers take a megabyte by default. Of a message larger than this its beginning is kept: a letter that
the dead-letter topic refuses would stop its neighbours for ever."""

MAX_REASON_BYTES = 2_000


def letter(message: Message, reason: str) -> OutgoingMessage:
    """Wrap a refused message with the reason, its own headers, and where it came from.

    The key is ``topic/partition/offset``: after a crash the same message may be published again, and
    whoever reads the topic recognises it.
    """
    place = f"{message.topic}/{message.partition}/{message.offset}"
    room = MAX_VALUE_BYTES
    headers = []
    for name, value in message.headers:
        room -= len(name) + len(value)
        if room < MAX_VALUE_BYTES // 2:
            break
        headers.append((name, value))
    return OutgoingMessage(
        key=place.encode("utf-8", errors="replace"),
        value=message.value[:room],
        headers=(
            *headers,
            (REASON_HEADER, reason.encode("utf-8", errors="replace")[:MAX_REASON_BYTES]),
            (TOPIC_HEADER, message.topic.encode()),
            (PARTITION_HEADER, str(message.partition).encode()),
            (OFFSET_HEADER, str(message.offset).encode()),
            (SIZE_HEADER, str(len(message.value)).encode()),
        ),
    )
