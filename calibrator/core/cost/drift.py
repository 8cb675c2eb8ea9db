"""Is the curve still true? Predicted against measured step time, and an alarm when it is not.

Figures come from mergeable counts per load regime and context bucket. The alarm is a sign test: while
the curve is right, a step is slower than predicted (beyond a tolerance) at most every second time. No
outlier, however large, counts for more than one step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrator.core.cost.buckets import BINS_PER_OCTAVE, context_bucket, load_regime
from calibrator.core.cost.eprocess import SignTest
from calibrator.core.cost.location import locate
from calibrator.core.cost.sparse import add_up, groups
from calibrator.core.windows import UNIT
from serving_adapter.contract import Steps

Float = NDArray[np.float64]
Integers = NDArray[np.int64]
Direction = Literal["slower", "faster"]
Remedy = Literal["none", "rescale", "by_context", "profile"]

DRIFT_KEYS = ("epoch", "regime", "context", "bin")
DRIFT_SUMS = ("weight", "weight_squared")
LARGEST_RATIO_OCTAVES = 8


@dataclass(frozen=True, slots=True)
class DriftFigures:
    """How measured step time compares with the prediction; ``regime`` or ``context`` None: all of them.

    ``bias`` is the median of measured over predicted, less one (0.1: steps take 10 % longer than
    promised); ``median_relative_error`` that of ``|measured / predicted - 1|``.
    """

    regime: int | None
    context: int | None
    n_eff: float
    weight: float
    bias: float
    median_relative_error: float


@dataclass(frozen=True, slots=True, eq=False)
class DriftCells:
    """Histograms of measured over predicted; ``keys`` and ``sums`` as in :class:`CostCells`."""

    keys: Integers
    sums: Integers

    @classmethod
    def empty(cls) -> Self:
        """Of no step."""
        return cls(np.zeros((0, len(DRIFT_KEYS)), np.int64), np.zeros((0, len(DRIFT_SUMS)), np.int64))

    @classmethod
    def from_arrays(cls, keys: ArrayLike, sums: ArrayLike) -> Self:
        """Rebuild from rows in any order."""
        k = np.asarray(keys, dtype=np.int64).reshape(-1, len(DRIFT_KEYS))
        return cls(*add_up(k, np.asarray(sums, dtype=np.int64).reshape(-1, len(DRIFT_SUMS))))

    @classmethod
    def fold(
        cls,
        steps: Steps,
        epoch: ArrayLike,
        predicted: ArrayLike | None = None,
        weights: ArrayLike | None = None,
    ) -> Self:
        """Count steps that carry a prediction.

        Parameters
        ----------
        predicted
            Seconds, shape ``[steps]``; the steps' own ``predicted_seconds`` when left out.

        >>> steps = Steps.build(step_seconds=[0.11] * 9, predicted_seconds=0.1, batch_tokens=8, requests=2)
        >>> round(DriftCells.fold(steps, epoch=0).figures()[0].bias, 2)
        0.1
        """
        ratio, known = _log2_ratio(steps, predicted)
        weight = np.ones(len(steps)) if weights is None else np.asarray(weights, dtype=np.float64)
        rows = np.flatnonzero(known & (weight > 0))
        reach = LARGEST_RATIO_OCTAVES * BINS_PER_OCTAVE
        bins = np.clip(np.floor(ratio[rows] * BINS_PER_OCTAVE), -reach, reach - 1)
        keys = np.column_stack(
            [
                np.broadcast_to(np.asarray(epoch, dtype=np.int64), (len(steps),))[rows],
                load_regime(steps.requests[rows]),
                context_bucket(steps.context_tokens[rows]),
                bins.astype(np.int64),
            ]
        ).astype(np.int64)
        sums = np.rint(np.column_stack([weight, weight**2])[rows] * UNIT).astype(np.int64)
        return cls(*add_up(keys, sums))

    def __add__(self, other: DriftCells) -> DriftCells:
        return DriftCells(
            *add_up(np.concatenate([self.keys, other.keys]), np.concatenate([self.sums, other.sums]))
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DriftCells):
            return NotImplemented
        return bool(np.array_equal(self.keys, other.keys) and np.array_equal(self.sums, other.sums))

    __hash__ = None  # type: ignore[assignment]

    def between(self, first: int | None = None, before: int | None = None) -> DriftCells:
        """Epochs from ``first`` on and before ``before``."""
        epoch = self.keys[:, 0]
        kept = np.ones(len(epoch), dtype=np.bool_)
        if first is not None:
            kept &= epoch >= first
        if before is not None:
            kept &= epoch < before
        return DriftCells(self.keys[kept], self.sums[kept])

    def figures(self, by: Sequence[Literal["regime", "context"]] = ()) -> list[DriftFigures]:
        """Figures per load regime, context bucket, both, or of everything."""
        chosen = self.keys[:, [DRIFT_KEYS.index(name) for name in by]]
        distinct, owner = chosen[:1], np.zeros(len(chosen), dtype=np.int64)
        if by:
            distinct, owner = groups(chosen)
        count, bins = len(distinct), self.keys[:, 3]
        weight, squared = self.sums[:, 0] / UNIT, self.sums[:, 1] / UNIT
        centre = locate(owner, bins, weight, squared, count, reject=False)
        error = np.abs(np.exp2((bins + 0.5) / BINS_PER_OCTAVE) - 1.0)
        total = np.bincount(owner, weights=weight, minlength=count)
        return [
            DriftFigures(
                regime=int(row[list(by).index("regime")]) if "regime" in by else None,
                context=int(row[list(by).index("context")]) if "context" in by else None,
                n_eff=float(centre.n_eff[i]),
                weight=float(total[i]),
                bias=float(np.exp2(centre.median[i] / BINS_PER_OCTAVE) - 1.0),
                median_relative_error=_median(error[owner == i], weight[owner == i]),
            )
            for i, row in enumerate(distinct)
        ]


@dataclass(frozen=True, slots=True)
class AlarmEpisode:
    """A stretch of steps in which the curve was wrong in one direction; numbers count steps from 0.

    ``start`` is the step from which the evidence rose (an estimate of when it began), ``raised`` the
    step of the alarm, ``ended`` the step at which the curve had proved right again, None while it lasts.
    """

    direction: Direction
    start: int
    raised: int
    ended: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class CostAlarm:
    """The alarm of one stream of steps: a deployment, a load regime or a context bucket.

    Immutable; :meth:`extend` returns the state after more steps. One alarm per episode.

    Parameters
    ----------
    tolerance
        Relative deviation that is none.
    threshold
        Least expected number of steps between two false alarms.
    end_threshold
        The same for the end of an episode, which costs less when it is wrong.
    """

    tolerance: float = 0.05
    threshold: float = 1e6
    end_threshold: float = 1e3
    steps: int = 0
    slower: SignTest = field(default_factory=lambda: SignTest.start(0))
    faster: SignTest = field(default_factory=lambda: SignTest.start(0))
    right: SignTest = field(default_factory=lambda: SignTest.start(0))
    episodes: tuple[AlarmEpisode, ...] = ()

    @property
    def open(self) -> AlarmEpisode | None:
        """The episode that lasts, if any."""
        return self.episodes[-1] if self.episodes and self.episodes[-1].ended is None else None

    def extend(self, steps: Steps, predicted: ArrayLike | None = None) -> CostAlarm:
        """Take in steps in the order in which they came; those without a prediction do not count."""
        log2, known = _log2_ratio(steps, predicted)
        state, ratio = self, np.exp2(log2[known])
        while len(ratio):
            state, used = state._until_change(ratio)
            ratio = ratio[used:]
        return state

    def _until_change(self, ratio: Float) -> tuple[CostAlarm, int]:
        if self.open is not None:
            back = (
                ratio <= 1 + self.tolerance
                if self.open.direction == "slower"
                else ratio >= 1 / (1 + self.tolerance)
            )
            right, evidence, _ = self.right.extend(back, self.steps)
            end = _first(evidence >= np.log(self.end_threshold))
            if end is None:
                return replace(self, steps=self.steps + len(ratio), right=right), len(ratio)
            number = self.steps + end + 1
            closed = replace(self.open, ended=number - 1)
            fresh = SignTest.start(number)
            return (
                replace(
                    self, steps=number, slower=fresh, faster=fresh, episodes=(*self.episodes[:-1], closed)
                ),
                end + 1,
            )
        tests: dict[Direction, tuple[SignTest, Float, Integers]] = {
            "slower": self.slower.extend(ratio > 1 + self.tolerance, self.steps),
            "faster": self.faster.extend(ratio < 1 / (1 + self.tolerance), self.steps),
        }
        # Both directions together have one budget of false alarms.
        crossed = {d: _first(t[1] >= np.log(2 * self.threshold)) for d, t in tests.items()}
        alarms = [(at, d) for d, at in crossed.items() if at is not None]
        if not alarms:
            return (
                replace(
                    self,
                    steps=self.steps + len(ratio),
                    slower=tests["slower"][0],
                    faster=tests["faster"][0],
                ),
                len(ratio),
            )
        at, direction = min(alarms)
        number = self.steps + at
        episode = AlarmEpisode(direction, int(tests[direction][2][at]), number)
        return (
            replace(
                self,
                steps=number + 1,
                right=SignTest.start(number + 1),
                episodes=(*self.episodes, episode),
            ),
            at + 1,
        )


def remedy(
    before: DriftCells, during: DriftCells, tolerance: float = 0.05, min_n_eff: float = 20.0
) -> tuple[Remedy, str]:
    """Say what kind of drift it is, and so what helps.

    ``rescale``: every size takes longer (or shorter) by one factor, the machine has changed;
    ``CostCells.rescaled`` keeps the shape. ``by_context``: it goes with context length; fit the curve on
    the context buckets of today's traffic. ``profile``: it goes with load, the shape of the curve is
    wrong; measure the sizes again.

    Parameters
    ----------
    before, during
        Counts from before the episode's start and since.
    """
    overall = during.figures()
    if not overall or overall[0].n_eff < min_n_eff or abs(overall[0].bias) <= tolerance:
        return "none", "no deviation beyond the tolerance"
    change = overall[0].bias
    new = _new_contexts(before, during)
    if new > 0.5:
        return "by_context", f"steps take {change:+.0%}; {new:.0%} of them have contexts not seen before"
    by_context, by_regime = (_spread(during.figures([name]), min_n_eff) for name in ("context", "regime"))
    allowed = max(tolerance, 0.5 * abs(np.log1p(change)))
    if max(by_context, by_regime) <= allowed:
        return "rescale", f"steps take {change:+.0%} in every load regime and context bucket"
    if by_context >= by_regime:
        return (
            "by_context",
            f"steps take {change:+.0%}, different by {by_context:.0%} between context buckets",
        )
    return "profile", f"steps take {change:+.0%}, different by {by_regime:.0%} between load regimes"


def _new_contexts(before: DriftCells, during: DriftCells) -> float:
    """Share of the steps in context buckets that used to hold under 5 % of them."""
    old = {f.context: f.weight for f in before.figures(["context"])}
    total = sum(old.values())
    today = during.figures(["context"])
    if total <= 0:
        return 0.0
    new = sum(f.weight for f in today if old.get(f.context, 0.0) < 0.05 * total)
    return new / sum(f.weight for f in today)


def _spread(figures: Iterable[DriftFigures], min_n_eff: float) -> float:
    """Range of log bias over groups with enough steps."""
    logs = [np.log1p(f.bias) for f in figures if f.n_eff >= min_n_eff]
    return float(max(logs) - min(logs)) if logs else 0.0


def _log2_ratio(steps: Steps, predicted: ArrayLike | None) -> tuple[Float, NDArray[np.bool_]]:
    promised = np.asarray(steps.predicted_seconds if predicted is None else predicted, dtype=np.float64)
    if promised.shape != (len(steps),):
        raise ValueError(f"predicted: got shape {promised.shape}, expected [{len(steps)}]")
    measured = steps.step_seconds.astype(np.float64)
    known = (promised > 0) & (measured > 0)
    ratio = np.zeros(len(steps))
    ratio[known] = np.log2(measured[known] / promised[known])
    return ratio, known


def _median(values: Float, weight: Float) -> float:
    order = np.argsort(values)
    cumulative = np.cumsum(weight[order])
    return float(values[order][np.searchsorted(cumulative, cumulative[-1] / 2)])


def _first(hits: NDArray[np.bool_]) -> int | None:
    return int(np.argmax(hits)) if hits.any() else None
