"""Three different alarms with three different remedies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from calibrator.core.drift.rules import ABOVE, BELOW, DriftRules
from calibrator.core.drift.traffic import TrafficShift

Kind = Literal["calibration", "acceptance", "traffic"]
KINDS: tuple[Kind, ...] = ("calibration", "acceptance", "traffic")

REMEDIES: dict[Kind, str] = {
    "calibration": "refit: the confidences are wrong about the drafter; if a refit does not help, "
    "the confidence head needs training",
    "acceptance": "look at the drafter: it is accepted less than it was, and no calibration changes that; "
    "compare revisions of target and drafter, retrain or replace it",
    "traffic": "look at the mix: the requests changed; give new kinds a segment, and shorten the half-life "
    "of the sample if the change lasts",
}
RISEN = "nothing is broken: acceptance rose above its reference; take a new reference"
"""The remedy of acceptance drift upwards."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One kind of drift that is going on.

    ``positions`` are 1-based; ``direction`` is ``BELOW`` where labels lie below predictions
    (overconfident), or acceptance below its reference; 0 for traffic, which has none.
    """

    kind: Kind
    direction: int
    positions: tuple[int, ...]
    summary: str
    remedy: str


def diagnose(
    calibration: NDArray[np.int64],
    acceptance: NDArray[np.int64],
    traffic: Sequence[TrafficShift] = (),
    rules: DriftRules | None = None,
) -> list[Finding]:
    """Name what drifts and what helps.

    Parameters
    ----------
    calibration, acceptance
        Direction of the episode in progress per position, 0 without one, shape ``[gamma]``
        (:attr:`calibrator.core.drift.Watch.direction`).
    traffic
        Of :func:`calibrator.core.drift.traffic_shift`.
    rules
        ``traffic_index`` and ``traffic_distance`` are used.

    >>> found = diagnose(np.array([0, 0]), np.array([-1, 0]))
    >>> found[0].kind, found[0].positions, found[0].summary
    ('acceptance', (1,), 'accepted less than its reference, and the confidences say so')
    """
    rules = rules or DriftRules()
    findings = []
    for direction, what in ((BELOW, "overconfident"), (ABOVE, "underconfident")):
        where = _positions(calibration == direction)
        if where:
            findings.append(
                Finding("calibration", direction, where, f"the head is {what}", REMEDIES["calibration"])
            )
    moved = tuple(
        shift.position
        for shift in traffic
        if (shift.stability_index or 0.0) >= rules.traffic_index
        and (shift.distance or 0.0) >= rules.traffic_distance
    )
    for direction, what in ((BELOW, "less"), (ABOVE, "more")):
        where = _positions(acceptance == direction)
        if where:
            known = not bool((calibration == direction).any())
            summary = f"accepted {what} than its reference, and the confidences " + (
                "say so" if known else "do not know"
            )
            if moved:
                summary += "; the traffic moved as well, so compare within segments"
            remedy = REMEDIES["acceptance"] if direction == BELOW else RISEN
            findings.append(Finding("acceptance", direction, where, summary, remedy))
    if moved:
        largest = max((s for s in traffic if s.position in moved), key=lambda s: s.stability_index or 0.0)
        summary = (
            f"confidences moved: stability index {largest.stability_index:.2f}, "
            f"distance {largest.distance:.2f} at position {largest.position}"
        )
        findings.append(Finding("traffic", 0, moved, summary, REMEDIES["traffic"]))
    return findings


def _positions(mask: NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple((np.flatnonzero(mask) + 1).tolist())
