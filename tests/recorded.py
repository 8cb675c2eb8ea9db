"""Recorded rounds for tests."""

from functools import cache
from pathlib import Path

import numpy as np

from serving_adapter.contract import Rounds

DATA = Path(__file__).parents[1] / "serving_adapter" / "engines" / "replay" / "data"
NAMES = ("typical", "typical-greedy", "typical-hot", "hard", "dspark", "dspark-greedy")


@cache
def recorded(name: str) -> Rounds:
    """All rounds of one file, every position verified."""
    with np.load(DATA / f"rounds-{name}.npz") as file:
        return Rounds.build(
            file["logits"],
            file["accepted"],
            request=file["request"],
            step=file["step"],
            draft_stop=file["draft_stop"],
            sampling=file["sampling"],
        )


@cache
def prompts(name: str) -> np.ndarray:
    """Prompt of every round, shape ``[rows]``."""
    with np.load(DATA / f"rounds-{name}.npz") as file:
        return file["prompt"]


def truncate(rounds: Rounds, scheduled: np.ndarray, explore: float = 0.0, seed: int = 0) -> Rounds:
    """The same rounds as a scheduler would have let them through, some explored in full."""
    explored = np.random.default_rng(seed).random(len(rounds)) < explore
    verified = np.where(explored, rounds.gamma, scheduled)
    return Rounds.build(
        rounds.logits,
        np.minimum(rounds.accepted, verified),
        verified=verified,
        scheduled=scheduled,
        request=rounds.request,
        step=rounds.step,
        explore=np.full(len(rounds), explore),
    )
