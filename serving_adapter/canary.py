"""Which replicas take a candidate: decided by a hash of the replica, alike on both sides of the store."""

from __future__ import annotations

import hashlib

_SCALE = float(1 << 53)


def place(deployment: str, replica: str) -> float:
    """Place of a replica in (0, 1], the same for every candidate.

    >>> round(place("chat", "pod-0"), 3), round(place("chat", "pod-1"), 3)
    (0.954, 0.364)
    """
    digest = hashlib.sha256(f"{deployment}\0{replica}".encode()).digest()
    return ((int.from_bytes(digest[:8], "big") >> 11) + 1) / _SCALE


def takes_candidate(deployment: str, replica: str, share: float) -> bool:
    """Whether a candidate that is offered with that share is this replica's."""
    return place(deployment, replica) <= share
