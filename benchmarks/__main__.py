"""Run every benchmark one after the other and keep the figures: ``python -m benchmarks [NAME ...]``."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

BENCHMARKS = ("observe", "fit", "ingest", "cost_curve", "value", "schedulers", "closed_loop", "engine", "api")
"""Those that make bench runs; slower ones (estimators, drift, recency, rollout, api) are run by name."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=BENCHMARKS)
    parser.add_argument("--out", type=Path, default=Path("out/bench.json"))
    options = parser.parse_args()
    figures, failed = {}, 0
    for name in options.names:
        print(f"== {name}", flush=True)
        done = subprocess.run(
            [sys.executable, "-m", f"benchmarks.{name}", "--json"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            failed += 1
            print(done.stderr[-2000:])
            continue
        figures[name] = json.loads(done.stdout.strip().splitlines()[-1])
        print(json.dumps(figures[name], indent=1)[:4000], flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(figures, indent=1) + "\n")
    print(f"figures: {options.out}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
