"""Counters of one collector, read by whoever asks: a progress line, a scrape, a test."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from collectors.result import COUNTERS, IngestResult

_RATE_SECONDS = 5.0


@dataclass(slots=True)
class CollectorStatistics:
    """What a collector has done since it started.

    ``ingested`` are the sums of all ingests, ``lag`` messages not yet read per partition as last asked,
    ``rows_per_second`` rounds folded, averaged over a few seconds. ``store_errors`` and
    ``transport_errors`` are attempts that failed and were made again; ``fenced`` commits that were undone
    because another collector had taken over; ``rewinds`` partitions whose log began anew.
    """

    started_at: float
    ingested: IngestResult = field(default_factory=IngestResult)
    ingests: int = 0
    partitions: set[int] = field(default_factory=set)
    rebalances: int = 0
    fenced: int = 0
    rewinds: int = 0
    store_errors: int = 0
    transport_errors: int = 0
    last_error: str = ""
    last_ingest_at: float = 0.0
    lag: dict[int, int] = field(default_factory=dict)
    rows_per_second: float = 0.0
    _rate_from: tuple[float, int] = (0.0, 0)

    def ingest_done(self, result: IngestResult, now: float) -> None:
        """Count one ingest."""
        self.ingested.add(result)
        self.ingests += 1
        self.last_ingest_at = now

    def update_rate(self, monotonic: float) -> None:
        """Refresh ``rows_per_second``; call now and then."""
        since, rows = self._rate_from
        if not since:
            self._rate_from = (monotonic, self.ingested.folded)
        elif monotonic - since >= _RATE_SECONDS:
            self.rows_per_second = (self.ingested.folded - rows) / (monotonic - since)
            self._rate_from = (monotonic, self.ingested.folded)

    @property
    def total_lag(self) -> int:
        """Messages not yet read over all assigned partitions."""
        return sum(self.lag.values())

    def to_dict(self) -> dict[str, Any]:
        """All counters by name, as JSON."""
        return {
            **{name: getattr(self.ingested, name) for name in COUNTERS},
            "ingests": self.ingests,
            "partitions": sorted(self.partitions),
            "rebalances": self.rebalances,
            "fenced": self.fenced,
            "rewinds": self.rewinds,
            "store_errors": self.store_errors,
            "transport_errors": self.transport_errors,
            "last_error": self.last_error,
            "last_ingest_at": self.last_ingest_at,
            "lag": self.total_lag,
            "rows_per_second": self.rows_per_second,
        }
