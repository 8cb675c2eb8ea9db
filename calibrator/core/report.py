"""Calibration per draft position, from rows or from window sums; every figure with what it rests on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrator.core.auroc import auroc, binned_auroc
from calibrator.core.clusters import MIN_REQUESTS, labelled_requests
from calibrator.core.ece import Reliability, ece_bounds, reliability
from calibrator.core.explored_share import explored_share
from calibrator.core.labels import EndOfSequence, drafted, included, positions, prefix_labels
from calibrator.core.population import (
    Population,
    figure_weights,
    label_bounds,
    population_of,
    window_population,
)
from calibrator.core.propensity import kish
from calibrator.core.status import Status
from calibrator.core.windows import BIN_SUMS, LOG_LOSS_FLOOR, SCALARS, WindowSums
from serving_adapter.contract import Rounds

Float = NDArray[np.float64]

MIN_LABELS = 300.0
"""Fewer effective labels than this: ``insufficient``."""

DEEPSPEC_AUROC_BINS = 1000


@dataclass(frozen=True, slots=True)
class PositionReport:
    """Figures of one draft position; undefined ones are None.

    Attributes
    ----------
    position
        1-based.
    n, drafted, coverage
        Labelled rows, rows of the traffic, and their ratio.
    n_eff
        Kish's effective number of labels.
    ece, noise_floor
        Binned expected calibration error, and what a perfectly calibrated predictor would show.
    ece_low, ece_high
        Verified traffic only: the interval for the whole traffic that the missing labels allow.
    debiased_squared_error
        Kumar, Liang, Ma 2019; may be negative.
    gap
        Mean predicted minus mean observed: above 0 is overconfident.
    brier, log_loss, auroc
        Weighted like the rest. ``auroc`` is exact; None from window sums.
    auroc_binned
        AUROC with the rows of one bin as ties: 1000 bins as DeepSpec's evaluator has it (on positions
        that rarely survive, where predictions crowd in few bins, it is off by up to .02), or the bins of
        the windows.
    predicted, observed
        Weighted means over labelled rows.
    supported_mass
        Share of the traffic that lies in bins with labels; the figures describe that share.
    status
        ``censored``: drafted and never verified. ``insufficient``: fewer than ``MIN_LABELS`` effective
        labels, or from rows: labels of fewer than ``MIN_REQUESTS`` requests, or figures that rest on an
        exploration which the rows contradict (:mod:`calibrator.core.explored_share`). ``degenerate``:
        all labels equal. Else ``ok``.
    population
        Whom the figures describe.
    """

    position: int
    n: int
    drafted: int
    n_eff: float
    coverage: float | None
    ece: float | None
    noise_floor: float | None
    debiased_squared_error: float | None
    gap: float | None
    brier: float | None
    log_loss: float | None
    auroc: float | None
    predicted: float | None
    observed: float | None
    supported_mass: float | None
    status: Status
    population: Population
    ece_low: float | None = None
    ece_high: float | None = None
    auroc_binned: float | None = None


def position_report(
    predicted: ArrayLike,
    rounds: Rounds,
    bins: int = 20,
    end_of_sequence: EndOfSequence = "draft_stop",
    clip: float | None = None,
    sample_weights: ArrayLike | None = None,
) -> list[PositionReport]:
    """Report on predictions against the outcomes of rounds.

    Where everything was verified this is the plain ECE. Where rounds were truncated and explored it is
    inverse-propensity weighted, with bin masses from all drafted rows. Where they were truncated and
    never explored it is unweighted over verified rows, and says so.

    Parameters
    ----------
    predicted
        Prefix survival ``a_k``, shape ``[rows, gamma]``.
    rounds
        The outcomes.
    bins
        Equal-width bins.
    end_of_sequence
        See :func:`calibrator.core.labels.drafted`.
    clip
        Largest inverse-propensity weight.
    sample_weights
        Row weights, shape ``[rows]`` (inverse sampling probability, recency).

    >>> rounds = Rounds.build([[0.0, 0.0]] * 4, [0, 1, 1, 2])
    >>> [(r.ece, r.observed, r.status) for r in position_report([[0.5, 0.25]] * 4, rounds)]
    [(0.25, 0.75, 'insufficient'), (0.0, 0.25, 'insufficient')]
    """
    a = np.asarray(predicted, dtype=np.float64)
    if a.shape != rounds.logits.shape:
        raise ValueError(f"predicted: got shape {a.shape}, expected {rounds.logits.shape}")
    wrong = ~((a >= 0) & (a <= 1))
    if wrong.any():
        row, k = (int(i) for i in np.argwhere(wrong)[0])
        raise ValueError(f"predicted: row {row}, position {k + 1}: got {a[row, k]}, expected [0, 1]")
    rows = np.ones(len(rounds)) if sample_weights is None else np.asarray(sample_weights, dtype=np.float64)
    inside = drafted(rounds, end_of_sequence)
    labelled = included(rounds, end_of_sequence)
    labels = prefix_labels(rounds)
    population = population_of(rounds, end_of_sequence)
    weights, mass = (part * rows[:, None] for part in figure_weights(rounds, end_of_sequence, clip))
    bounds = None if population == "traffic" else label_bounds(rounds, end_of_sequence)
    few = labelled_requests(rounds.request, weights > 0) < MIN_REQUESTS
    if population == "traffic" and explored_share(rounds).contradicted:
        few |= (inside & (positions(rounds) > rounds.scheduled[:, None])).any(axis=0)
    return [
        _one_position(
            k + 1,
            a[:, k],
            labels[:, k].astype(np.float64),
            bins,
            weights[:, k],
            mass[:, k],
            int(labelled[:, k].sum()),
            int(inside[:, k].sum()),
            population,
            None if bounds is None else (bounds[0][:, k], bounds[1][:, k], (inside * rows[:, None])[:, k]),
            bool(few[k]),
        )
        for k in range(rounds.gamma)
    ]


def mean_ece(reports: Iterable[PositionReport]) -> float | None:
    """Mean ECE over the positions that have one; None if none has."""
    values = [r.ece for r in reports if r.ece is not None]
    return float(np.mean(values)) if values else None


def mean_noise_floor(reports: Iterable[PositionReport]) -> float | None:
    """Mean noise floor over the positions that have one; None if none has."""
    values = [r.noise_floor for r in reports if r.noise_floor is not None]
    return float(np.mean(values)) if values else None


def report_from_windows(sums: WindowSums) -> list[PositionReport]:
    """Report on window sums: the same figures as from the rows, in the bins of the windows.

    AUROC is binned; the population is that of :func:`calibrator.core.population.window_population`.
    """
    scalars = {name: sums.scalar(name) for name in SCALARS}
    per_bin = {name: sums.bin_sum(name) for name in BIN_SUMS}
    population = window_population(sums)
    reports = []
    for k in range(sums.gamma):
        weight = float(scalars["weight"][k])
        traffic = population == "traffic"
        mass = per_bin["drafted" if traffic else "weight"][k]
        table = Reliability(
            mass=mass / mass.sum() if mass.sum() > 0 else np.zeros_like(mass),
            weight=per_bin["weight"][k],
            weight_squared=per_bin["weight_squared"][k],
            predicted_sum=per_bin["predicted"][k],
            accepted_sum=per_bin["accepted"][k],
        )
        reports.append(
            _assemble(
                position=k + 1,
                n=int(scalars["verified"][k]),
                traffic=int(scalars["drafted"][k]),
                table=table,
                total=weight,
                n_eff=weight**2 / float(scalars["weight_squared"][k]) if weight > 0 else 0.0,
                predicted=float(scalars["weight_predicted"][k]),
                observed=float(scalars["weight_accepted"][k]),
                brier=float(scalars["brier"][k]),
                log_loss=float(scalars["log_loss"][k]),
                area=None,
                area_binned=binned_auroc(table.accepted_sum, table.weight - table.accepted_sum),
                population=population,
            )
        )
    return reports


def _one_position(
    position: int,
    predicted: Float,
    labels: Float,
    bins: int,
    weights: Float,
    mass: Float,
    n: int,
    traffic: int,
    population: Population,
    missing: tuple[Float, Float, Float] | None,
    few: bool,
) -> PositionReport:
    seen = weights > 0
    a, y, w = predicted[seen], labels[seen], weights[seen]
    p = np.clip(a, LOG_LOSS_FLOOR, 1.0 - LOG_LOSS_FLOOR)
    fine = reliability(a, y, DEEPSPEC_AUROC_BINS, w)
    bounds = None if missing is None else ece_bounds(predicted, missing[0], missing[1], bins, missing[2])
    return _assemble(
        position=position,
        n=n,
        traffic=traffic,
        table=reliability(predicted, labels, bins, weights, mass),
        total=float(w.sum()),
        n_eff=float(kish(w)),
        predicted=float(w @ a),
        observed=float(w @ y),
        brier=float(w @ (a - y) ** 2),
        log_loss=float(-(w @ np.where(y > 0, np.log(p), np.log1p(-p)))),
        area=auroc(a, y, w),
        area_binned=binned_auroc(fine.accepted_sum, fine.weight - fine.accepted_sum),
        population=population,
        bounds=bounds,
        few=few,
    )


def _assemble(
    *,
    position: int,
    n: int,
    traffic: int,
    table: Reliability,
    total: float,
    n_eff: float,
    predicted: float,
    observed: float,
    brier: float,
    log_loss: float,
    area: float | None,
    area_binned: float | None,
    population: Population,
    bounds: tuple[float, float] | None = None,
    few: bool = False,
) -> PositionReport:
    """Divide sums by the total weight and name the status."""

    def mean(value: float) -> float | None:
        return value / total if total > 0 else None

    p, r = mean(predicted), mean(observed)
    status: Status = "ok"
    if total <= 0:
        status = "censored" if traffic > 0 else "insufficient"
    elif n_eff < MIN_LABELS or few:
        status = "insufficient"
    elif observed <= 0 or observed >= total * (1.0 - 1e-12):
        status = "degenerate"
    return PositionReport(
        position=position,
        n=n,
        drafted=traffic,
        n_eff=n_eff,
        coverage=n / traffic if traffic > 0 else None,
        ece=_defined(table.ece),
        noise_floor=_defined(table.noise_floor),
        debiased_squared_error=_defined(table.debiased_squared_error),
        gap=None if p is None or r is None else p - r,
        brier=mean(brier),
        log_loss=mean(log_loss),
        auroc=area,
        predicted=p,
        observed=r,
        supported_mass=table.supported_mass if traffic > 0 else None,
        status=status,
        population=population,
        ece_low=None if bounds is None else _defined(bounds[0]),
        ece_high=None if bounds is None else _defined(bounds[1]),
        auroc_binned=area_binned,
    )


def _defined(value: float) -> float | None:
    return value if np.isfinite(value) else None
