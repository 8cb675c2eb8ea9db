"""The composition root: the ``dspark-calibrator`` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the console script."""
    try:
        import typer  # noqa: F401
    except ImportError:
        sys.stderr.write(
            "error: this command needs the control plane: pip install 'dspark-calibrator[service]'. "
            "An inference pod runs: python -m serving_adapter.sidecar\n"
        )
        sys.exit(2)
    from calibrator.cli.app import run

    sys.exit(run(sys.argv[1:]))
