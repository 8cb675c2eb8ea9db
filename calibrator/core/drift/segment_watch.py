"""Both alarms of one segment: of calibration and of acceptance, from the totals that collectors add to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from calibrator.core.drift.dependence import Tempering
from calibrator.core.drift.rules import ABOVE, BELOW, STAKES, DriftRules
from calibrator.core.drift.sums import DriftSums
from calibrator.core.drift.watch import Watch
from calibrator.core.sums import UNIT

Float = NDArray[np.float64]
Integers = NDArray[np.int64]

REFERENCE_ERRORS = 3.0
"""Standard errors of the reference that are added to the tolerance of acceptance."""

STAND_INS = 0.05
"""Share of drafted rows without verification from which acceptance rests on what was predicted."""

_SIDES = {ABOVE: 0, BELOW: 1}
_CALIBRATION, _ACCEPTANCE = slice(0, 2), slice(2, 4)  # columns of DriftSums: rows, and a sum over them


@dataclass(frozen=True, slots=True, eq=False)
class SegmentWatch:
    """What was read of a segment, and what its alarms made of it.

    Parameters
    ----------
    read
        Totals of the version that is watched, as last read.
    calibration, acceptance
        One stream per position each.
    reference
        Rows and accepted ones (fixed point) of the time that acceptance is compared with, ``[gamma, 2]``.
    lately
        Rows and sum since the evidence of a direction last stood at none: of calibration and acceptance
        by direction, shape ``[2, 2, gamma, 2]``.
    """

    read: DriftSums
    calibration: Watch
    acceptance: Watch
    reference: Integers
    lately: Integers

    @classmethod
    def start(cls, gamma: int, at: float) -> Self:
        """No evidence, and no reference yet.

        >>> SegmentWatch.start(gamma=2, at=0.0).reference.tolist()
        [[0, 0], [0, 0]]
        """
        return cls(
            DriftSums.zeros(gamma),
            Watch.start(gamma, at),
            Watch.start(gamma, at),
            np.zeros((gamma, 2), dtype=np.int64),
            np.zeros((2, 2, gamma, 2), dtype=np.int64),
        )

    @property
    def rests_on_predictions(self) -> NDArray[np.bool_]:
        """Where predictions stand in for labels often enough to move acceptance, shape ``[gamma]``.

        If they are wrong there, a change of load (more verified, or less) looks like another acceptance.
        """
        resting: NDArray[np.bool_] = self.read.verified < (1.0 - STAND_INS) * self.read.drafted
        return resting

    def restart(self, at: float, *, calibrated: bool = True) -> SegmentWatch:
        """Go on with another version of the parameters.

        Evidence of calibration goes on (:meth:`Watch.next_version`): otherwise a refresh that publishes a
        blend of old rows and new ones, before there is an alarm, would put the alarm off. Not so if the
        version before was not ``calibrated``: what it got wrong says nothing of a change.

        A reference of acceptance is partly what the set expected where nothing was verified: it is taken
        anew. Where acceptance has fallen, reference and alarm are kept: what a drafter lost is not made good
        by a head that knows of it. Not so if the version before was not ``calibrated`` and its predictions
        were most of the reference.
        """
        fresh = SegmentWatch.start(self.read.gamma, at)
        kept = self.acceptance.direction == BELOW
        if not calibrated:
            kept &= ~self.rests_on_predictions
        for mine, theirs in (
            (fresh.acceptance.log_evidence, self.acceptance.log_evidence),
            (fresh.acceptance.since, self.acceptance.since),
            (fresh.acceptance.leader, self.acceptance.leader),
            (fresh.reference, self.reference),
        ):
            mine[kept] = theirs[kept]
        fresh.lately[1][:, kept] = self.lately[1][:, kept]
        if not calibrated:
            return fresh
        quiet = self.calibration.leader < 0
        fresh.lately[0][:, quiet] = self.lately[0][:, quiet]
        return replace(fresh, calibration=self.calibration.next_version(at))

    def look(
        self,
        totals: DriftSums,
        at: float,
        rules: DriftRules,
        log_threshold: float,
        reference_rows: int,
        tempering: Tempering | None = None,
    ) -> SegmentWatch:
        """Take in what was added to the totals since the last look.

        Parameters
        ----------
        totals
            Growing sums of this version.
        at
            Time of the look.
        log_threshold
            Of :meth:`DriftRules.log_threshold`, for all streams of the deployment.
        reference_rows
            Rows that make a reference of acceptance. They bear no evidence themselves.
        tempering
            For rows of one request that share their luck; None: rows are independent.
        """
        fresh = totals - self.read
        if not fresh.drafted.any():
            return self
        powers = tempering or Tempering.independent(totals.gamma)
        calibration, _ = self.calibration.extend(
            fresh.evidence[None], [at], log_threshold, powers.calibration
        )
        level, error = self.reference_level(reference_rows)
        margin = rules.acceptance_tolerance + REFERENCE_ERRORS * error / np.sqrt(powers.acceptance)
        evidence = fresh.acceptance_evidence(level, margin)
        acceptance, _ = self.acceptance.extend(evidence[None], [at], log_threshold, powers.acceptance)
        reference = self.reference.copy()
        filling = self.reference[:, 0] < reference_rows
        reference[filling] += fresh.values[filling, _ACCEPTANCE]
        lately = self.lately.copy()
        lately[0] += fresh.values[:, _CALIBRATION]
        lately[1][:, ~filling] += fresh.values[~filling, _ACCEPTANCE]
        for i, watch in enumerate((calibration, acceptance)):
            for direction, side in _SIDES.items():
                first = side * len(STAKES)
                calm = watch.log_evidence[:, first : first + len(STAKES)].max(axis=1) <= 0.0
                lately[i, side, calm & (watch.leader < 0)] = 0
                lately[i, side, watch.direction == -direction] = 0
        return SegmentWatch(totals, calibration, acceptance, reference, lately)

    def reference_level(self, reference_rows: int) -> tuple[Float, Float]:
        """Acceptance of the reference and its standard error; NaN and 0 before it is complete.

        The error is that of independent rows.
        """
        rows = np.maximum(self.reference[:, 0], 1)
        level = np.where(self.reference[:, 0] >= reference_rows, self.reference[:, 1] / UNIT / rows, np.nan)
        variance = np.nan_to_num(level * (1.0 - level))
        error: Float = np.sqrt(np.maximum(variance, 0.0) / rows)
        return level, error

    def calibration_gap(self, position: int, direction: int) -> tuple[float | None, int]:
        """Mean prediction less mean label since the evidence began to rise, and over how many rows."""
        return _mean(self.lately[0, _SIDES[direction], position - 1])

    def acceptance_gap(self, position: int, direction: int, reference_rows: int) -> tuple[float | None, int]:
        """Acceptance since the evidence began to rise less its reference, and over how many rows."""
        level = float(self.reference_level(reference_rows)[0][position - 1])
        mean, rows = _mean(self.lately[1, _SIDES[direction], position - 1])
        return (None if mean is None or np.isnan(level) else mean - level), rows

    def to_builtins(self) -> dict[str, Any]:
        """As lists of numbers, for JSON."""
        return {
            "read": self.read.values.tolist(),
            "calibration": self.calibration.to_builtins(),
            "acceptance": self.acceptance.to_builtins(),
            "reference": self.reference.tolist(),
            "lately": self.lately.tolist(),
        }

    @classmethod
    def from_builtins(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild from :meth:`to_builtins`; exact."""
        return cls(
            DriftSums(np.array(data["read"], dtype=np.int64)),
            Watch.from_builtins(data["calibration"]),
            Watch.from_builtins(data["acceptance"]),
            np.array(data["reference"], dtype=np.int64),
            np.array(data["lately"], dtype=np.int64),
        )


def _mean(rows_and_sum: Integers) -> tuple[float | None, int]:
    rows, total = (int(value) for value in rows_and_sum)
    return (None if rows == 0 else total / UNIT / rows), rows
