"""Decode and fold: verify events to window sums on one core, against two ways of doing without us.

Run with ``python -m benchmarks.ingest [--rounds N] [--json]``. Ratios are the result; absolute rates are for
orientation. ``python loop`` reads the same rows as JSON, one object a row, as a debug dump would be read;
``bare numpy`` folds arrays that are decoded already, with no labels rule, weights, loss or cells.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.figures import wants_table
from calibrator.core.survival import survival
from calibrator.core.windows import WINDOW_BINS, fold_cells
from calibrator.store import Store
from collectors.decoding import decode_message
from collectors.options import PipelineOptions
from collectors.pipeline import IngestPipeline
from serving_adapter.clock import ManualClock
from serving_adapter.contract import Rounds, Steps, VerifyBatch
from serving_adapter.contract.events import CONTENT_TYPE_HEADER, CONTENT_TYPE_MSGPACK, TOPIC, encode_msgpack
from serving_adapter.ports import Message, OutgoingMessage

GAMMA = 7
ROWS_PER_MESSAGE = 2_000
"""About 64 KiB."""

HEADERS = ((CONTENT_TYPE_HEADER, CONTENT_TYPE_MSGPACK.encode()),)


class _Nowhere:
    def publish(self, messages: list[OutgoingMessage]) -> int:
        return len(messages)

    def close(self) -> None:
        pass


def make_rounds(count: int, seed: int = 0) -> Rounds:
    """Traffic as production has it: trimmed by a scheduler, 1 % explored, three segments."""
    random = np.random.default_rng(seed)
    logits = random.normal(1.2, 1.0, (count, GAMMA)).astype(np.float16)
    survived = np.cumprod(random.random((count, GAMMA)) < 0.8, axis=1).sum(axis=1)
    scheduled = random.integers(1, GAMMA + 1, count)
    verified = np.where(random.random(count) < 0.01, GAMMA, scheduled)
    return Rounds.build(
        logits,
        np.minimum(survived, verified),
        verified=verified,
        scheduled=scheduled,
        explore=np.full(count, 0.01, dtype=np.float16),
        request=random.integers(0, 2**63, count),
        step=np.arange(count) % 500,
        segment=random.integers(0, 3, count),
        segments=("math", "code", "chat"),
        sampling=np.full(count, 0.7, dtype=np.float16),
    )


def make_messages(rounds: Rounds) -> list[Message]:
    """The rounds as flushes of 20 replicas."""
    messages = []
    for offset, start in enumerate(range(0, len(rounds), ROWS_PER_MESSAGE)):
        part = rounds.take(slice(start, start + ROWS_PER_MESSAGE))
        batch = VerifyBatch(
            deployment="prod",
            fingerprint="f" * 32,
            replica=f"pod-{offset % 20}",
            boot="boot",
            sequence=offset // 20 * ROWS_PER_MESSAGE,
            lost=0,
            emitted_at=1_700_000_000 * 10**9,
            rounds=part,
            steps=Steps.empty(),
            gamma=GAMMA,
        )
        messages.append(Message(TOPIC, 0, offset, b"pod", encode_msgpack(batch), HEADERS))
    return messages


def decode_and_fold(messages: list[Message]) -> None:
    """Messages to sums per segment, without a database."""
    batches = [decode_message(message).batch for message in messages]
    rounds = Rounds.concatenate([batch.rounds for batch in batches if batch and batch.rounds])
    predicted = survival(rounds.logits, np.ones(GAMMA), np.zeros(GAMMA))
    fold_cells(rounds, predicted, rounds.segment.astype(np.int64), 3)


def bare_numpy(logits: np.ndarray, accepted: np.ndarray) -> None:
    """The least that a fold can be: sums per position and bin of arrays at hand."""
    predicted = np.multiply.accumulate(1.0 / (1.0 + np.exp(-logits.astype(np.float64))), axis=1)
    labels = np.arange(1, GAMMA + 1) <= accepted[:, None]
    index = np.minimum((predicted * WINDOW_BINS).astype(np.int64), WINDOW_BINS - 1)
    flat = (index + np.arange(GAMMA) * WINDOW_BINS).ravel()
    size = GAMMA * WINDOW_BINS
    np.bincount(flat, minlength=size)
    np.bincount(flat, weights=predicted.ravel(), minlength=size)
    np.bincount(flat, weights=labels.ravel(), minlength=size)


def python_loop(lines: list[bytes]) -> dict[tuple[str, int, int], list[float]]:
    """One JSON object a row, one addition at a time."""
    sums: dict[tuple[str, int, int], list[float]] = {}
    for line in lines:
        row = json.loads(line)
        survived = 1.0
        for k, logit in enumerate(row["logits"]):
            survived /= 1.0 + math.exp(-logit)
            cell = (row["segment"], k, min(int(survived * WINDOW_BINS), WINDOW_BINS - 1))
            total = sums.setdefault(cell, [0, 0, 0.0, 0, 0.0, 0.0])
            total[0] += 1
            if k < row["verified"]:
                label = k < row["accepted"]
                total[1] += 1
                total[2] += survived
                total[3] += label
                total[4] += (survived - label) ** 2
                total[5] -= math.log(max(survived if label else 1.0 - survived, 1e-9))
    return sums


def as_lines(rounds: Rounds) -> list[bytes]:
    """Rows as JSON objects."""
    return [
        json.dumps(
            {
                "request": int(rounds.request[i]),
                "step": int(rounds.step[i]),
                "logits": rounds.logits[i].astype(float).tolist(),
                "verified": int(rounds.verified[i]),
                "accepted": int(rounds.accepted[i]),
                "segment": rounds.segments[rounds.segment[i]],
            }
        ).encode()
        for i in range(len(rounds))
    ]


def best_rate(work: Callable[[], Any], rows: int, repeats: int) -> float:
    """Rows a second of the fastest of several runs."""
    fastest = math.inf
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        fastest = min(fastest, time.perf_counter() - start)
    return rows / fastest


def pipeline_rate(messages: list[Message], rows: int) -> float:
    """Rows a second through the whole pipeline into SQLite, in ingests of 50 messages."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(f"sqlite:///{folder}/store.db")
        store.migrate()
        pipeline = IngestPipeline(store, _Nowhere(), ManualClock(1_700_000_010.0), PipelineOptions())
        pipeline.ingest(messages[:20])  # the sample fills
        rest = messages[20:]
        start = time.perf_counter()
        for i in range(0, len(rest), 50):
            pipeline.ingest(rest[i : i + 50])
        seconds = time.perf_counter() - start
        store.close()
    return (rows - 20 * ROWS_PER_MESSAGE) / seconds


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", nargs="?", const="-")
    given = parser.parse_args(arguments)
    rounds = make_rounds(given.rounds)
    messages = make_messages(rounds)
    lines = as_lines(rounds.take(slice(0, 20_000)))
    groups = [messages[i : i + 50] for i in range(0, len(messages), 50)]
    rates = {
        "decode_and_fold": best_rate(
            lambda: [decode_and_fold(group) for group in groups], given.rounds, given.repeats
        ),
        "pipeline_sqlite": pipeline_rate(messages, given.rounds),
        "bare_numpy": best_rate(
            lambda: bare_numpy(rounds.logits, rounds.accepted), given.rounds, given.repeats
        ),
        "python_loop": best_rate(lambda: python_loop(lines), len(lines), given.repeats),
    }
    result = {
        "benchmark": "ingest",
        "rounds": given.rounds,
        "gamma": GAMMA,
        "bytes_per_round": sum(len(m.value) for m in messages) / given.rounds,
        "rounds_per_second": {name: round(rate) for name, rate in rates.items()},
        "times_python_loop": round(rates["decode_and_fold"] / rates["python_loop"], 1),
        "times_bare_numpy": round(rates["decode_and_fold"] / rates["bare_numpy"], 2),
        "bars": {"times_python_loop": 100, "rounds_per_second": 5_000_000},
    }
    if not wants_table(result, given.json):
        return None
    for name, rate in rates.items():
        print(f"{name:18} {rate / 1e6:8.3f} M rounds/s")
    print(f"decode and fold is {result['times_python_loop']} x the Python loop (bar: 100)")
    print(f"decode and fold is {result['times_bare_numpy']} x the bare NumPy fold")
    return result


if __name__ == "__main__":
    main()
