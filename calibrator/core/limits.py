"""How much error the temperature form must leave, position by position."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrator.core.affine import fit_affine
from calibrator.core.bootstrap import ece_difference, resample_counts, resampled_ece
from calibrator.core.labels import EndOfSequence, at_risk, prefix_labels
from calibrator.core.population import figure_weights
from calibrator.core.split import held_out
from calibrator.core.temperature import PEER_BINS, PEER_GRID, fit_temperatures
from serving_adapter.contract import Rounds, conditional_confidence, prefix_survival

Float = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TemperatureLimit:
    """ECE of one position on held-out requests under three sets; undefined figures are None.

    ``limited`` says that the best temperatures leave more than the affine form does, with the interval
    of the difference (affine minus temperature) below zero.
    """

    position: int
    raw: float | None
    temperature: float | None
    affine: float | None
    difference_low: float | None
    difference_high: float | None
    limited: bool


def temperature_limited(
    rounds: Rounds,
    *,
    bins: int = PEER_BINS,
    grid: ArrayLike = PEER_GRID,
    end_of_sequence: EndOfSequence = "draft_stop",
    clip: float | None = None,
    fraction: float = 0.5,
    salt: int = 0,
    resamples: int = 500,
    confidence: float = 0.95,
    seed: int = 0,
    sample_weights: ArrayLike | None = None,
) -> list[TemperatureLimit]:
    """Fit both forms on some requests and compare them on the others.

    Parameters
    ----------
    rounds
        The rows; truncated ones are weighted as in :func:`calibrator.core.report.position_report`.
    bins, grid
        Of the ECE, and of the temperatures tried (``ece`` objective).
    clip
        Largest inverse-propensity weight.
    fraction, salt
        Of the requests that judge; see :func:`calibrator.core.split.held_out`.
    resamples, confidence, seed
        Of the bootstrap over requests.
    sample_weights
        Row weights, shape ``[rows]`` (inverse sampling probability, recency).

    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(0, 1, size=(8000, 1))
    >>> accepted = rng.random(8000) < 0.8  # whatever the head says, so a temperature can only say 1/2
    >>> temperature_limited(Rounds.build(z, accepted.astype(int)))[0].limited
    True
    """
    judging = held_out(rounds.request, fraction, salt)
    fit, judge = rounds.take(~judging), rounds.take(judging)
    labels = prefix_labels(fit)
    sampled = np.ones(len(rounds)) if sample_weights is None else np.asarray(sample_weights, dtype=np.float64)
    weights = figure_weights(fit, end_of_sequence, clip)[0] * sampled[~judging, None]
    by_ece = fit_temperatures(fit.logits, labels, None, weights, bins=bins, grid=grid)
    at = at_risk(fit, end_of_sequence)
    affine = fit_affine(fit.logits, labels, at, at * sampled[~judging, None])

    def survival(temperatures: ArrayLike, offsets: ArrayLike) -> Float:
        return prefix_survival(conditional_confidence(judge.logits, temperatures, offsets))

    zeros = np.zeros(rounds.gamma)
    temperature_form = survival(by_ece.temperatures, zeros)
    affine_form = survival(affine.temperatures, affine.offsets)
    weights, mass = (part * sampled[judging, None] for part in figure_weights(judge, end_of_sequence, clip))
    labels = prefix_labels(judge)
    change = ece_difference(
        temperature_form,
        affine_form,
        labels,
        judge.request,
        bins=bins,
        weights=weights,
        mass=mass,
        resamples=resamples,
        confidence=confidence,
        seed=seed,
    )
    once = resample_counts(len(np.unique(judge.request)), 0, seed)
    figures = [
        resampled_ece(predicted, labels, judge.request, bins, once, weights, mass)[0]
        for predicted in (survival(zeros + 1.0, zeros), temperature_form, affine_form)
    ]
    return [
        TemperatureLimit(
            position=k + 1,
            raw=_defined(figures[0][k]),
            temperature=_defined(figures[1][k]),
            affine=_defined(figures[2][k]),
            difference_low=interval.low,
            difference_high=interval.high,
            limited=interval.high is not None and interval.high < 0,
        )
        for k, interval in enumerate(change.positions)
    ]


def _defined(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
