"""The arms of a rollout: additive sums of a candidate's rows and of its control's, and what they estimate.

Calibration is compared in pairs. Every row is predicted by both sets, whichever was in force, and the
difference of their losses is taken at the positions at risk: the two arms verify different positions, some
harder than others, and their plain losses would differ even between two perfect sets.

Rounds of one request are dependent, and so are steps that follow each other. Every request is therefore
hashed into one of :data:`GROUPS` random groups, and so is every block of steps; sums are kept per group, and
the spread between groups is the standard error, whatever the dependence within a request. Source: Wolter,
"Introduction to variance estimation", 2007, chapter 2 (random groups).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrator.core.labels import EndOfSequence, at_risk, prefix_labels
from calibrator.core.sums import UNIT
from serving_adapter.contract import Rounds

Float = NDArray[np.float64]
Int = NDArray[np.int64]

GROUPS = 64
"""Random groups: the standard error is known to about 9 % from so many."""
STEP_BLOCK = 16
"""Steps in a row that share a group."""
PROBABILITY_FLOOR = 1e-6

COUNTS = ("rounds", "accepted", "verified", "at_risk", "steps")
ARM_SUMS = (
    "rounds",
    "accepted",  # accepted draft tokens
    "verified",  # verified draft tokens
    "at_risk",  # positions whose conditional outcome was seen
    "candidate_log_loss",  # over positions at risk, under the candidate (fixed point, as all that follows)
    "control_log_loss",
    "candidate_brier",
    "control_brier",
    "candidate_gap",  # prediction less outcome
    "control_gap",
    "steps",
    "log_step_ratio",  # log of measured over reference seconds
)
"""Sums per group: counts, and terms in units of 2**-24."""


@dataclass(frozen=True, slots=True, eq=False)
class ArmSums:
    """Sums of one arm, int64 of shape ``[GROUPS, len(ARM_SUMS)]``: they merge exactly, in any order."""

    values: Int

    @classmethod
    def zeros(cls) -> Self:
        """Sums of nothing."""
        return cls(np.zeros((GROUPS, len(ARM_SUMS)), dtype=np.int64))

    def __add__(self, other: ArmSums) -> ArmSums:
        return ArmSums(self.values + other.values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ArmSums) and bool(np.array_equal(self.values, other.values))

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        return bool(self.values.any())

    def per_group(self, name: str) -> Float:
        """One sum per group in natural units, shape ``[GROUPS]``."""
        values = self.values[:, ARM_SUMS.index(name)].astype(np.float64)
        return values if name in COUNTS else values / UNIT

    def total(self, name: str) -> float:
        """One sum over all groups in natural units."""
        return float(self.per_group(name).sum())


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean with its cluster-robust variance.

    ``units`` is what the mean is taken over (rounds, positions, steps), ``groups`` how many random groups
    had any: the variance has one degree of freedom less.
    """

    value: float
    variance: float
    units: int
    groups: int


def group_of(keys: ArrayLike) -> Int:
    """Random group of each 64-bit key: the top bits of the finaliser of splitmix64, shape of ``keys``."""
    x = np.asarray(keys, dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    group: Int = (x >> np.uint64(58)).astype(np.int64)
    return group


def fold_rounds(
    rounds: Rounds, control: Float, candidate: Float, end_of_sequence: EndOfSequence = "draft_stop"
) -> ArmSums:
    """Sum the rows of one arm.

    Parameters
    ----------
    rounds
        Rows that ran under one and the same version, or any rows (shadow).
    control, candidate
        Prefix survival ``a_k`` that either set predicts for every row, shape ``[rows, gamma]``.
    end_of_sequence
        See :func:`calibrator.core.labels.drafted`.
    """
    sums = ArmSums.zeros()
    group = group_of(rounds.request)
    seen = at_risk(rounds, end_of_sequence)
    labels = prefix_labels(rounds).astype(np.float64)
    _add(sums, "rounds", group, np.ones(len(rounds)))
    _add(sums, "accepted", group, rounds.accepted.astype(np.float64))
    _add(sums, "verified", group, rounds.verified.astype(np.float64))
    _add(sums, "at_risk", group, seen.sum(axis=1).astype(np.float64))
    for name, survival in (("candidate", candidate), ("control", control)):
        c = _conditional(survival)
        loss = -np.where(labels > 0, np.log(c), np.log1p(-c))
        _add(sums, f"{name}_log_loss", group, _fixed(loss, seen))
        _add(sums, f"{name}_brier", group, _fixed((c - labels) ** 2, seen))
        _add(sums, f"{name}_gap", group, _fixed(c - labels, seen))
    return sums


def fold_steps(seconds: ArrayLike, reference: ArrayLike, keys: ArrayLike) -> ArmSums:
    """Sum the steps of one arm.

    Parameters
    ----------
    seconds
        Measured, shape ``[steps]``; those that are not positive are left out.
    reference
        What the same curve says of the same load, for both arms alike, shape ``[steps]``.
    keys
        64-bit key of each step's block, shape ``[steps]``: one block, one group.
    """
    sums = ArmSums.zeros()
    measured, expected = np.asarray(seconds, dtype=np.float64), np.asarray(reference, dtype=np.float64)
    good = (measured > 0) & (expected > 0)
    group = group_of(keys)[good]
    _add(sums, "steps", group, np.ones(len(group)))
    ratio = np.log(measured[good] / expected[good])
    _add(sums, "log_step_ratio", group, np.rint(ratio * UNIT))
    return sums


def ratio_mean(sums: ArmSums, numerator: str, denominator: str, less: str | None = None) -> Mean | None:
    """Mean of ``numerator`` (less ``less``) per ``denominator``; None where there is nothing.

    The variance is that of a ratio of sums over random groups.

    >>> rounds = Rounds.build(np.zeros((4, 1)), [1, 0, 1, 1], request=[1, 2, 3, 4])
    >>> half = np.full((4, 1), 0.5)
    >>> ratio_mean(fold_rounds(rounds, half, half), "accepted", "rounds").value
    0.75
    """
    total = sums.per_group(numerator)
    if less is not None:
        total = total - sums.per_group(less)
    size = sums.per_group(denominator)
    units, groups = float(size.sum()), int(np.count_nonzero(size))
    if groups < 2:
        return None
    value = float(total.sum()) / units
    residual = total - value * size
    variance = groups / (groups - 1) * float((residual**2).sum()) / units**2
    return Mean(value, variance, int(units), groups)


def _conditional(survival: Float) -> Float:
    """``c_k = a_k / a_(k-1)``, kept away from 0 and 1 so that its log loss is bounded."""
    previous = np.concatenate([np.ones((len(survival), 1)), survival[:, :-1]], axis=1)
    c = np.divide(survival, previous, out=np.zeros_like(previous), where=previous > 0)
    bounded: Float = np.clip(c, PROBABILITY_FLOOR, 1.0 - PROBABILITY_FLOOR)
    return bounded


def _fixed(term: Float, seen: NDArray[np.bool_]) -> Float:
    """Terms of the positions seen in whole units of 2**-24, added up by row: exact in float64."""
    fixed: Float = np.where(seen, np.rint(term * UNIT), 0.0).sum(axis=1)
    return fixed


def _add(sums: ArmSums, name: str, group: Int, whole: Float) -> None:
    added = np.bincount(group, weights=whole, minlength=GROUPS)
    sums.values[:, ARM_SUMS.index(name)] += added.astype(np.int64)
