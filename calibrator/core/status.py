"""What a position's figure or fit is worth, in one word."""

from __future__ import annotations

from typing import Literal

Status = Literal[
    "ok",
    "insufficient",  # too few labels for the question asked
    "censored",  # drafted, but never verified: nothing is known
    "at_grid_edge",  # the best value lies on the border of what was allowed
    "degenerate",  # every label the same: a temperature cannot be told
    "stale",  # the newest rows are too old
    "mixed_provenance",  # rows of more than one engine fingerprint
]
