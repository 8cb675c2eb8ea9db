"""Logs of the commands: one event a line on stderr, as text or JSON, times in UTC, no secrets."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

from serving_adapter.settings import MASK, Settings, mask_url

Event = MutableMapping[str, Any]

_TEMPLATE = re.compile(r"([a-z]+(?:_[a-z]+)*)((?: [a-z_]+=%[-+.0-9]*[a-zA-Z])+)")
_TEMPLATE_FIELD = re.compile(r" ([a-z_]+)=%")
_SECRETS = (
    re.compile(r"(dspark_[0-9a-f]{4,32}_)[A-Za-z0-9_-]{8,}"),
    re.compile(r"(?i)(bearer\s+)[A-Za-z0-9._~+/=*-]{8,}"),
    re.compile(r"()\beyJ[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]*"),
)


def configure_logging(settings: Settings) -> None:
    """Send every log record of this process to stderr in the format of the settings."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
    ]
    if settings.log_format == "json":
        final: list[Any] = [
            structlog.processors.format_exc_info,
            mask_secrets,
            structlog.processors.JSONRenderer(),
        ]
        shared.insert(0, fields_of_template)
    else:
        final = [structlog.processors.format_exc_info, mask_secrets, render_text]
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_keep_template)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *final],
            use_get_message=True,
        )
    )
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)
    # The Kafka client tells every reconnect; its errors reach us as exceptions anyway.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    # Every tick of a clock is no event.
    logging.getLogger("apscheduler").setLevel(logging.WARNING)


def fields_of_template(_logger: Any, _method: str, event: Event) -> Event:
    """Take a record that was logged as ``"event_name key=%s ..."`` apart into its event and its fields."""
    template, arguments = getattr(event.get("_record"), "template", ("", None))
    match = _TEMPLATE.fullmatch(str(template))
    if match is None or not isinstance(arguments, tuple):
        return event
    names = _TEMPLATE_FIELD.findall(match[2])
    if len(names) == len(arguments):
        event["event"] = match[1]
        for name, value in zip(names, arguments, strict=True):
            # A field may be called like one that every line has.
            event[name if name not in event else f"{name}_"] = _plain(value)
    return event


def mask_secrets(_logger: Any, _method: str, event: Event) -> Event:
    """Replace tokens and passwords of URLs wherever they stand."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = masked(value)
        elif not isinstance(value, bool | int | float | None):
            event[name] = _masked_inside(value)
    return event


def masked(text: str) -> str:
    """Replace tokens and passwords of URLs.

    >>> masked("GET /v1/me Authorization: Bearer dspark_0123456789ab_c2VjcmV0LXNlY3JldA")
    'GET /v1/me Authorization: Bearer ***'
    """
    for pattern in _SECRETS:
        text = pattern.sub(rf"\g<1>{MASK}", text)
    return re.sub(r"\w+://\S+", lambda url: mask_url(url[0]), text)


def render_text(_logger: Any, _method: str, event: Event) -> str:
    """One line for people: time, level, logger, message, then what the context adds."""
    at, level = str(event.pop("at")).partition(".")[0].rstrip("Z"), str(event.pop("level")).upper()
    name, message, trace = event.pop("logger"), event.pop("event"), event.pop("exception", None)
    context = "".join(f" {key}={value}" for key, value in event.items())
    line = f"{at.replace('T', ' ')}Z {level} {name} {message}{context}"
    return line if trace is None else f"{line}\n{trace}"


def _keep_template(record: logging.LogRecord) -> bool:
    """Keep what the formatter forgets before its processors run."""
    record.template = (record.msg, record.args)
    return True


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str | list | dict | None) else str(value)


def _masked_inside(value: Any) -> Any:
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, list | tuple):
        return [_masked_inside(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _masked_inside(item) for key, item in value.items()}
    return value
