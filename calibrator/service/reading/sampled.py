"""Reliability from the sampled rows of a period: curves without bins and smooth ECE, three predictions apart.

Windows have twenty fixed bins, which is all that a figure over time needs. A diagram that somebody looks at
deserves the rows: the isotonic curve of :func:`calibrator.core.corp.corp_curve` chooses its own steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from calibrator.core.corp import CorpCurve, corp_curve
from calibrator.core.labels import prefix_labels
from calibrator.core.parameter_set import ParameterSet
from calibrator.core.population import figure_weights
from calibrator.core.propensity import kish
from calibrator.core.record import RecordFigure, figures_of_record
from calibrator.core.report import PositionReport, position_report
from calibrator.core.smooth_ece import smooth_ece
from calibrator.store import parameters, sample
from calibrator.store.deployments import Deployment
from serving_adapter.contract import ParameterDocument, Rounds

Float = NDArray[np.float64]

BASES = ("raw", "in_force", "latest")
"""Predictions: of the head as it is, as they were when each row was served, of the newest version."""
MOST_ROWS = 20_000
BAND_RESAMPLES = 100
HISTOGRAM_BINS = 20
HALVINGS = 12
ENOUGH_OF_BEST = 0.5
"""Share of the effective rows of the best half-life that a longer one must keep to be taken."""


@dataclass(frozen=True, slots=True, eq=False)
class SampledPosition:
    """One position under one prediction; ``curve`` and ``smooth`` are None without labels.

    ``histogram`` is the share of the drafted rows by prediction, shape ``[HISTOGRAM_BINS]``.
    """

    report: PositionReport
    record: RecordFigure
    curve: CorpCurve | None
    smooth: float | None
    histogram: Float


@dataclass(frozen=True, slots=True, eq=False)
class SampledReliability:
    """Rows used, how many versions served them, and every position under each of :data:`BASES`.

    ``half_life_seconds`` is that of the weights by age, None where every row of the range counts alike.
    """

    rows: int
    half_life_seconds: float | None
    versions: tuple[int, ...]
    positions: Mapping[str, tuple[SampledPosition, ...]]


def sampled_reliability(
    connection: Connection, deployment: Deployment, start: float, end: float
) -> SampledReliability | None:
    """Judge the sampled rows that arrived in ``[start, end)``; None without any.

    All count alike however old, unless hardly any of the old ones are left in the sample: then they fade.
    """
    found = sample.load(
        connection,
        deployment.id,
        deployment.gamma,
        end,
        fingerprint=deployment.fingerprint,
        half_life_seconds=math.inf,
    )
    found = found.take((found.arrival >= start) & (found.arrival < end))
    if not len(found):
        return None
    weights, half_life = _faded(found.weights, end - found.arrival)
    if len(found) > MOST_ROWS:
        chosen = np.sort(np.random.default_rng(0).choice(len(found), MOST_ROWS, replace=False))
        found, weights = found.take(chosen), weights[chosen]
    rounds, weights = found.rounds, weights / weights.mean()
    versions = np.unique(rounds.version).tolist()
    documents = {v: parameters.get(connection, deployment.id, v) for v in versions if v}
    newest = parameters.in_force(connection, deployment.id)
    survival = {
        "raw": ParameterSet.identity(rounds.gamma).survival(rounds),
        "in_force": served_survival(rounds, documents),
        "latest": _survival_of(newest.document if newest else None, rounds),
    }
    return SampledReliability(
        rows=len(rounds),
        half_life_seconds=half_life,
        versions=tuple(int(v) for v in versions),
        positions={
            name: _positions(predicted, rounds, weights, BAND_RESAMPLES if name == "in_force" else 0)
            for name, predicted in survival.items()
        },
    )


def _faded(weights: Float, age: Float) -> tuple[Float, float | None]:
    """Weights with the longest half-life under which the sample still says something, and that half-life.

    The sample forgets: a row from many half-lives ago is there by luck and stands for thousands, so that all
    rows alike would be a figure of a handful of them. ``weights`` are one over the inclusion probability.

    >>> weights, half_life = _faded(np.array([1.0, 1.0, 1.0, 1e6]), np.array([1.0, 2.0, 3.0, 600.0]))
    >>> half_life, bool(weights[3] < 10)
    (18.75, True)
    >>> _faded(np.ones(2), np.array([1.0, 600.0]))[1] is None
    True
    """
    half_life = float(age.max())
    tried: list[tuple[Float, float | None]] = [(weights, None)]
    for _ in range(HALVINGS):
        tried.append((weights * np.exp2(-age / half_life), half_life) if half_life > 0 else tried[-1])
        half_life /= 2.0
    effective = [float(kish(each)) for each, _ in tried]
    return next(
        each for each, n in zip(tried, effective, strict=True) if n >= ENOUGH_OF_BEST * max(effective)
    )


def served_survival(rounds: Rounds, documents: Mapping[int, ParameterDocument | None]) -> Float:
    """Survival as the engine predicted it: every row by the version that it was served under."""
    survival = ParameterSet.identity(rounds.gamma).survival(rounds)
    for version, document in documents.items():
        mine = rounds.version == version
        if document is not None and mine.any():
            survival[mine] = ParameterSet.of(document).survival(rounds.take(mine))
    return survival


def _survival_of(document: ParameterDocument | None, rounds: Rounds) -> Float:
    chosen = ParameterSet.identity(rounds.gamma) if document is None else ParameterSet.of(document)
    return chosen.survival(rounds)


def _positions(
    predicted: Float, rounds: Rounds, weights: Float, resamples: int
) -> tuple[SampledPosition, ...]:
    inclusion, mass = (part * weights[:, None] for part in figure_weights(rounds, clip=100.0))
    labels = prefix_labels(rounds).astype(np.float64)
    reports = position_report(predicted, rounds, clip=100.0, sample_weights=weights)
    records = figures_of_record(predicted, rounds, sample_weights=weights)
    positions = []
    for k in range(rounds.gamma):
        a, y, w = predicted[:, k], labels[:, k], inclusion[:, k]
        histogram, _ = np.histogram(a, HISTOGRAM_BINS, (0.0, 1.0), weights=mass[:, k])
        total = histogram.sum()
        positions.append(
            SampledPosition(
                report=reports[k],
                record=records[k],
                curve=corp_curve(a, y, w, confidence=0.95, resamples=resamples),
                smooth=smooth_ece(a, y, w).error,
                histogram=histogram / total if total > 0 else histogram,
            )
        )
    return tuple(positions)
