"""Is the service ready: database reachable and migrated, parameter store reachable."""

from __future__ import annotations

import contextlib
import logging
import threading
from dataclasses import dataclass

from calibrator.service.web.context import ServiceContext
from calibrator.store.errors import FileReplacedError, SchemaError, StoreError
from serving_adapter.ports import TransportError

log = logging.getLogger(__name__)

KEEP_SECONDS = 1.0
"""Probes of several balancers share one look."""
PROBE = "-"
"""Name that is read to see whether the parameter store answers; no deployment needs to have it."""
OK, UNREACHABLE, NOT_MIGRATED, UNKNOWN = "ok", "unreachable", "not migrated", "unknown"
REPLACED = "file deleted or replaced"


@dataclass(frozen=True, slots=True)
class Readiness:
    """Per part: ``ok``, ``unreachable``, ``file deleted or replaced``, ``not migrated``, ``unknown``."""

    database: str
    schema: str
    parameter_store: str

    @property
    def ready(self) -> bool:
        """Whether everything is ok."""
        return self.database == self.schema == self.parameter_store == OK


class Health:
    """Looks at most once a second. Reasons go to the log: whoever asks need not be anybody."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._known: tuple[float, Readiness] | None = None
        with contextlib.suppress(StoreError):
            context.store.check_file()  # remembers which file it is

    def readiness(self) -> Readiness:
        """Look, or say what was seen within the second."""
        with self._lock:
            now = self._context.clock.monotonic()
            if self._known is not None and now - self._known[0] < KEEP_SECONDS:
                return self._known[1]
            database, schema = self._database()
            found = Readiness(database, schema, self._parameter_store())
            self._known = (self._context.clock.monotonic(), found)
            return found

    def _database(self) -> tuple[str, str]:
        try:
            self._context.store.check_file()
            self._context.store.check_schema()
        except FileReplacedError as error:
            log.warning("not_ready part=database reason=%r", str(error))
            return REPLACED, UNKNOWN
        except SchemaError as error:
            log.warning("not_ready part=schema reason=%r", str(error))
            return OK, NOT_MIGRATED
        except StoreError as error:
            log.warning("not_ready part=database reason=%r", str(error))
            return UNREACHABLE, UNKNOWN
        return OK, OK

    def _parameter_store(self) -> str:
        try:
            self._context.parameter_store.read(PROBE)
        except TransportError as error:
            log.warning("not_ready part=parameter_store reason=%r", str(error))
            return UNREACHABLE
        return OK
