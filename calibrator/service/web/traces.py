"""OpenTelemetry traces, where the usual OTEL_ variables ask for them and the extra is installed."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

log = logging.getLogger(__name__)

SERVICE_NAME = "dspark-calibrator"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def set_up_traces(environment: Mapping[str, str] | None = None) -> bool:
    """Send the spans that FastAPI makes of requests to the collector that the environment names.

    Returns
    -------
    Whether traces are sent.
    """
    environment = os.environ if environment is None else environment
    disabled = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if disabled or not any(environment.get(name) for name in _ENDPOINTS):
        return False
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        log.warning("traces_off reason=%r", f"{error}: pip install 'dspark-calibrator[traces]'")
        return False
    named = {"service.name": environment.get("OTEL_SERVICE_NAME", SERVICE_NAME)}
    provider = TracerProvider(resource=Resource.create(named))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    log.info("traces_on endpoint=%s", next(filter(None, map(environment.get, _ENDPOINTS))))
    return True
