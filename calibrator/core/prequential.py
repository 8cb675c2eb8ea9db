"""Prequential scores: every row judged by the set that was published before it.

Held-out rows judge a candidate once. This judges what was done, over all versions, on rows that no set can
have seen. Source: A. P. Dawid, "Statistical theory: the prequential approach", JRSS A 1984.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrator.core.judge import Judgement, judge
from calibrator.core.labels import EndOfSequence
from calibrator.core.parameter_set import ParameterSet
from calibrator.core.report import PositionReport, position_report
from serving_adapter.contract import Rounds

Float = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class PublishedSet:
    """A version and when it came into force (seconds since 1970, or a row number)."""

    version: int
    published_at: float
    parameters: ParameterSet


@dataclass(frozen=True, slots=True, eq=False)
class PrequentialScore:
    """How one version did on the rows between its publication and the next one's.

    ``report`` is under the set, ``against_raw`` compares it with the identity and ``against_previous`` with
    the set before it on the same rows (negative is better); None for the first set, and without rows.
    """

    version: int
    rows: int
    report: tuple[PositionReport, ...]
    against_raw: Judgement | None
    against_previous: Judgement | None


def prequential_survival(
    rounds: Rounds, arrived: ArrayLike, published: Sequence[PublishedSet]
) -> tuple[Float, NDArray[np.int64]]:
    """Predict every row with the last set published before it arrived.

    Parameters
    ----------
    rounds
        The rows, in any order.
    arrived
        When each arrived, shape ``[rows]``, on the clock of ``published_at``.
    published
        The sets, in any order.

    Returns
    -------
    Prefix survival, shape ``[rows, gamma]``, and the version that each row was judged by, 0 for the identity
    before the first, shape ``[rows]``. A set published at the very time of a row is too late for it.

    >>> halved = ParameterSet("temperature", np.array([0.5]), np.zeros(1))
    >>> rows = Rounds.build([[1.0], [1.0]], [1, 1])
    >>> prequential_survival(rows, [10.0, 10.5], [PublishedSet(1, 10.0, halved)])[1].tolist()
    [0, 1]
    """
    order = sorted(published, key=lambda p: p.published_at)
    times = np.array([p.published_at for p in order])
    at = np.asarray(arrived, dtype=np.float64)
    if at.shape != (len(rounds),):
        raise ValueError(f"arrived: got shape {at.shape}, expected ({len(rounds)},)")
    which = np.searchsorted(times, at, side="left") - 1
    versions = np.array([0, *(p.version for p in order)], dtype=np.int64)
    survival = ParameterSet.identity(rounds.gamma).survival(rounds)
    for i, each in enumerate(order):
        mine = which == i
        if mine.any():
            survival[mine] = each.parameters.survival(rounds.take(mine))
    return survival, versions[which + 1]


def prequential_scores(
    rounds: Rounds,
    arrived: ArrayLike,
    published: Sequence[PublishedSet],
    sample_weights: ArrayLike | None = None,
    *,
    bins: int = 15,
    clip: float | None = 100.0,
    end_of_sequence: EndOfSequence = "draft_stop",
    confidence: float = 0.95,
) -> list[PrequentialScore]:
    """Score every published set on the rows that came while it was the newest, in order of publication."""
    order = sorted(published, key=lambda p: p.published_at)
    weights = np.ones(len(rounds)) if sample_weights is None else np.asarray(sample_weights, dtype=np.float64)
    survival, versions = prequential_survival(rounds, arrived, order)
    identity = ParameterSet.identity(rounds.gamma)
    scores = []
    for i, each in enumerate(order):
        mine = versions == each.version
        rows, w = rounds.take(mine), weights[mine]
        if not len(rows):
            scores.append(PrequentialScore(each.version, 0, (), None, None))
            continue

        def against(
            other: ParameterSet, rows: Rounds = rows, w: Float = w, mine: NDArray[np.bool_] = mine
        ) -> Judgement:
            return judge(
                rows, other.survival(rows), survival[mine], weights=w, bins=bins, clip=clip,
                end_of_sequence=end_of_sequence, confidence=confidence,
            )  # fmt: skip

        report = position_report(survival[mine], rows, bins, end_of_sequence, clip, w)
        previous = order[i - 1].parameters if i else None
        scores.append(
            PrequentialScore(
                each.version,
                len(rows),
                tuple(report),
                against(identity),
                None if previous is None else against(previous),
            )
        )
    return scores
