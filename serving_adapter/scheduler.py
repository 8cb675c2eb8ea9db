"""How much of each draft to verify: the hardware-aware prefix scheduler and its simpler relatives.

Candidates are (request r, position j) with predicted prefix survival ``a[r, j]``. Admitting the ``m``
best of them makes a batch of ``B = R + m`` tokens (every request brings its anchor), from which::

    tau(m) = R + sum of the m largest survivals      tokens expected, each request's bonus token included
    theta(m) = tau(m) / seconds(R + m)               tokens per second

Survival never rises along a row, so the ``m`` best form a prefix of every row.

A scheduler may decide on position j from what was known before token j was drawn, and from nothing
later: lossless decoding needs that, and so do the labels (a position let through because of what came
after it is not a fair sample). Source: DSpark, arXiv 2607.05147, Algorithm 1 and section 5.2.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from serving_adapter.step_cost import StepCost

Float = NDArray[np.float64]
Lengths = NDArray[np.int64]

LAG = 2
"""Steps between the confidences that set the asynchronous capacity and the step that uses it."""


class Scheduler(Protocol):
    """Chooses verification lengths. Equal inputs in equal order give equal lengths on every rank."""

    def lengths(self, survival: Float, cost: StepCost | None) -> Lengths:
        """Choose how many draft positions of each request to verify in this step.

        Parameters
        ----------
        survival
            Predicted prefix survival ``a``, shape ``[R, gamma]``, see
            :func:`serving_adapter.contract.prefix_survival`. A NaN counts as 0, a row that rises is
            cut to its running minimum.
        cost
            Cost of a step, or None while nothing is known: then nothing is a reason to trim.

        Returns
        -------
        Lengths in ``[0, gamma]``, shape ``[R]``.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """All positions of a batch from the most to the least likely to survive.

    Ties go by request, then by position. ``tau`` and ``theta`` have one entry for every number of
    admitted candidates, 0 to ``R * gamma``; ``measured`` tells which of these batch sizes the cost is
    known for.
    """

    survival: Float
    order: NDArray[np.int64]
    tau: Float
    theta: Float
    measured: NDArray[np.bool_]

    @classmethod
    def rank(cls, survival: ArrayLike, cost: StepCost) -> Candidates:
        """Sort the candidates of a batch, shape ``[R, gamma]``, and price every number of them."""
        a = _clean(survival)
        order = np.argsort(-a, axis=None, kind="stable")
        tau = a.shape[0] + np.concatenate(([0.0], np.cumsum(a.ravel()[order])))
        tokens = a.shape[0] + np.arange(tau.size)
        return cls(a, order, tau, tau / cost.seconds(tokens), cost.measured(tokens))

    def __len__(self) -> int:
        return int(self.order.size)

    def lengths(self, admitted: int) -> Lengths:
        """Lengths when the ``admitted`` best candidates are verified, shape ``[R]``."""
        rows = self.order[:admitted] // self.survival.shape[1]
        return np.bincount(rows, minlength=self.survival.shape[0]).astype(np.int64)

    def early_stop(self) -> int:
        """Admit while ``theta`` rises and stop at the first candidate that does not raise it.

        A size that was never measured is no reason to stop.
        """
        stops = (self.theta[1:] <= self.theta[:-1]) & self.measured[1:]
        first = int(np.argmax(stops)) if stops.size else 0
        return first if stops.size and stops[first] else len(self)

    def best(self) -> int:
        """Admit as many as make ``theta`` largest over all measured sizes, the fewest among equals.

        The cost is a staircase, so ``theta`` can fall and rise again. Where ``theta`` still stands
        highest at the last measured size, or no size is measured, everything is admitted: nothing
        measured speaks against it.
        """
        known = int(np.count_nonzero(self.measured))
        if known == 0:
            return len(self)
        best = int(np.argmax(self.theta[:known]))
        return len(self) if known <= len(self) and best == known - 1 else best

    def gain(self, admitted: int) -> float:
        """Predicted gain in ``theta`` over verifying all that is measured; 0.05 means 5 % more."""
        known = int(np.count_nonzero(self.measured))
        if known == 0:
            return 0.0
        return float(self.theta[min(admitted, known - 1)] / self.theta[known - 1] - 1.0)


@dataclass(slots=True)
class EarlyStop:
    """Algorithm 1 of the paper: admit by survival while predicted tokens per second rise.

    Parameters
    ----------
    min_predicted_gain
        Trim only when that promises at least this relative gain over verifying everything; 0 for the
        algorithm as published. The promise is computed from the confidences of two steps before:
        current ones would let a deep position decide about the positions in front of it. Until there
        are such confidences, nothing is trimmed.
    """

    min_predicted_gain: float = 0.0
    _history: _History = field(default_factory=lambda: _History(), repr=False)

    def __post_init__(self) -> None:
        _check_gain(self.min_predicted_gain)

    def lengths(self, survival: Float, cost: StepCost | None) -> Lengths:
        """See :meth:`Scheduler.lengths`."""
        if self.min_predicted_gain > 0:
            old = self._history.exchange(survival)
            if cost is not None:
                past = None if old is None else Candidates.rank(old, cost)
                if past is None or past.gain(past.early_stop()) < self.min_predicted_gain:
                    return _everything(survival)
        if cost is None:
            return _everything(survival)
        ranked = Candidates.rank(survival, cost)
        return ranked.lengths(ranked.early_stop())


@dataclass(slots=True)
class Asynchronous:
    """Section 5.2 of the paper: how many to verify is settled ahead, which ones is settled now.

    The capacity K comes from the confidences of two steps before by a search over all K, which is fair
    because those confidences say nothing about the tokens of this step; the K best candidates by
    current confidence are verified. When the number of requests changed in between, the old rows stand
    for the new ones in turn. The first two steps stop early instead.

    Parameters
    ----------
    min_predicted_gain
        As in :class:`EarlyStop`.
    """

    min_predicted_gain: float = 0.0
    _history: _History = field(default_factory=lambda: _History(), repr=False)

    def __post_init__(self) -> None:
        _check_gain(self.min_predicted_gain)

    def lengths(self, survival: Float, cost: StepCost | None) -> Lengths:
        """See :meth:`Scheduler.lengths`."""
        old = self._history.exchange(survival)
        if cost is None:
            return _everything(survival)
        now = Candidates.rank(survival, cost)
        if old is None:
            return now.lengths(now.early_stop()) if self.min_predicted_gain == 0 else _everything(survival)
        past = Candidates.rank(old, cost)
        capacity = past.best()
        if self.min_predicted_gain > 0 and past.gain(capacity) < self.min_predicted_gain:
            return _everything(survival)
        return now.lengths(capacity)


@dataclass(frozen=True, slots=True)
class GlobalSearch:
    """The best number of candidates by current confidences: for analysis, never for serving.

    It looks at confidences of tokens that stand behind the position it decides about (the paper's
    counter-example), so what it lets through is neither lossless nor a fair sample.
    """

    def lengths(self, survival: Float, cost: StepCost | None) -> Lengths:
        """See :meth:`Scheduler.lengths`."""
        if cost is None:
            return _everything(survival)
        ranked = Candidates.rank(survival, cost)
        return ranked.lengths(ranked.best())


@dataclass(frozen=True, slots=True)
class FixedLength:
    """Verify the first ``length`` positions of every draft; 1 is multi-token prediction as usual."""

    length: int

    def __post_init__(self) -> None:
        if self.length < 0:
            raise ValueError(f"length: got {self.length}, expected a number of draft positions >= 0")

    def lengths(self, survival: Float, cost: StepCost | None) -> Lengths:  # noqa: ARG002
        """See :meth:`Scheduler.lengths`."""
        requests, gamma = np.shape(survival)
        return np.full(requests, min(self.length, gamma), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Threshold:
    """Verify while the predicted prefix survival is at least ``survival``."""

    survival: float

    def __post_init__(self) -> None:
        if not 0 <= self.survival <= 1:
            raise ValueError(f"survival: got {self.survival}, expected a probability in [0, 1]")

    def lengths(self, survival: Float, cost: StepCost | None) -> Lengths:  # noqa: ARG002
        """See :meth:`Scheduler.lengths`."""
        kept: Lengths = np.sum(_clean(survival) >= self.survival, axis=1, dtype=np.int64)
        return kept


@dataclass(frozen=True, slots=True)
class VerifyAll:
    """Scheduling off: verify every drafted position."""

    def lengths(self, survival: Float, cost: StepCost | None) -> Lengths:  # noqa: ARG002
        """See :meth:`Scheduler.lengths`."""
        return _everything(survival)


def scheduler_from_name(name: str, min_predicted_gain: float = 0.0) -> Scheduler:
    """Make a scheduler from its name in settings.

    ``early-stop`` (Algorithm 1), ``asynchronous``, ``fixed:K``, ``threshold:P``, ``off`` (verify
    everything) or ``none`` (verify nothing).

    Raises
    ------
    ValueError
        Naming what was given.
    """
    kind, _, argument = name.partition(":")
    try:
        if kind == "fixed" and argument:
            return FixedLength(int(argument))
        if kind == "threshold" and argument:
            return Threshold(float(argument))
    except ValueError as error:
        raise ValueError(f"scheduler: got {name!r} ({error})") from error
    plain: dict[str, Scheduler] = {
        "early-stop": EarlyStop(min_predicted_gain),
        "asynchronous": Asynchronous(min_predicted_gain),
        "off": VerifyAll(),
        "none": FixedLength(0),
    }
    if name not in plain:
        raise ValueError(
            f"scheduler: got {name!r}, expected early-stop, asynchronous, fixed:K, threshold:P, off or none"
        )
    return plain[name]


class _History:
    """Survivals of the last steps."""

    def __init__(self) -> None:
        self._kept: deque[Float] = deque(maxlen=LAG)

    def exchange(self, survival: ArrayLike) -> Float | None:
        """Keep this step's survivals; return those of ``LAG`` steps before, shaped for as many requests."""
        now = np.array(survival, dtype=np.float64)
        old = self._kept[0] if len(self._kept) == LAG else None
        if now.shape[0]:  # an idle step says nothing about capacity
            self._kept.append(now)
        if old is None or old.shape[1:] != now.shape[1:]:
            return None
        return old if old.shape == now.shape else old[np.arange(now.shape[0]) % old.shape[0]]


def _clean(survival: ArrayLike) -> Float:
    a = np.nan_to_num(np.asarray(survival, dtype=np.float64), nan=0.0)
    # Whatever a head may emit, admitted positions stay a prefix of their row.
    return np.minimum.accumulate(np.clip(a, 0.0, 1.0), axis=1)


def _everything(survival: ArrayLike) -> Lengths:
    requests, gamma = np.shape(survival)
    return np.full(requests, gamma, dtype=np.int64)


def _check_gain(value: float) -> None:
    if not 0 <= value < np.inf:
        raise ValueError(f"min_predicted_gain: got {value}, expected a relative gain >= 0")
