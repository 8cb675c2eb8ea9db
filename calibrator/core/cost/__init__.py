"""What a step costs, from the steps that engines report: cells, curves, drift."""

from calibrator.core.cost.additive import AdditiveCost, AdditiveFit, fit_additive
from calibrator.core.cost.cells import CostCells
from calibrator.core.cost.curve import CurveFit, CurveRules, fit_curve
from calibrator.core.cost.drift import AlarmEpisode, CostAlarm, DriftCells, DriftFigures, remedy

__all__ = [
    "AdditiveCost",
    "AdditiveFit",
    "AlarmEpisode",
    "CostAlarm",
    "CostCells",
    "CurveFit",
    "CurveRules",
    "DriftCells",
    "DriftFigures",
    "fit_additive",
    "fit_curve",
    "remedy",
]
