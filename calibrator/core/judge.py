"""Judge whether one set of parameters is better than another, on rows that neither has seen.

Two figures, both with intervals from whole requests:

* the difference in mean ECE over the drafted traffic, against doubly robust labels: the figure of record;
* the difference in conditional log loss over at-risk positions, which needs no weights and stays valid
  on truncated traffic because the scheduler decides from the logits alone.

Where rows contradict the exploration that they claim, the first is left undefined.

Better means that one of the two excludes zero and the other does not speak against it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrator.core.bootstrap import EceDifference, ece_difference
from calibrator.core.clusters import MIN_REQUESTS, t_quantile
from calibrator.core.expected_labels import expected_labels
from calibrator.core.explored_share import explored_share
from calibrator.core.labels import EndOfSequence, at_risk, prefix_labels
from calibrator.core.population import figure_weights, population_of
from serving_adapter.contract import Rounds

Float = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Judgement:
    """Differences candidate minus set in force; negative is better. Undefined figures are None."""

    ece_difference: float | None
    ece_low: float | None
    ece_high: float | None
    log_loss_difference: float | None
    log_loss_low: float | None
    log_loss_high: float | None
    requests: int

    @property
    def better(self) -> bool:
        """One interval lies below zero, and the other does not lie above it."""
        ece = _side(self.ece_low, self.ece_high)
        loss = _side(self.log_loss_low, self.log_loss_high)
        return (ece < 0 and loss <= 0) or (loss < 0 and ece <= 0)

    def summary(self) -> str:
        """One line for people."""
        return (
            f"mean ECE {_interval(self.ece_difference, self.ece_low, self.ece_high)}, "
            f"log loss {_interval(self.log_loss_difference, self.log_loss_low, self.log_loss_high)} "
            f"over {self.requests} requests"
        )


def judge(
    rounds: Rounds,
    before: Float,
    after: Float,
    *,
    weights: Float,
    bins: int = 15,
    clip: float | None = 100.0,
    end_of_sequence: EndOfSequence = "draft_stop",
    confidence: float = 0.95,
    resamples: int = 400,
    seed: int = 0,
) -> Judgement:
    """Compare two predictions of prefix survival on held-out rows.

    Parameters
    ----------
    rounds
        Held-out rows.
    before, after
        Predicted survival ``a_k`` under the set in force and the candidate, shape ``[rows, gamma]``.
    weights
        Row weights, shape ``[rows]``.
    """
    inclusion, mass = figure_weights(rounds, end_of_sequence, clip)
    labels = prefix_labels(rounds).astype(np.float64)
    if population_of(rounds, end_of_sequence) == "traffic" and bool((rounds.scheduled < rounds.gamma).any()):
        # Both sides against the same expected labels: far less noise than one explored row in a hundred.
        labels = expected_labels(rounds, end_of_sequence, clip, weights)
        inclusion = mass
    difference = ece_difference(
        before,
        after,
        labels,
        rounds.request,
        bins=bins,
        weights=inclusion * weights[:, None],
        mass=mass * weights[:, None],
        resamples=resamples,
        confidence=confidence,
        seed=seed,
    )
    if explored_share(rounds).contradicted:
        difference = EceDifference(None, None, None, ())
    loss, low, high, requests = _log_loss_difference(
        rounds, before, after, weights, end_of_sequence, confidence
    )
    return Judgement(
        ece_difference=difference.estimate,
        ece_low=difference.low,
        ece_high=difference.high,
        log_loss_difference=loss,
        log_loss_low=low,
        log_loss_high=high,
        requests=requests,
    )


def _log_loss_difference(
    rounds: Rounds,
    before: Float,
    after: Float,
    weights: Float,
    end_of_sequence: EndOfSequence,
    confidence: float,
) -> tuple[float | None, float | None, float | None, int]:
    """Mean over at-risk positions, with the cluster-robust standard error of a ratio of request sums."""
    seen = at_risk(rounds, end_of_sequence)
    labels = prefix_labels(rounds).astype(np.float64)
    change = (_conditional_loss(after, labels) - _conditional_loss(before, labels)) * seen * weights[:, None]
    _, every = np.unique(rounds.request, return_inverse=True)
    present = np.bincount(every, (seen * weights[:, None]).sum(axis=1)) > 0
    index = np.cumsum(present) - 1
    request = np.where(present[every], index[every], 0)  # those without a label add nothing
    total = np.bincount(request, change.sum(axis=1))
    size = np.bincount(request, (seen * weights[:, None]).sum(axis=1))
    requests = int(present.sum())
    if size.sum() <= 0:
        return None, None, None, requests
    mean = float(total.sum() / size.sum())
    if requests < MIN_REQUESTS:
        return mean, None, None, requests
    residual = total - mean * size
    spread = requests / (requests - 1) * float((residual**2).sum())
    half = t_quantile(confidence, requests) * np.sqrt(spread) / float(size.sum())
    return mean, mean - half, mean + half, requests


def conditional_log_loss(
    rounds: Rounds, survival: Float, weights: Float, end_of_sequence: EndOfSequence = "draft_stop"
) -> float:
    """Mean log loss of the conditionals over at-risk positions; infinite where there are none.

    >>> rounds = Rounds.build([[0.0]] * 2, [0, 1])
    >>> round(conditional_log_loss(rounds, np.full((2, 1), 0.5), np.ones(2)), 3)
    0.693
    """
    seen = at_risk(rounds, end_of_sequence) * weights[:, None]
    if seen.sum() <= 0:
        return float(np.inf)
    loss = _conditional_loss(survival, prefix_labels(rounds).astype(np.float64))
    return float((loss * seen).sum() / seen.sum())


def _conditional_loss(survival: Float, labels: Float) -> Float:
    """Log loss of the conditionals ``c_k = a_k / a_(k-1)``, meaningful where the position was at risk."""
    previous = np.concatenate([np.ones((len(survival), 1)), survival[:, :-1]], axis=1)
    c = np.divide(survival, previous, out=np.zeros_like(survival), where=previous > 0)
    c = np.clip(c, 1e-9, 1.0 - 1e-9)
    loss: Float = np.where(labels > 0, -np.log(c), -np.log1p(-c))
    return loss


def _side(low: float | None, high: float | None) -> int:
    if low is None or high is None:
        return 0
    return -1 if high < 0 else 1 if low > 0 else 0


def _interval(estimate: float | None, low: float | None, high: float | None) -> str:
    if estimate is None or low is None or high is None:
        return "undefined"
    return f"{estimate:+.4f} [{low:+.4f}, {high:+.4f}]"
