"""Which sums a window holds, and their unit."""

from __future__ import annotations

WINDOW_BINS = 20
UNIT = 2.0**24
"""Fixed-point units of one: a window holds 2**39 unweighted rounds before an int64 overflows."""

LOG_LOSS_FLOOR = 1e-9

SCALARS = (
    "drafted",  # positions that belong to the traffic
    "verified",  # of these, verified: unweighted labels
    "accepted",  # of these, accepted
    "predicted",  # sum of a_k over verified (fixed point)
    "weight",  # sums over verified rows with a known propensity (fixed point) ...
    "weight_squared",
    "weight_predicted",
    "weight_accepted",
    "brier",
    "log_loss",
)
BIN_SUMS = ("drafted", "weight", "weight_squared", "predicted", "accepted")
"""Per bin of a_k: count of drafted positions, then weighted sums (fixed point) over labelled ones."""
