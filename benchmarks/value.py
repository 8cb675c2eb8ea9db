"""What each part is worth: tokens per second of every policy on the recorded rows, beside the design's table.

Parameters are fitted on the requests of one half of the prompts and replayed on those of the other. Costs:
the recorded machine as measured (continued in a straight line to 2048 batch tokens), the same machine as its
note describes it (30 ms and 1.07 ms a token), and a GPU-like knee at 128 tokens.

    python -m benchmarks.value [--json] [--scheduler early-stop] [--recordings typical,hard]
"""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

import numpy as np

from benchmarks.figures import wants_table
from calibrator.core.candidate import ProposalOptions
from calibrator.core.offline import fit_offline
from calibrator.core.value import ValueReport, value_report
from calibrator.core.value.batches import SCHEDULERS
from serving_adapter.engines.replay.cost import knee_curve, measured_curve
from serving_adapter.engines.replay.records import RECORDINGS, load_recording, split_requests
from serving_adapter.step_cost import StepCost

CONCURRENCIES = (4, 32, 128)
LARGEST = 2048
DESIGN = {
    "verify all": (".97 to 1.00", ".76 to .80 (hard .36)", ".62"),
    "verify none": (".25 to .48", ".37 to .85", ".99 to 1.00"),
    "temperature": ("1.00", "1.00 to 1.01", "1.01"),
    "affine": ("1.00 to 1.02", "1.01 to 1.03 (hard 1.05)", "1.01"),
    "best monotone map": ("", "", ""),
    "perfect foresight": ("", "1.25 to 1.35", ""),
}


def costs() -> dict[str, StepCost]:
    """The machines, by name."""
    curve = measured_curve()
    sizes, seconds = np.array(curve.batch_tokens), np.array(curve.seconds)
    slope = np.polyfit(sizes[-6:], seconds[-6:], 1)[0]
    knee = StepCost.from_curve(knee_curve())
    assert knee is not None
    end = seconds[-1] + slope * (LARGEST - sizes[-1])
    return {
        "measured": StepCost(np.append(sizes, LARGEST), np.append(seconds, end)),
        "line": StepCost([1, LARGEST], [0.03 + 0.00107, 0.03 + 0.00107 * LARGEST]),
        "knee": knee,
    }


def measure(recording: str, cost: StepCost, scheduler: Any, resamples: int) -> ValueReport:
    """Fit on one half of the prompts, replay on the other."""
    rows = load_recording(recording)
    teach, judge = (rows.rows_of(half) for half in split_requests(rows, 0.5))
    sets = {
        form: fit_offline(teach, ProposalOptions(form=form)).parameters for form in ("temperature", "affine")
    }
    return value_report(judge, cost, sets, CONCURRENCIES, scheduler=scheduler, resamples=resamples)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", nargs="?", const="-", help="one JSON object on standard output")
    parser.add_argument("--recordings", default=",".join(RECORDINGS))
    parser.add_argument("--scheduler", choices=SCHEDULERS, default="asynchronous")
    parser.add_argument("--resamples", type=int, default=400)
    options = parser.parse_args()

    machines, recordings = costs(), options.recordings.split(",")
    reports = {
        (name, recording): measure(recording, cost, options.scheduler, options.resamples)
        for name, cost in machines.items()
        for recording in recordings
    }
    values = [
        {"cost": name, "rows": recording, **dataclasses.asdict(entry)}
        for (name, recording), report in reports.items()
        for entry in report.values
    ]
    if not wants_table(
        {"benchmark": "value", "scheduler": options.scheduler, "values": values}, options.json
    ):
        return
    print(f"tokens per second relative to raw confidences, {options.scheduler} scheduler, 95 % intervals")
    for name in machines:
        print(f"\n## cost: {name}\n")
        print("| rows | policy |" + "".join(f" {c} requests | interval |" for c in CONCURRENCIES))
        print("|---|---|" + "---|---|" * len(CONCURRENCIES))
        for recording in recordings:
            for policy in DESIGN:
                ratios = [
                    reports[name, recording].value(policy, load).against_identity for load in CONCURRENCIES
                ]
                cells = "".join(f" {r.estimate:.3f} | {r.low:.3f} to {r.high:.3f} |" for r in ratios)
                print(f"| {recording} | {policy} |{cells}")
    print("\n## design\n")
    print("| policy |" + "".join(f" {c} requests |" for c in CONCURRENCIES))
    print("|---|" + "---|" * len(CONCURRENCIES))
    for policy, figures in DESIGN.items():
        print(f"| {policy} | " + " | ".join(figures) + " |")


if __name__ == "__main__":
    main()
