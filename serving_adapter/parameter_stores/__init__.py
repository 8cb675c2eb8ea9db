"""The parameter store: Redis where one is named in the settings, else a private Valkey server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from serving_adapter.parameter_stores.redis import RedisParameterStore
    from serving_adapter.settings import Settings

FOLDER = "parameters"
"""Beside the embedded bus: where the embedded store keeps its data, and where other processes find it."""


def open_parameter_store(settings: Settings, answer_seconds: float | None = None) -> RedisParameterStore:
    """Open the store that the settings name.

    Without ``redis_url`` the first process that comes starts a server beside the embedded bus, and the
    others on the machine use it. With ``answer_seconds`` a named server is waited for no longer than that.
    """
    if settings.redis_url:
        from serving_adapter.parameter_stores.redis import RedisParameterStore
        from serving_adapter.parameter_stores.urls import ANSWER_SECONDS

        return RedisParameterStore(
            settings.redis_url, settings.redis_ca_file, answer_seconds or ANSWER_SECONDS
        )
    from serving_adapter.parameter_stores.embedded import EmbeddedParameterStore

    return EmbeddedParameterStore(Path(settings.bus_path).parent / FOLDER if settings.bus_path else None)
