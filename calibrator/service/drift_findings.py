"""From alarms to episodes: what is going on now, in words, with what helps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from calibrator.core.cost.drift import Remedy
from calibrator.core.cost.watch import CostFinding
from calibrator.core.drift import ABOVE, REMEDIES, Finding, TrafficShift, diagnose
from calibrator.core.drift.segment_watch import SegmentWatch
from calibrator.service.drift_options import DriftOptions
from calibrator.service.drift_state import WatchState
from calibrator.store.episodes import Episode

COST_REMEDIES: dict[Remedy, str] = {
    "none": "wait: steps are what the curve says again",
    "rescale": "rescale: the machine has changed; one factor for all sizes mends the curve, and a refresh "
    "measures it anew",
    "by_context": "by_context: fit the curve on the context lengths of today's traffic; a refresh does",
    "profile": "profile: the shape of the curve is wrong under this load; measure the sizes again",
}


_REFIT_FIRST = "refit first, and see whether this stays; "


def ongoing(state: WatchState, options: DriftOptions, now: float) -> list[Episode]:
    """Every episode that lasts by the state of the alarms, as it would be opened now."""
    version = state.version or None
    found: list[Episode] = []
    for segment, watch in state.segments.items():
        found += _of_segment(segment, watch, state.traffic.shifts, options, now, version)
    if state.traffic.moved_at is not None:
        found.append(_of_traffic(state.traffic.moved_at, state.traffic.shifts, now, version))
    found += [_of_cost(finding, now, version) for finding in state.costs.findings(options.costs)]
    return found


def _of_segment(
    segment: str,
    watch: SegmentWatch,
    shifts: tuple[TrafficShift, ...],
    options: DriftOptions,
    now: float,
    version: int | None,
) -> Iterator[Episode]:
    directions = watch.calibration.direction, watch.acceptance.direction
    for finding in diagnose(*directions, shifts, options.rules):
        if finding.kind == "traffic":
            continue
        alarms = watch.calibration if finding.kind == "calibration" else watch.acceptance
        for position in finding.positions:
            doubt = _doubt(watch, position, version) if finding.kind == "acceptance" else ""
            gap, rows = _gap(watch, finding, position, options)
            yield Episode(
                kind=finding.kind,
                segment=segment,
                position=position,
                load_regime=None,
                context_bucket=None,
                direction="above" if finding.direction == ABOVE else "below",
                started_at=float(alarms.since[position - 1, alarms.leader[position - 1]]),
                alarmed_at=now,
                ended_at=None,
                gap=gap,
                summary=f"{finding.summary}{doubt}{_by(finding, gap, rows)}",
                remedy=f"{_REFIT_FIRST if doubt else ''}{finding.remedy}",
                version=version,
            )


def _doubt(watch: SegmentWatch, position: int, version: int | None) -> str:
    """Why an alarm of acceptance may be a change of load, where predictions stand in for labels."""
    if not watch.rests_on_predictions[position - 1]:
        return ""
    if version is None:
        return "; not told apart from a change of load before the first good refit"
    if watch.calibration.direction[position - 1]:
        return "; not told apart from a change of load while the confidences are wrong"
    return ""


def _gap(
    watch: SegmentWatch, finding: Finding, position: int, options: DriftOptions
) -> tuple[float | None, int]:
    if finding.kind == "calibration":
        return watch.calibration_gap(position, finding.direction)
    return watch.acceptance_gap(position, finding.direction, options.reference_rows)


def _by(finding: Finding, gap: float | None, rows: int) -> str:
    if gap is None:
        return ""
    what = "confidence less acceptance" if finding.kind == "calibration" else "acceptance less reference"
    return f"; {what} {gap:+.3f} over {rows:,} rows"


def _of_traffic(since: float, shifts: tuple[TrafficShift, ...], now: float, version: int | None) -> Episode:
    known = [shift for shift in shifts if shift.stability_index is not None]
    largest = max(known, key=lambda shift: shift.stability_index or 0.0, default=None)
    summary = "confidences moved"
    if largest is not None:
        summary += (
            f": stability index {largest.stability_index:.2f}, distance {largest.distance:.2f} "
            f"at position {largest.position}"
        )
    return Episode(
        kind="traffic",
        segment=None,
        position=None,
        load_regime=None,
        context_bucket=None,
        direction=None,
        started_at=since,
        alarmed_at=now,
        ended_at=None,
        gap=None if largest is None else largest.distance,
        summary=summary,
        remedy=REMEDIES["traffic"],
        version=version,
    )


def _of_cost(finding: CostFinding, now: float, version: int | None) -> Episode:
    kind, value = finding.stream
    return Episode(
        kind="cost",
        segment=None,
        position=None,
        load_regime=value if kind == "regime" else None,
        context_bucket=value if kind == "context" else None,
        direction=finding.direction,
        started_at=finding.began,
        alarmed_at=now,
        ended_at=None,
        gap=None if finding.bias is None or not np.isfinite(finding.bias) else finding.bias,
        summary=finding.summary,
        remedy=COST_REMEDIES[finding.remedy],
        version=version,
    )
