"""Prometheus metrics, computed from the stores when they are asked for; docs/metrics.md has them all."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from calibrator.service.reading.replicas import ReplicaCounts, ReportCache
from calibrator.service.reading.snapshot import Snapshot, snapshot
from calibrator.service.web.access import REFUSALS
from calibrator.service.web.context import ServiceContext
from calibrator.service.web.deployment_metrics import TokenCounters, deployment_metrics
from calibrator.store.errors import StoreError

log = logging.getLogger(__name__)

KEEP_SECONDS = 5.0
"""Several Prometheus servers that scrape at once share one look at the stores."""
PREFIX = "dspark_calibrator"


@dataclass(frozen=True, slots=True)
class _Looked:
    at: float
    snapshot: Snapshot | None
    counts: dict[str, ReplicaCounts]
    parameter_store_up: bool


class RequestCounter:
    """Requests by method, route and status; routes are templates, so there are as many as the API has."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._seconds: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()

    def add(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one request."""
        with self._lock:
            self._counts[method, route, str(status)] += 1
            self._seconds[method, route] += seconds  # type: ignore[assignment]

    def metrics(self) -> Iterator[Metric]:
        """Give both counters."""
        with self._lock:
            counts, seconds = dict(self._counts), dict(self._seconds)
        requests = CounterMetricFamily(
            f"{PREFIX}_http_requests", "Requests answered.", labels=["method", "route", "status"]
        )
        for key, count in sorted(counts.items()):
            requests.add_metric(key, count)
        spent = CounterMetricFamily(
            f"{PREFIX}_http_request_seconds", "Seconds spent on them.", labels=["method", "route"]
        )
        for route, total in sorted(seconds.items()):
            spent.add_metric(route, total)
        yield requests
        yield spent


class Metrics(Collector):
    """Collector over the stores; a store that is away makes ``up`` 0, not an error."""

    def __init__(self, context: ServiceContext, reports: ReportCache) -> None:
        self._context = context
        self._reports = reports
        self._tokens = TokenCounters()
        self._looked: _Looked | None = None
        self._lock = threading.Lock()
        self.requests = RequestCounter()
        self.refused: Counter[str] = Counter()
        self.clients: Callable[[], int] = lambda: 0
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def render(self) -> bytes:
        """Give the page in Prometheus' text format."""
        page: bytes = generate_latest(self._registry)
        return page

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are known without asking the stores."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Compute everything."""
        looked = self._look()
        found = looked.snapshot
        up = found is not None
        yield GaugeMetricFamily(f"{PREFIX}_up", "Whether the database can be read.", value=float(up))
        yield GaugeMetricFamily(
            f"{PREFIX}_parameter_store_up",
            "Whether the parameter store can be read.",
            value=float(looked.parameter_store_up),
        )
        yield GaugeMetricFamily(
            f"{PREFIX}_event_clients", "Clients that listen to events.", value=float(self.clients())
        )
        refused = CounterMetricFamily(
            f"{PREFIX}_authentication_failures", "Requests of nobody that is let in.", labels=["reason"]
        )
        for reason in REFUSALS:
            refused.add_metric([reason], self.refused[reason])
        yield refused
        yield from self.requests.metrics()
        if found is not None:
            yield from deployment_metrics(found, looked.counts, self._tokens)

    def _look(self) -> _Looked:
        with self._lock:
            now = self._context.clock.monotonic()
            if self._looked is not None and now - self._looked.at < KEEP_SECONDS:
                return self._looked
            found = self._snapshot()
            counts: dict[str, ReplicaCounts] = {}
            reachable = True
            for name in [each.overview.deployment.name for each in found.measured] if found else ["-"]:
                count = self._reports.counts(name)
                if count is None:
                    reachable = False
                    break
                counts[name] = count
            if found is not None:
                self._tokens.take_in(found)
            self._looked = _Looked(self._context.clock.monotonic(), found, counts, reachable)
            return self._looked

    def _snapshot(self) -> Snapshot | None:
        try:
            with self._context.store.read() as connection:
                return snapshot(connection, self._context.clock.now())
        except StoreError as error:
            log.warning("metrics_without_database reason=%r", str(error))
            return None
