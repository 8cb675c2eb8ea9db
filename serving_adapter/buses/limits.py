"""How large a message may be on any bus."""

from __future__ import annotations

from serving_adapter.ports import OutgoingMessage

TOPIC_MAX_MESSAGE_BYTES = 8 * 1024 * 1024
"""Limit of the topics. Twice what the contract decodes, so that an oversized message of somebody else can
still be moved to the dead letters with its reason."""

MAX_BUS_MESSAGE_BYTES = TOPIC_MAX_MESSAGE_BYTES - 4096
"""Key, value and headers together; the rest is room for what the bus adds around them."""

TRUNCATED_HEADER = "truncated-from"
"""Size of the value in bytes before it was cut."""


def message_bytes(message: OutgoingMessage) -> int:
    """Bytes of key, value and headers."""
    headers = sum(len(name.encode()) + len(value) + 16 for name, value in message.headers)
    return len(message.key) + len(message.value) + headers


def cut_to_size(message: OutgoingMessage, limit: int) -> OutgoingMessage:
    """Cut the value so that the message keeps to ``limit`` bytes, and say so in a header."""
    header = (TRUNCATED_HEADER, str(len(message.value)).encode())
    headers = (*message.headers, header)
    room = limit - message_bytes(OutgoingMessage(message.key, b"", headers))
    return OutgoingMessage(message.key, message.value[: max(0, room)], headers)
