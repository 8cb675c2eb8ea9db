"""Sets per segment in tokens per second: those that would serve fewer are not published."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from calibrator.core.parameter_set import ParameterSet
from calibrator.core.value import value_report
from calibrator.service.evidence import VALUE_RESAMPLES
from calibrator.service.replay_curve import ReplayCurve
from calibrator.service.segments import Float, SegmentSets
from serving_adapter.contract import Rounds, SegmentParameters


def segments_that_pay(
    segments: SegmentSets,
    pooled: ParameterSet,
    in_force: Sequence[SegmentParameters],
    replay: ReplayCurve,
    rounds: Rounds,
    weights: Float,
) -> SegmentSets:
    """Replay the logged rounds with the sets decided on and with those in force, and keep the better.

    Without any curve calibration alone decides, as it does for the pooled set.
    """
    if replay.cost is None or not segments.changed or not segments.entries:
        return segments
    report = value_report(
        rounds,
        replay.cost,
        {
            "sets in force": dataclasses.replace(pooled, entries=tuple(in_force)),
            "sets decided on": dataclasses.replace(pooled, entries=segments.entries),
        },
        [replay.requests],
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
