"""Run every benchmark, print its table and keep the figures: ``python -m benchmarks [NAME ...]``."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

BENCHMARKS = ("observe", "fit", "ingest", "cost_curve", "value", "schedulers", "closed_loop", "engine", "api")
"""Those that make bench runs; slower ones (estimators, forms, drift, recency, rollout) are run by name."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=BENCHMARKS)
    parser.add_argument("--out", type=Path, default=Path("out/bench.json"))
    options = parser.parse_args()
    figures, failed = {}, 0
    for name in options.names:
        print(f"== {name}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "figures.json"
            done = subprocess.run(
                [sys.executable, "-m", f"benchmarks.{name}", "--json", str(path)], check=False
            )
            if done.returncode != 0 or not path.exists():
                failed += 1
                continue
            figures[name] = json.loads(path.read_text())
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(figures, indent=1) + "\n")
    print(f"figures: {options.out}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
