"""A verify batch of given rounds."""

from typing import Any

from serving_adapter.contract import Rounds, Steps, VerifyBatch


def batch_of(rounds: Rounds | None, **changes: Any) -> VerifyBatch:
    envelope: dict[str, Any] = {
        "deployment": "chat",
        "fingerprint": "f" * 32,
        "replica": "pod-1",
        "boot": "0b6e8f3e-3b0e-4f57-9d51-3c9a3b1f2a60",
        "sequence": 0,
        "lost": 0,
        "emitted_at": 1_795_946_400_000_000_000,
        "gamma": rounds.gamma if rounds is not None else 2,
        "rounds": rounds,
        "steps": Steps.empty(),
    }
    return VerifyBatch(**(envelope | changes))
