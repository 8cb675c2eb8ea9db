"""Figures of a benchmark for machines, beside its table for people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def wants_table(figures: Any, to: str | None) -> bool:
    """Write figures as one JSON object to a file, or to standard output for ``-``; say if a table is wanted.

    >>> wants_table({"benchmark": "x"}, "-"), wants_table({}, None)
    {"benchmark": "x"}
    (False, True)
    """
    if to == "-":
        print(json.dumps(figures))
        return False
    if to is not None:
        Path(to).write_text(json.dumps(figures) + "\n")
    return True
