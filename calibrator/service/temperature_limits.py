"""Which positions the temperature form cannot calibrate, whatever the temperature: evidence of a refresh."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrator.core.candidate import ProposalOptions
from calibrator.core.limits import temperature_limited
from calibrator.core.split import folds, held_out
from serving_adapter.contract import Form, Rounds

MAX_ROWS = 20_000
"""Rows looked at, whole requests: half of them fit, half of them judge."""
_SALT = 13


def temperature_limits(
    rounds: Rounds, weights: NDArray[np.float64], options: ProposalOptions, form: Form
) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Compare both forms position by position, whatever the engines can apply.

    Parameters
    ----------
    rounds, weights
        The stored sample, weights of shape ``[rows]``.
    options
        Bins, clip and intervals are used.
    form
        Of the next document: with temperatures it says which positions they leave uncalibrated.

    Returns
    -------
    One object per position (``position``, ``raw``, ``temperature`` and ``affine`` ECE on held-out requests,
    ``difference_low``, ``difference_high``, ``limited``), none with too few requests; and reasons.
    """
    if len(rounds) > MAX_ROWS:
        kept = held_out(rounds.request, MAX_ROWS / len(rounds), _SALT)
        rounds, weights = rounds.take(kept), weights[kept]
    if len(np.unique(folds(rounds.request, options.folds, options.split_salt))) < options.folds:
        return [], ()
    limits = temperature_limited(
        rounds,
        bins=options.bins,
        grid=options.grid,
        end_of_sequence=options.end_of_sequence,
        clip=options.clip,
        resamples=options.resamples,
        confidence=options.confidence,
        sample_weights=weights,
    )
    limited = [each for each in limits if each.limited]
    reasons: tuple[str, ...] = ()
    if limited and form == "temperature":
        named = ", ".join(
            f"{each.position} ({each.temperature:.4f}, affine {each.affine:.4f})" for each in limited
        )
        reasons = (f"temperature-limited: ECE that no temperature removes at position {named}",)
    return [dataclasses.asdict(each) for each in limits], reasons
