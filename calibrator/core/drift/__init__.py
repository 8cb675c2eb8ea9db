"""Drift of calibration, of acceptance and of the traffic."""

from calibrator.core.drift.dependence import Tempering, tempering
from calibrator.core.drift.diagnosis import KINDS, REMEDIES, Finding, Kind, diagnose
from calibrator.core.drift.rules import ABOVE, BELOW, PROCESSES, STAKES, DriftRules
from calibrator.core.drift.sums import COLUMNS, DriftSums, fold_drift
from calibrator.core.drift.traffic import (
    TrafficShift,
    kolmogorov_smirnov,
    population_stability_index,
    traffic_shift,
)
from calibrator.core.drift.watch import AlarmEvent, Watch

__all__ = [
    "ABOVE",
    "BELOW",
    "COLUMNS",
    "KINDS",
    "PROCESSES",
    "REMEDIES",
    "STAKES",
    "AlarmEvent",
    "DriftRules",
    "DriftSums",
    "Finding",
    "Kind",
    "Tempering",
    "TrafficShift",
    "Watch",
    "diagnose",
    "fold_drift",
    "kolmogorov_smirnov",
    "population_stability_index",
    "tempering",
    "traffic_shift",
]
