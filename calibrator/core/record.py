"""The figure of record of every position: doubly robust, noise taken out, with its interval."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrator.core.clusters import MIN_REQUESTS, effective_requests, labelled_requests, t_quantile
from calibrator.core.doubly_robust import ResidualTable, doubly_robust
from calibrator.core.explored_share import explored_share
from calibrator.core.labels import EndOfSequence, drafted, included, positions
from calibrator.core.population import Population, population_of
from calibrator.core.propensity import clipped_mass, inclusion_weights, kish
from calibrator.core.status import Status
from serving_adapter.contract import Rounds

Float = NDArray[np.float64]

MIN_LABELS = 100.0
"""Fewer effective labels than this: ``insufficient``. Each is worth more here than in a plain mean."""

MIN_EXPLORED = 300.0
"""Fewer effective explored labels than this: ``insufficient`` where the figure rests on exploration. With
fewer, the ECE is off by more than its noise lets show (docs/statistics.md)."""

MAX_TRIMMED = 0.1
"""Share of the traffic trimmed from which a figure rests on exploration."""

MAX_MODELLED = 0.1
"""Largest share of the traffic whose labels had no chance to be seen; above it a position is ``censored``.
Exploration rests while an engine is saturated, and traffic may well be another one then."""


@dataclass(frozen=True, slots=True)
class RecordFigure:
    """One position; undefined figures are None, as are intervals from under ``MIN_REQUESTS`` requests.

    Attributes
    ----------
    position
        1-based.
    ece, ece_low, ece_high
        Expected calibration error over the drafted traffic with the noise taken out
        (:func:`calibrator.core.debiased_ece.debiased_ece`), and its interval.
    plain_ece
        The same table without: the binned ECE, biased upwards by about its ``noise_floor``.
    gap, gap_low, gap_high
        Mean prediction less mean label: above 0 is overconfident. Unbiased.
    squared_error
        Debiased squared calibration error; may be negative.
    n_eff
        Kish's effective number of inverse-propensity weighted labels; rows, not requests.
    clipped
        Share of inverse-propensity weight that clipping took away.
    corrected
        Share of the traffic whose labels were seen or had a chance to be explored; the rest rests on the
        outcome model alone.
    population
        Whom labels can speak for. Where that is ``verified traffic only`` there is no figure of record:
        the figures are None, :func:`calibrator.core.report.position_report` has the bounds, and a position
        of which some was trimmed is ``censored``.
    requests
        Requests with a label at this position.
    explored
        Effective number of labels behind the schedule, of exploration.
    rests_on_exploration
        Whether more than ``MAX_TRIMMED`` of the traffic was trimmed.
    """

    position: int
    ece: float | None
    ece_low: float | None
    ece_high: float | None
    plain_ece: float | None
    noise_floor: float | None
    gap: float | None
    gap_low: float | None
    gap_high: float | None
    squared_error: float | None
    n_eff: float
    clipped: float
    corrected: float
    status: Status
    population: Population
    requests: int = 0
    explored: float = 0.0
    rests_on_exploration: bool = False

    @property
    def enough(self) -> float:
        """Labels relative to those a figure needs; below 1 it is ``insufficient``."""
        labels = self.n_eff / MIN_LABELS
        return min(labels, self.explored / MIN_EXPLORED) if self.rests_on_exploration else labels


def figures_of_record(
    predicted: ArrayLike,
    rounds: Rounds,
    bins: int = 20,
    end_of_sequence: EndOfSequence = "draft_stop",
    clip: float | None = 1000.0,
    sample_weights: ArrayLike | None = None,
    confidence: float = 0.95,
    model: Float | None = None,
) -> list[RecordFigure]:
    """Judge predictions against the whole drafted traffic.

    Parameters
    ----------
    predicted
        Prefix survival ``a_k``, shape ``[rows, gamma]``.
    rounds
        The outcomes.
    bins, end_of_sequence, clip, sample_weights, model
        As for :func:`calibrator.core.doubly_robust.doubly_robust`.
    confidence
        Of the intervals.

    >>> rng = np.random.default_rng(0)
    >>> rounds = Rounds.build(np.zeros((4000, 1)), rng.random(4000) < 0.6)
    >>> figure = figures_of_record(np.full((4000, 1), 0.5), rounds)[0]
    >>> figure.ece_low < 0.1 < figure.ece_high, figure.status
    (True, 'ok')
    """
    rows = np.ones(len(rounds)) if sample_weights is None else np.asarray(sample_weights, dtype=np.float64)
    population = population_of(rounds, end_of_sequence)
    tables = doubly_robust(predicted, rounds, bins, end_of_sequence, clip, rows, model)
    weights = inclusion_weights(rounds, end_of_sequence, clip) * rows[:, None]
    lost = clipped_mass(rounds, end_of_sequence, clip)
    seen = included(rounds, end_of_sequence).sum(axis=0)
    inside = drafted(rounds, end_of_sequence).sum(axis=0)
    requests = labelled_requests(rounds.request, weights > 0)
    alike = effective_requests(rounds.request, weights)
    behind = drafted(rounds, end_of_sequence) & (positions(rounds) > rounds.scheduled[:, None])
    trimmed = (behind * rows[:, None]).sum(axis=0)
    traffic = (drafted(rounds, end_of_sequence) * rows[:, None]).sum(axis=0)
    explored = kish(np.where(behind & (weights > 0), rows[:, None], 0.0))
    contradicted = explored_share(rounds).contradicted
    figures = []
    for k, table in enumerate(tables):
        n_eff = float(kish(weights[:, k]))
        whole = table.corrected >= 1.0 - 1e-12  # nothing of this position was out of reach
        rests = bool(trimmed[k] > MAX_TRIMMED * traffic[k])
        lacking = n_eff < MIN_LABELS or alike[k] < MIN_REQUESTS
        lacking |= rests and bool(explored[k] < MIN_EXPLORED)
        status: Status = "ok"
        if not seen[k]:
            status = "censored" if inside[k] else "insufficient"
        elif not whole and (population != "traffic" or table.corrected < 1.0 - MAX_MODELLED):
            status = "censored"
        elif lacking or (contradicted and trimmed[k] > 0):
            status = "insufficient"
        defined = (whole or population == "traffic") and bool(table.mass.any()) and bool(seen[k])
        defined &= not (contradicted and trimmed[k] > 0)
        figures.append(
            _figure(
                k + 1,
                table if defined else None,
                n_eff,
                float(lost[k]),
                status,
                "traffic" if whole else population,
                confidence,
                table,
                int(requests[k]),
                float(alike[k]),
                float(explored[k]),
                rests,
            )
        )
    return figures


def _figure(
    position: int,
    table: ResidualTable | None,
    n_eff: float,
    clipped: float,
    status: Status,
    population: Population,
    confidence: float,
    source: ResidualTable,
    requests: int,
    alike: float,
    explored: float,
    rests: bool,
) -> RecordFigure:
    if table is None:
        return RecordFigure(
            position=position,
            ece=None,
            ece_low=None,
            ece_high=None,
            plain_ece=None,
            noise_floor=None,
            gap=None,
            gap_low=None,
            gap_high=None,
            squared_error=None,
            n_eff=n_eff,
            clipped=clipped,
            corrected=source.corrected,
            status=status,
            population=population,
            requests=requests,
            explored=explored,
            rests_on_exploration=rests,
        )
    sure = alike >= MIN_REQUESTS
    beyond = 1.0 - source.corrected  # of these labels nothing is known but that they lie between 0 and 1
    ece = table.debiased(confidence, seed=position, requests=alike if sure else None)
    half = t_quantile(confidence, alike) * table.mean_gap_standard_error + beyond if sure else 0.0
    return RecordFigure(
        position=position,
        ece=ece.estimate,
        ece_low=None if ece.low is None or not sure else max(ece.low - beyond, 0.0),
        ece_high=None if ece.high is None or not sure else min(ece.high + beyond, 1.0),
        plain_ece=table.ece,
        noise_floor=table.noise_floor,
        gap=table.mean_gap,
        gap_low=table.mean_gap - half if sure else None,
        gap_high=table.mean_gap + half if sure else None,
        squared_error=table.debiased_squared_error,
        n_eff=n_eff,
        clipped=clipped,
        corrected=source.corrected,
        status=status,
        population=population,
        requests=requests,
        explored=explored,
        rests_on_exploration=rests,
    )
