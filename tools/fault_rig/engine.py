"""The engine process: recorded rounds served at a pace, and exact books of all it emitted.

``python -m tools.fault_rig.engine --folder F --pace 1500`` with ``DSPARK_*`` in the environment. It serves
until ``--rounds`` or SIGTERM, and leaves in the folder:

* ``progress``: see :mod:`tools.fault_rig.progress`, kept current;
* ``rows-BOOT``: see :mod:`tools.fault_rig.rows`, complete however the process ends;
* ``ledger-BOOT.json``: written whole at the end, if that comes in order.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from serving_adapter.adapter import ServingAdapter
from serving_adapter.engines.replay import ReplayEngine, replay_identity
from serving_adapter.settings import load_settings
from tools.fault_rig.progress import Progress, open_progress, write_progress
from tools.fault_rig.rows import RowWriter


class BookedAdapter:
    """The adapter with a clerk in front: records every row, then hands it on and times that."""

    def __init__(self, adapter: ServingAdapter, rows: RowWriter) -> None:
        self._adapter, self._rows = adapter, rows
        self.gamma = adapter.gamma
        self.durations: list[int] = []

    @property
    def observe(self) -> Callable[..., None]:
        return self._observe

    def _observe(self, logits: ArrayLike, accepted: NDArray[Any], **columns: Any) -> None:
        self._rows.write(columns["verified"], accepted, columns["draft_stop"])
        begun = time.perf_counter_ns()
        self._adapter.observe(logits, accepted, **columns)
        self.durations.append(time.perf_counter_ns() - begun)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._adapter, name)


def serve(options: argparse.Namespace, ended: threading.Event) -> None:
    """Serve until told to end, then write the ledger."""
    settings = load_settings()
    adapter = ServingAdapter(
        replay_identity(),
        settings.deployment,
        settings.replica,
        settings.ring,
        explore=settings.explore,
        salt=settings.salt,
        rounds_capacity=options.ring_rounds,
        steps_capacity=options.ring_steps,
    )
    assert not adapter.disabled, adapter.disabled
    boot = adapter.boot
    versions = [0]
    with RowWriter(options.folder / f"rows-{boot}", adapter.gamma) as rows:
        booked = BookedAdapter(adapter, rows)
        engine = ReplayEngine(booked, concurrency=options.concurrency, seed=options.seed)
        progress = open_progress(options.folder / "progress")
        due = time.monotonic()
        while not ended.is_set() and engine.ledger.rounds < options.rounds:
            engine.step()
            version = engine.parameters.version
            if version != versions[-1]:
                versions.append(version)
            write_progress(
                progress, Progress(engine.ledger.rounds, engine.ledger.steps, version, adapter.rejected)
            )
            due += options.concurrency / options.pace
            ended.wait(max(0.0, due - time.monotonic()))
    assert adapter.ring is not None
    ledger = engine.ledger
    durations = np.array(booked.durations, dtype=np.float64) / 1e3
    _write_whole(
        options.folder / f"ledger-{boot}.json",
        {
            "boot": boot,
            "replica": settings.replica,
            "rounds": ledger.emitted,
            "steps": ledger.steps,
            "labels": ledger.labels.tolist(),
            "label_sums": ledger.label_sums.tolist(),
            "ring_rounds": adapter.ring.written,
            "ring_steps": adapter.ring.steps_written,
            "rejected": adapter.rejected,
            "last_rejection": adapter.last_rejection,
            "versions": versions,
            # For orientation only: how long observe() took on this machine, beside everything else.
            "observe_us": {
                "median": float(np.median(durations)),
                "p99": float(np.quantile(durations, 0.99)),
                "largest": float(durations.max()),
            },
        },
    )
    adapter.close()


def _write_whole(path: Path, body: dict[str, Any]) -> None:
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(body))
    draft.rename(path)


def main() -> None:
    """Parse, serve, end."""
    parser = argparse.ArgumentParser(prog="python -m tools.fault_rig.engine")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--pace", type=float, default=1500.0, help="rounds a second")
    parser.add_argument("--rounds", type=int, default=2**62)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--ring-rounds", type=int, default=131_072)
    parser.add_argument("--ring-steps", type=int, default=16_384)
    parser.add_argument("--seed", type=int, default=0)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    serve(parser.parse_args(), ended)


if __name__ == "__main__":
    main()
