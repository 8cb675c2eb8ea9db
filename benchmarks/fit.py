"""Fits of a million rounds against SGLang's fitter and scikit-learn.

    python -m benchmarks.fit [--rounds 1000000] [--json]

Both sides get the same rows in the same run; temperatures and optimum must agree, or there is no ratio.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

from benchmarks.figures import wants_table
from calibrator.core.affine import Prior, fit_affine
from calibrator.core.labels import at_risk, prefix_labels
from calibrator.core.temperature import PEER_GRID, fit_temperatures
from serving_adapter.contract import Rounds
from serving_adapter.engines.replay.records import load_recording
from tests.peers import sglang_modules


def rows(count: int) -> Rounds:
    """Recorded rounds drawn with replacement, logits jittered so that no two are alike."""
    recorded = load_recording("typical").rounds
    random = np.random.default_rng(0)
    index = random.integers(0, len(recorded), count)
    logits = recorded.logits[index] + random.normal(0.0, 0.01, (count, recorded.gamma)).astype(np.float32)
    return Rounds.build(logits, recorded.accepted[index])


def best(action: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """Shortest of a few runs, and what came of it."""
    times, result = [], None
    for _ in range(repeats):
        started = time.perf_counter()
        result = action()
        times.append(time.perf_counter() - started)
    return min(times), result


def temperatures(rounds: Rounds, repeats: int) -> dict[str, Any]:
    labels = prefix_labels(rounds)
    logits = np.ascontiguousarray(rounds.logits, dtype=np.float32)
    ours, fit = best(lambda: fit_temperatures(logits, labels, bins=15, grid=PEER_GRID), repeats)
    with tempfile.TemporaryDirectory() as folder, sglang_modules(Path(folder)) as sglang:
        z, mask = torch.from_numpy(logits), torch.from_numpy(labels.astype(np.float32))
        grid = sglang.fit.default_temperature_grid()
        peer, theirs = best(
            lambda: sglang.fit.fit_sts_temperatures(logits=z, prefix_mask=mask, grid=grid, num_bins=15),
            repeats,
        )
    agree = np.allclose(fit.temperatures, theirs["temperatures"], rtol=1e-6)
    close = np.allclose(np.array(fit.ece_after, dtype=float), theirs["ece_after"], atol=1e-6)
    return {
        "what": "sequential temperature scaling, 41-point grid, 15 bins",
        "against": "SGLang 0.5.23 fit_sts_temperatures",
        "seconds": ours,
        "peer_seconds": peer,
        "ratio": peer / ours if agree and close else None,
        "same_result": bool(agree and close),
        "bar": 10.0,
    }


def affine(rounds: Rounds, repeats: int) -> dict[str, Any]:
    labels, seen = prefix_labels(rounds), at_risk(rounds)
    ours, fit = best(lambda: fit_affine(rounds.logits, labels, seen, prior=Prior.none()), repeats)
    row, position = np.nonzero(seen)
    design = np.zeros((len(row), 1 + rounds.gamma))
    design[:, 0] = rounds.logits[row, position]
    design[np.arange(len(row)), 1 + position] = 1.0
    outcome = labels[row, position]
    peer, model = best(
        lambda: LogisticRegression(C=np.inf, fit_intercept=False, tol=1e-8, max_iter=1000).fit(
            design, outcome
        ),
        1,
    )
    found = np.concatenate([[fit.slope], fit.offsets])
    agree = bool(np.allclose(found, model.coef_[0], atol=1e-4))
    return {
        "what": "affine form by likelihood",
        "against": "scikit-learn LogisticRegression on the same at-risk rows",
        "seconds": ours,
        "peer_seconds": peer,
        "ratio": peer / ours if agree else None,
        "same_result": agree,
        "bar": 5.0,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", nargs="?", const="-")
    options = parser.parse_args()
    rounds = rows(options.rounds)
    results = [temperatures(rounds, options.repeats), affine(rounds, options.repeats)]
    if not wants_table({"benchmark": "fit", "rounds": options.rounds, "results": results}, options.json):
        return
    print(f"{options.rounds:,} rounds x {rounds.gamma}")
    for r in results:
        ratio = (
            "results differ" if r["ratio"] is None else f"{r['ratio']:.1f} times faster (bar: {r['bar']:.0f})"
        )
        print(f"{r['what']}: {r['seconds']:.2f} s, {r['against']}: {r['peer_seconds']:.2f} s: {ratio}")


if __name__ == "__main__":
    main()
