"""Sets per segment in tokens per second: those that would serve fewer are not published."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from calibrator.core.parameter_set import ParameterSet
from calibrator.core.value import value_report
from calibrator.service.curves import LiveCurve
from calibrator.service.evidence import VALUE_RESAMPLES
from calibrator.service.segments import Float, SegmentSets
from serving_adapter.contract import Rounds, SegmentParameters
from serving_adapter.step_cost import StepCost


def segments_that_pay(
    segments: SegmentSets,
    pooled: ParameterSet,
    in_force: Sequence[SegmentParameters],
    live: LiveCurve,
    rounds: Rounds,
    weights: Float,
) -> SegmentSets:
    """Replay the logged rounds with the sets decided on and with those in force, and keep the better.

    Without a curve calibration alone decides, as it does for the pooled set.
    """
    cost = StepCost.from_curve(live.curve)
    if cost is None or not segments.changed or not segments.entries:
        return segments
    report = value_report(
        rounds,
        cost,
        {
            "sets in force": dataclasses.replace(pooled, entries=tuple(in_force)),
            "sets decided on": dataclasses.replace(pooled, entries=segments.entries),
        },
        [live.requests],
        scheduler="asynchronous",
        weights=weights,
        resamples=VALUE_RESAMPLES,
    )
    worse = report.worse("sets decided on", "sets in force")
    if worse is None:
        return segments
    reason = f"segments: {worse}"
    return SegmentSets(
        tuple(in_force), reasons=(reason,), evidence={**segments.evidence, "segments_kept": reason}
    )
