"""``python -m calibrator.cli`` is the console script."""

from calibrator.cli import main

main()
