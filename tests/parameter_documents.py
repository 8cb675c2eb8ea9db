"""Documents to publish, and waiting for what another process does."""

import time
from collections.abc import Callable

from serving_adapter.contract import ParameterDocument, seal

DEADLINE = 30.0


def document(version: int, deployment: str = "chat/eu-1", temperature: float = 1.5) -> ParameterDocument:
    return seal(
        ParameterDocument(
            deployment=deployment,
            fingerprint="f" * 32,
            version=version,
            previous=version - 1,
            gamma=2,
            form="temperature",
            temperatures=[temperature, 2.0],
            offsets=[0.0, 0.0],
            created_at="2026-11-29T10:00:00Z",
        )
    )


def until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
