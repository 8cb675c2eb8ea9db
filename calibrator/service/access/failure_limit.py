"""How many wrong tokens one address may try before it is told to wait."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address

MOST_AT_ONCE = 30
SECONDS_EACH = 2.0
"""In the long run one failure per so many seconds is answered as such."""
MOST_ADDRESSES = 4096
"""Addresses that are remembered; beyond it the one that failed least recently is forgotten."""


class FailureLimit:
    """Counts failures by address: a burst is let through, then a steady rate (generic cell rate algorithm).

    What it remembers of an address is one number, and of :data:`MOST_ADDRESSES` addresses at most. To be used
    by one thread.

    Parameters
    ----------
    monotonic
        Seconds that never go back.
    most_at_once, seconds_each
        Failures in a row, and time after which one more is let through.

    >>> limit = FailureLimit(lambda: 0.0, most_at_once=2, seconds_each=5.0)
    >>> [limit.failed("192.0.2.1") for _ in range(3)], limit.failed("192.0.2.2")
    ([0.0, 0.0, 5.0], 0.0)
    """

    def __init__(
        self,
        monotonic: Callable[[], float],
        most_at_once: int = MOST_AT_ONCE,
        seconds_each: float = SECONDS_EACH,
    ) -> None:
        self._monotonic = monotonic
        self._each = seconds_each
        self._ahead = (most_at_once - 1) * seconds_each
        self._free_at: OrderedDict[str, float] = OrderedDict()

    def failed(self, address: str) -> float:
        """Book a failure; return 0 within the limit, else the seconds until the next one is within it.

        What is beyond the limit does not count: whoever goes on does not wait longer for it.
        """
        now, who = self._monotonic(), _network(address)
        free_at = max(self._free_at.get(who, now), now)
        wait = free_at - now - self._ahead
        if wait > 0:
            return wait
        self._free_at[who] = free_at + self._each
        self._free_at.move_to_end(who)
        if len(self._free_at) > MOST_ADDRESSES:
            self._free_at.popitem(last=False)
        return 0.0


def _network(address: str) -> str:
    """Who an address stands for: with IPv6 everybody has 2**64 of them."""
    try:
        parsed = ip_address(address)
    except ValueError:  # a socket file, or nothing
        return address
    if isinstance(parsed, IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(IPv6Address(int(parsed) >> 64 << 64))
    return str(parsed)
