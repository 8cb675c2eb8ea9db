"""What ``observe()`` costs an engine, against building one record object per request.

Both take the same step of 256 requests and 7 draft positions, in turns, in one run; the ratio is the
figure. Nobody reads the ring, which changes nothing for the writer: the second series runs with a sidecar
thread's reader attached and dead.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.figures import wants_table
from serving_adapter.adapter import ServingAdapter
from serving_adapter.contract import EngineIdentity
from serving_adapter.mirror import mirror_path
from serving_adapter.ring_reader import RingSet
from serving_adapter.shared_memory import segment_path

GAMMA = 7


@dataclass
class Record:
    """One request's round as an object, with what a row of the ring carries."""

    request: int
    step: int
    logits: list[float]
    scheduled: int
    verified: int
    accepted: int
    resolved: int
    resolved_accepted: int
    draft_stop: int
    explore: float
    version: int
    segment: str
    sampling: float


def records(step: dict[str, np.ndarray]) -> list[Record]:
    """As a debug dump is written: columns become lists, then one object per request, field by name."""
    request, number, logits, scheduled, verified, accepted = (
        step[name].tolist() for name in ("request", "step", "logits", "scheduled", "verified", "accepted")
    )
    return [
        Record(
            request=request[i],
            step=number[i],
            logits=logits[i],
            scheduled=scheduled[i],
            verified=verified[i],
            accepted=accepted[i],
            resolved=verified[i],
            resolved_accepted=accepted[i],
            draft_stop=255,
            explore=0.01,
            version=3,
            segment="default",
            sampling=0.7,
        )
        for i in range(len(request))
    ]


def lean_records(step: dict[str, np.ndarray]) -> list[Record]:
    """The same objects at the least price Python has for them: positional, zipped."""
    request, number, logits, scheduled, verified, accepted = (
        step[name].tolist() for name in ("request", "step", "logits", "scheduled", "verified", "accepted")
    )
    return [
        Record(r, i, z, s, v, n, v, n, 255, 0.01, 3, "default", 0.7)
        for r, i, z, s, v, n in zip(request, number, logits, scheduled, verified, accepted, strict=True)
    ]


def a_step(rows: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    verified = rng.integers(0, GAMMA + 1, rows).astype(np.uint8)
    return {
        "logits": rng.normal(1.0, 2.0, (rows, GAMMA)).astype(np.float32),
        "request": rng.integers(0, 2**63, rows).astype(np.uint64),
        "step": rng.integers(0, 500, rows).astype(np.uint32),
        "scheduled": verified.copy(),
        "verified": verified,
        "accepted": np.minimum(verified, rng.integers(0, GAMMA + 1, rows)).astype(np.uint8),
    }


def measure(call: Callable[[int], object], repeats: int) -> np.ndarray:
    times = np.empty(repeats)
    for i in range(repeats):
        start = time.perf_counter_ns()
        call(i)
        times[i] = time.perf_counter_ns() - start
    return times / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=4000)
    parser.add_argument("--json", nargs="?", const="-", help="print one JSON object")
    options = parser.parse_args()

    ring = f"dspark-benchmark-{uuid.uuid4().hex}"
    identity = EngineIdentity(target="t", drafter="d", gamma=GAMMA, engine="benchmark")
    adapter = ServingAdapter(identity, "benchmark", "replica-0", ring)
    steps = [a_step(options.rows, seed) for seed in range(16)]

    def observe(i: int) -> None:
        adapter.observe(**steps[i % 16], sampling=0.7, step_seconds=0.02, batch_tokens=900)

    def build(i: int) -> list[Record]:
        return records(steps[i % 16])

    def build_lean(i: int) -> list[Record]:
        return lean_records(steps[i % 16])

    try:
        measure(observe, 2000)  # touch the memory
        measure(build, 200)
        gc.collect()
        names = ("observe", "records", "lean_records", "observe_dead_reader")
        series: dict[str, list[np.ndarray]] = {name: [] for name in names}
        for _ in range(5):  # in turns, so that a busy neighbour slows all of them
            series["observe"].append(measure(observe, options.repeats))
            series["records"].append(measure(build, options.repeats // 10))
            series["lean_records"].append(measure(build_lean, options.repeats // 10))
            readers = RingSet(ring)
            readers.refresh()[0].read_rounds(1000)
            readers.close()
            series["observe_dead_reader"].append(measure(observe, options.repeats))
        assert adapter.rejected == 0, adapter.last_rejection
    finally:
        adapter.close()
        for path in segment_path(ring).parent.glob(f"{segment_path(ring).name}*"):
            path.unlink()
        mirror_path(ring).unlink(missing_ok=True)

    figures = {
        name: {"median_us": float(np.median(t)), "p99_us": float(np.percentile(t, 99)), "calls": int(t.size)}
        for name, t in ((name, np.concatenate(parts)) for name, parts in series.items())
    }
    report = {
        "benchmark": "observe",
        "rows": options.rows,
        "gamma": GAMMA,
        **figures,
        "ratio_median": figures["records"]["median_us"] / figures["observe"]["median_us"],
        "ratio_median_lean": figures["lean_records"]["median_us"] / figures["observe"]["median_us"],
        "ratio_p99": figures["records"]["p99_us"] / figures["observe"]["p99_us"],
        "bar_ratio": 20.0,
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "numpy": np.__version__},
    }
    if not wants_table(report, options.json):
        return
    for name, figure in figures.items():
        print(f"{name:22} median {figure['median_us']:8.2f} us   p99 {figure['p99_us']:8.2f} us")
    print(f"observe is {report['ratio_median']:.1f} times cheaper than one record per request (bar: 20),")
    print(
        f"and {report['ratio_median_lean']:.1f} times cheaper than the leanest way to build the same records"
    )


if __name__ == "__main__":
    main()
