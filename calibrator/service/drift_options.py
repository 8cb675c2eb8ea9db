"""What counts as drift, for the evaluator."""

from __future__ import annotations

from dataclasses import dataclass, field

from calibrator.core.cost.watch import CostRules
from calibrator.core.drift import DriftRules


@dataclass(frozen=True, slots=True)
class DriftOptions:
    """Rules of the alarms.

    Parameters
    ----------
    rules, costs
        Of the sequential alarms, and of the two distances of traffic. ``rules.tolerance`` belongs to the
        stored evidence: other values than the default have no effect here.
    reference_rows
        Rows per position that make a reference of acceptance.
    traffic_seconds
        Length of the two stretches of traffic that are compared, at least.
    traffic_rows
        Rows that each of them must have. Rows of one request are alike, so this is more than it seems.
    switch_rows
        Rows after which the version that served most of them is the one that is watched.
    """

    rules: DriftRules = field(default_factory=DriftRules)
    costs: CostRules = field(default_factory=CostRules)
    reference_rows: int = 4_000
    traffic_seconds: float = 600.0
    traffic_rows: int = 5_000
    switch_rows: int = 200
