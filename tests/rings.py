"""Rings for tests: names nobody else uses, rows that betray a torn read, processes that write and read."""

import contextlib
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from serving_adapter.contract import EngineIdentity
from serving_adapter.ring import EventRing
from serving_adapter.ring_layout import RingShape
from serving_adapter.shared_memory import segment_path

GAMMA = 3
IDENTITY = EngineIdentity(target="target", drafter="drafter", gamma=GAMMA, engine="test")


@contextlib.contextmanager
def a_ring_name() -> Iterator[str]:
    name = f"dspark-test-{secrets.token_hex(6)}"
    try:
        yield name
    finally:
        path = segment_path(name)
        for left in path.parent.glob(f"{path.name}*"):
            left.unlink(missing_ok=True)


def a_ring(name: str, rounds: int = 64, steps: int = 16, **shape: object) -> EventRing:
    return EventRing.create(
        name, RingShape(GAMMA, rounds, steps, **shape), deployment="d", replica="r", fingerprint="f"
    )


def write_rows(ring: EventRing, count: int, step: tuple[float, ...] | None = None) -> None:
    """Rows of which every column follows from the row number, and their step row where one is given."""
    numbers = np.arange(ring.written, ring.written + count, dtype=np.uint64)
    columns = ring.layout.rounds
    ring.append(
        count,
        [
            (columns["logits"], (numbers[:, None] % 1000 + np.arange(GAMMA)).astype(np.float32)),
            (columns["request"], numbers),
            (columns["step"], numbers % 100_000),
            (columns["accepted"], numbers % 2),
            (columns["verified"], numbers % 2 + 1),
            (columns["scheduled"], numbers % 3),
            (columns["context"]["version"], numbers % 50_000),
            (columns["context"]["share"], np.float32(1)),
        ],
        step,
    )


def assert_rows_are_whole(first: int, columns: dict[str, np.ndarray]) -> None:
    numbers = np.arange(first, first + len(columns["request"]), dtype=np.uint64)
    assert np.array_equal(columns["request"], numbers)
    assert np.array_equal(columns["logits"], (numbers[:, None] % 1000 + np.arange(GAMMA)).astype(np.float16))
    for name, expected in (
        ("step", numbers % 100_000),
        ("accepted", numbers % 2),
        ("verified", numbers % 2 + 1),
        ("scheduled", numbers % 3),
        ("version", numbers % 50_000),
    ):
        assert np.array_equal(columns[name], expected), name


@contextlib.contextmanager
def a_process(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process that runs ``code``, killed at the end if it still runs."""
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=Path(__file__).parent.parent,
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)
