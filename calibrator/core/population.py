"""Whom a figure describes: the traffic, or only what the scheduler let through."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from calibrator.core.labels import EndOfSequence, drafted, included, positions, prefix_labels
from calibrator.core.propensity import inclusion_weights
from calibrator.core.windows import WindowSums
from serving_adapter.contract import Rounds

Population = Literal["traffic", "verified traffic only"]

MIN_EXPLORED_SHARE = 0.5
"""Least share of trimmed positions that had a chance to be explored."""

MAX_UNSEEN_SHARE = 0.01
"""Share of the drafted rows that no labelled row needs to stand for: where hardly anything is trimmed, those
few rows may be without an explored one by chance, and their variance is then not known either."""


def population_of(rounds: Rounds, end_of_sequence: EndOfSequence = "draft_stop") -> Population:
    """Tell whether labels can speak for the traffic.

    They can if nothing was trimmed, or if at least half of what was trimmed had a chance to be explored
    (exploration rests while an engine is saturated; bin masses come from all drafted rows even then).

    >>> population_of(Rounds.build([[0.0, 0.0]], [1], verified=[1]))
    'verified traffic only'
    >>> population_of(Rounds.build([[0.0, 0.0]], [1], verified=[1], explore=[0.05]))
    'traffic'
    """
    trimmed = drafted(rounds, end_of_sequence) & (positions(rounds) > rounds.scheduled[:, None])
    explored = trimmed & (rounds.explore > 0)[:, None]
    hopeless = trimmed & ~explored & ~included(rounds, end_of_sequence)
    if not hopeless.any():
        return "traffic"
    share = float(explored.sum()) / float(explored.sum() + hopeless.sum())
    return "traffic" if share >= MIN_EXPLORED_SHARE else "verified traffic only"


def figure_weights(
    rounds: Rounds, end_of_sequence: EndOfSequence = "draft_stop", clip: float | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Weights of labelled positions and mass of drafted ones for the figure of record, ``[rows, gamma]``.

    Inverse propensities and all drafted rows where labels can speak for the traffic; otherwise ones for
    what was verified, twice.
    """
    if population_of(rounds, end_of_sequence) == "traffic":
        weights = inclusion_weights(rounds, end_of_sequence, clip)
        return weights, drafted(rounds, end_of_sequence).astype(np.float64)
    seen = included(rounds, end_of_sequence).astype(np.float64)
    return seen, seen


def window_population(sums: WindowSums) -> Population:
    """Tell the same from window sums, which do not say which rows could have been seen.

    ``traffic`` where the weights of labelled rows account for the drafted ones, within five standard
    errors of an inverse-propensity total and :data:`MAX_UNSEEN_SHARE`.
    """
    drafted_rows, weight = sums.scalar("drafted"), sums.scalar("weight")
    if np.array_equal(sums.scalar("verified"), drafted_rows):
        return "traffic"
    # Var of sum 1{seen} / pi is sum (1 / pi - 1), estimated by sum of w^2 - w over what was seen.
    spread = np.sqrt(np.maximum(sums.scalar("weight_squared") - weight, 0.0))
    short = drafted_rows - weight > 5.0 * spread + MAX_UNSEEN_SHARE * drafted_rows
    return "verified traffic only" if bool(short.any()) else "traffic"


def label_bounds(
    rounds: Rounds, end_of_sequence: EndOfSequence = "draft_stop"
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Least and largest label that every position may have, each shape ``[rows, gamma]``.

    A rejection inside the verified part settles the label of everything behind it; that makes a bound,
    though it must not make an estimate.

    >>> label_bounds(Rounds.build([[0.0] * 3] * 2, [1, 2], verified=[2, 2]))
    (array([[1., 0., 0.],
           [1., 1., 0.]]), array([[1., 0., 0.],
           [1., 1., 1.]]))
    """
    label = prefix_labels(rounds).astype(np.float64)
    rejected = (rounds.accepted < rounds.verified)[:, None]
    within = positions(rounds) <= rounds.resolved[:, None]
    settled = included(rounds, end_of_sequence) | rejected | within
    return np.where(settled, label, 0.0), np.where(settled, label, 1.0)
