"""Which sums a window holds, and their unit."""

from __future__ import annotations

WINDOW_BINS = 20
UNIT = 2.0**24
"""Fixed-point units of one: sums hold 2**39 unweighted rounds before an int64 overflows."""

SQUARED_UNIT = 2.0**8
"""Units of one in sums of squared weights. These reach 1e6 for a single row (weights are cut at 1000), of
which 524,000 would fill an int64 in the other units, and hold 2**35 in these. A square is at least 1, so that
rounding it changes it by 2 parts in 1000 at most, and those of unweighted rows not at all."""

LARGEST_SUM = 2**62
"""No sum that is stored may be larger: two of them can be added without a second look."""

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


class SumsOverflowError(Exception):
    """Rows whose sums no int64 holds: their weights are too large for how many they are."""


def scalar_unit(name: str) -> float:
    """Units of one in a scalar sum; 1 for counts.

    >>> scalar_unit("accepted"), scalar_unit("brier") == UNIT, scalar_unit("weight_squared")
    (1.0, True, 256.0)
    """
    if name in ("drafted", "verified", "accepted"):
        return 1.0
    return SQUARED_UNIT if name == "weight_squared" else UNIT


def bin_unit(name: str) -> float:
    """Units of one in a sum per bin; 1 for counts."""
    if name == "drafted":
        return 1.0
    return SQUARED_UNIT if name == "weight_squared" else UNIT
