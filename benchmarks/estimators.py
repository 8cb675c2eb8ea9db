"""Calibration from truncated feedback: bias of each estimator against the full-label truth.

The recorded rounds, every label known, are the population. A resample draws whole requests with replacement,
serves them in batches under the asynchronous scheduler with a cost curve and raw confidences, explores with
probability e, and hides every other label. The truth is the figure over all recorded rounds with all labels.
The figure of record also says how often its 95 % interval holds the truth.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from calibrator.core.doubly_robust import doubly_robust
from calibrator.core.ece import reliability
from calibrator.core.labels import drafted, included, prefix_labels
from calibrator.core.propensity import inclusion_weights
from calibrator.core.record import figures_of_record
from serving_adapter.contract import Rounds, prefix_survival, sigmoid
from serving_adapter.engines.replay import Machine, load_recording
from serving_adapter.scheduler import Asynchronous
from serving_adapter.step_cost import StepCost

BINS = 20
CURVES: dict[str, tuple[Callable[[], StepCost], int]] = {
    "measured, 8 requests": (lambda: Machine.recorded().cost, 8),
    "knee at 128, 64 requests": (lambda: Machine.with_knee(128).cost, 64),
    "knee at 256, 64 requests": (lambda: Machine.with_knee(256).cost, 64),
}
"""Cost curve and requests in a batch."""

ESTIMATORS = ("trimmed is rejected", "verified only", "inverse propensity", "doubly robust", "of record")


def truth(rounds: Rounds, predicted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Binned ECE and mean gap with every label, each shape ``[gamma]``."""
    labels, inside = prefix_labels(rounds), drafted(rounds)
    ece, gap = [], []
    for k in range(rounds.gamma):
        mine = inside[:, k]
        table = reliability(predicted[mine, k], labels[mine, k], BINS)
        ece.append(table.ece)
        gap.append(float((predicted[mine, k] - labels[mine, k]).mean()))
    return np.array(ece), np.array(gap)


def serve(predicted: np.ndarray, cost: StepCost, batch: int) -> np.ndarray:
    """Lengths that the scheduler wants for rows served in this order, shape ``[rows]``."""
    scheduler = Asynchronous()
    return np.concatenate(
        [scheduler.lengths(predicted[i : i + batch], cost) for i in range(0, len(predicted), batch)]
    )


def truncated(
    population: Rounds,
    predicted: np.ndarray,
    requests: list[np.ndarray],
    cost: StepCost,
    batch: int,
    explore: float,
    seed: int,
    size: float,
) -> tuple[Rounds, np.ndarray]:
    """One resample as a scheduler let it through, and its predictions."""
    random = np.random.default_rng(seed)
    chosen = random.integers(len(requests), size=int(size * len(requests)))
    index = np.concatenate([requests[i] for i in chosen])
    owner = np.repeat(np.arange(len(chosen)), [len(requests[i]) for i in chosen])
    shuffled = random.permutation(len(index))
    index, owner = index[shuffled], owner[shuffled]
    a = predicted[index]
    scheduled = serve(a, cost, batch)
    explored = random.random(len(index)) < explore
    verified = np.where(explored, population.gamma, scheduled)
    rows = Rounds.build(
        population.logits[index],
        np.minimum(population.accepted[index], verified),
        verified=verified,
        scheduled=scheduled,
        request=owner,
        explore=np.full(len(index), explore),
        draft_stop=population.draft_stop[index],
        sampling=population.sampling[index],
    )
    return rows, a


def estimates(rows: Rounds, a: np.ndarray, explore: float) -> dict[str, Any]:
    """ECE and mean gap by every estimator, each ``[gamma]``; intervals of the figure of record."""
    labels, inside, seen = prefix_labels(rows), drafted(rows), included(rows)
    weights = inclusion_weights(rows)
    ece: dict[str, Any] = {name: [] for name in ESTIMATORS}
    gap: dict[str, Any] = {name: [] for name in ESTIMATORS}

    def add(name: str, k: int, w: np.ndarray, mass: np.ndarray) -> None:
        table = reliability(a[:, k], labels[:, k], BINS, w, mass)
        ece[name].append(table.ece)
        total = w.sum()
        gap[name].append(float(w @ (a[:, k] - labels[:, k]) / total) if total > 0 else np.nan)

    for k in range(rows.gamma):
        everything, verified = inside[:, k].astype(float), seen[:, k].astype(float)
        add("trimmed is rejected", k, everything, everything)
        add("verified only", k, verified, verified)
        add("inverse propensity", k, weights[:, k], everything)
    figures = figures_of_record(a, rows, BINS) if explore > 0 else []
    if figures:
        ece["doubly robust"], gap["doubly robust"] = [f.plain_ece for f in figures], [f.gap for f in figures]
        ece["of record"], gap["of record"] = [f.ece for f in figures], [f.gap for f in figures]
    else:  # the outcome model alone
        tables = doubly_robust(a, rows, BINS)
        ece["doubly robust"], gap["doubly robust"] = [t.ece for t in tables], [t.mean_gap for t in tables]
        ece["of record"] = gap["of record"] = [np.nan] * rows.gamma
    return {"ece": ece, "gap": gap, "figures": figures}


def measure(
    name: str, curve: str, explore: float, resamples: int, size: float = 2.0, seed: int = 0
) -> dict[str, Any]:
    """Bias of the mean over positions with its standard error, and coverage of the intervals."""
    population = load_recording(name).rounds
    predicted = prefix_survival(sigmoid(population.logits))
    true_ece, true_gap = truth(population, predicted)
    ids = np.unique(population.request, return_inverse=True)[1]
    order = np.argsort(ids, kind="stable")
    requests = np.split(order, np.flatnonzero(np.diff(ids[order])) + 1)
    make, batch = CURVES[curve]
    cost = make()
    ece: dict[str, list[np.ndarray]] = {n: [] for n in ESTIMATORS}
    gap: dict[str, list[np.ndarray]] = {n: [] for n in ESTIMATORS}
    held, gap_held, width, coverage = [], [], [], []
    for i in range(resamples):
        rows, a = truncated(population, predicted, requests, cost, batch, explore, seed + i, size)
        found = estimates(rows, a, explore)
        for n in ESTIMATORS:
            ece[n].append(np.array(found["ece"][n]) - true_ece)
            gap[n].append(np.array(found["gap"][n]) - true_gap)
        coverage.append(included(rows).mean(axis=0))
        if found["figures"]:
            figures = found["figures"]
            held.append([f.ece_low <= t <= f.ece_high for f, t in zip(figures, true_ece, strict=True)])
            gap_held.append([f.gap_low <= t <= f.gap_high for f, t in zip(figures, true_gap, strict=True)])
            width.append([f.ece_high - f.ece_low for f in figures])
    result: dict[str, Any] = {
        "recording": name,
        "curve": curve,
        "explore": explore,
        "truth": float(true_ece.mean()),
        "verified": float(np.mean(coverage)),
        "verified at last position": float(np.mean(coverage, axis=0)[-1]),
        "ece bias": {n: _mean_and_error(ece[n]) for n in ESTIMATORS},
        "gap bias": {n: _mean_and_error(gap[n]) for n in ESTIMATORS},
    }
    if held:
        result["coverage"] = float(np.mean(held))
        result["coverage per position"] = np.mean(held, axis=0).tolist()
        result["gap coverage"] = float(np.mean(gap_held))
        result["interval width"] = float(np.mean(width))
    return result


def _mean_and_error(parts: list[np.ndarray]) -> tuple[float, float] | None:
    """Mean over resamples and defined positions, and twice the standard error over resamples."""
    table = np.array(parts)
    if not np.isfinite(table).any():
        return None
    means = np.array([row[np.isfinite(row)].mean() for row in table])
    spread = float(means.std(ddof=1)) if len(means) > 1 else 0.0
    return float(means.mean()), 2.0 * spread / len(means) ** 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--recordings", default="typical,dspark", help="names, separated by commas")
    parser.add_argument("--curves", default=";".join(CURVES), help="names, separated by semicolons")
    parser.add_argument("--explore", default="0,0.01,0.05")
    parser.add_argument("--resamples", type=int, default=200)
    parser.add_argument("--size", type=float, default=2.0, help="requests drawn, relative to those recorded")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    options = parser.parse_args()
    results = [
        measure(name, curve, float(e), options.resamples, options.size)
        for name in options.recordings.split(",")
        for curve in options.curves.split(";")
        for e in options.explore.split(",")
    ]
    if options.json:
        json.dump({"benchmark": "estimators", "results": results}, sys.stdout)
        print()
        return
    for kind in ("ece", "gap"):
        figure = "mean ECE" if kind == "ece" else "signed gap"
        print(f"\nbias of the {figure} (points of .0001, two standard errors)")
        print(f"{'':58}" + "".join(f"{n:>22}" for n in ESTIMATORS))
        for row in results:
            head = (
                f"{row['recording']}, {row['curve']}, e {row['explore']:.0%} ({row['verified']:.0%} verified)"
            )
            cells = [row[f"{kind} bias"][n] for n in ESTIMATORS]
            print(
                f"{head:58}"
                + "".join(
                    f"{'':>22}" if c is None else f"{c[0] * 1e4:+14.0f} ±{c[1] * 1e4:5.1f} " for c in cells
                )
            )
    print("\n95 % intervals of the figure of record: share that holds the truth (ECE, gap), mean width")
    for row in results:
        if "coverage" in row:
            print(
                f"{row['recording']}, {row['curve']}, e {row['explore']:.0%}: {row['coverage']:.1%}, "
                f"{row['gap coverage']:.1%}, {row['interval width']:.3f} "
                f"[{' '.join(f'{c:.2f}' for c in row['coverage per position'])}]"
            )


if __name__ == "__main__":
    main()
