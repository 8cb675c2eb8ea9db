"""How well the curve predicts a size that it has never seen, against a table and a straight line.

Every size but the first and the last of the recorded samples is left out in turn; the error is that of the
predicted time against the median of the samples left out. The naive table is what engines' profilers write:
the mean time of each size, looked up by floor.

    python -m benchmarks.cost_curve [--json]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from benchmarks.figures import wants_table
from calibrator.core.cost import CostCells, fit_curve
from serving_adapter.contract import Steps
from serving_adapter.engines.replay.cost import CostSamples, load_cost_samples

STALL_EVERY, STALL_FACTOR = 200, 50.0
KINDS = {"as recorded": False, "1 step in 200 takes 50 times as long": True}
Sizes = NDArray[np.int64]
Seconds = NDArray[np.float64]


def by_size(samples: CostSamples) -> tuple[Sizes, Seconds]:
    """Mean seconds of each size."""
    sizes = np.unique(samples.batch_tokens)
    return sizes, np.array([samples.seconds[samples.batch_tokens == size].mean() for size in sizes])


def table(samples: CostSamples, size: int) -> float:
    """Mean of the largest size that is not above."""
    sizes, means = by_size(samples)
    return float(means[np.searchsorted(sizes, size, side="right") - 1])


def line(samples: CostSamples, size: int) -> float:
    """Straight line between the means of the neighbours."""
    return float(np.interp(size, *by_size(samples)))


def curve(samples: CostSamples, size: int) -> float:
    """Our fit."""
    steps = Steps.build(
        step_seconds=samples.seconds, batch_tokens=samples.batch_tokens, requests=samples.requests
    )
    return float(fit_curve(CostCells.fold(steps, epoch=0)).at(size))


METHODS: dict[str, Callable[[CostSamples, int], float]] = {
    "naive table (means, floor)": table,
    "linear interpolation of means": line,
    "the curve": curve,
}


def errors(samples: CostSamples, stalls: bool) -> dict[str, NDArray[np.float64]]:
    """Relative error by method, shape ``[sizes - 2]``."""
    sizes = np.unique(samples.batch_tokens)
    seconds = samples.seconds.copy()
    if stalls:  # as a live engine has them: compilation, prefill, a page fault
        seconds[np.arange(len(seconds)) % STALL_EVERY == STALL_EVERY // 2] *= STALL_FACTOR
    found: dict[str, list[float]] = {name: [] for name in METHODS}
    for size in sizes[1:-1].tolist():
        kept = samples.batch_tokens != size
        truth = float(np.median(samples.seconds[~kept]))
        left = CostSamples(samples.batch_tokens[kept], seconds[kept], samples.requests[kept], ())
        for name, predict in METHODS.items():
            predicted = predict(left, size)
            found[name].append(abs(predicted / truth - 1.0))
    return {name: np.array(values) for name, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", nargs="?", const="-", help="one JSON object on standard output")
    options = parser.parse_args()
    samples = load_cost_samples()
    found = {kind: errors(samples, stalls) for kind, stalls in KINDS.items()}
    summary = {
        kind: {
            name: {"mean": values.mean(), "median": np.median(values), "largest": values.max()}
            for name, values in by_method.items()
        }
        for kind, by_method in found.items()
    }
    if not wants_table({"benchmark": "cost_curve", "errors": summary}, options.json):
        return
    print("| samples | method | mean error | median | largest |")
    print("|---|---|---|---|---|")
    for kind, by_method in summary.items():
        for name, figures in by_method.items():
            print(f"| {kind} | {name} | " + " | ".join(f"{v:.1%}" for v in figures.values()) + " |")


if __name__ == "__main__":
    main()
