"""A candidate: one form, fitted and gated, and what it predicts for requests that it has not seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from calibrator.core.affine import Prior, fit_affine
from calibrator.core.gate import GateRules, PositionGate, gate_ece, gate_likelihood
from calibrator.core.labels import EndOfSequence, at_risk, drafted, included, prefix_labels
from calibrator.core.parameter_set import ParameterSet
from calibrator.core.population import figure_weights
from calibrator.core.report import position_report
from calibrator.core.shared_temperature import fit_shared_temperatures
from calibrator.core.soft_labels import soft_outcomes
from calibrator.core.status import Status
from calibrator.core.temperature import PEER_GRID, fit_temperatures
from serving_adapter.contract import Form, Rounds

Float = NDArray[np.float64]
Objective = Literal["ece", "likelihood"]


@dataclass(frozen=True, slots=True)
class ProposalOptions:
    """What a refresh may do.

    Parameters
    ----------
    form
        ``auto`` takes the affine form where it is better on held-out rows beyond the interval.
    supported_forms
        What every engine of the deployment can apply.
    objective
        Of the temperature form. None takes ``ece`` where nearly everything was verified and
        ``likelihood`` under truncation, where it needs far fewer rows.
    folds
        Every request is judged by a fit on the other folds; what is published is fitted on all.
    max_log_step
        Largest ``|log(T_new / T_old)|`` in one refresh; offsets move by the same share of their way.
    min_gain
        Smallest improvement of the mean held-out ECE that is worth a new version.
    clip
        Largest inverse-propensity weight.
    soft_labels
        Fit the affine form to acceptance probabilities where engines report them.
    """

    form: Literal["auto", "temperature", "affine"] = "auto"
    supported_forms: tuple[Form, ...] = ("temperature", "affine")
    objective: Objective | None = None
    bins: int = 15
    grid: tuple[float, ...] = tuple(PEER_GRID.tolist())
    folds: int = 5
    split_salt: int = 0
    max_log_step: float = 1.0
    min_gain: float = 0.002
    confidence: float = 0.95
    resamples: int = 400
    clip: float = 100.0
    soft_labels: bool = True
    end_of_sequence: EndOfSequence = "draft_stop"
    seed: int = 0
    rules: GateRules = field(default_factory=GateRules)


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A gated set: positions that may not change kept what was in force."""

    parameters: ParameterSet
    objective: Objective
    gates: tuple[PositionGate, ...]

    @property
    def changed(self) -> bool:
        """Whether any position was allowed to change."""
        return any(g.allowed for g in self.gates)


def build_candidate(
    form: Form, rows: Rounds, weights: Float, in_force: ParameterSet, options: ProposalOptions
) -> Candidate:
    """Fit one form to all rows and gate every position; what may not change keeps what is in force."""
    start = _start(form, in_force)
    objective = objective_for(form, rows, options)
    fitted, statuses = _fit(form, objective, rows, weights, start, options)
    labels = prefix_labels(rows)
    if objective == "likelihood":
        # A position with too few rows is gated by their number, whatever the fit says of it.
        seen = at_risk(rows, options.end_of_sequence)
        gates = gate_likelihood(
            labels,
            seen,
            weights,
            options.rules,
            None if form == "affine" else statuses,
            shared=True,
            verified=included(rows, options.end_of_sequence),
        )
    else:
        raw = position_report(
            ParameterSet.identity(rows.gamma).survival(rows),
            rows,
            options.bins,
            options.end_of_sequence,
            clip=options.clip,
            sample_weights=weights,
        )
        inclusion = figure_weights(rows, options.end_of_sequence, options.clip)[0] * weights[:, None]
        gates = gate_ece(labels, inclusion, raw, statuses, options.rules)
    return Candidate(merge(start, fitted, gates, options), objective, gates)


def held_out_survival(
    candidate: Candidate,
    fold: NDArray[np.int64],
    rows: Rounds,
    weights: Float,
    in_force: ParameterSet,
    options: ProposalOptions,
) -> Float:
    """Predict every row with a fit that has not seen its request; what may change was decided on all rows."""
    form = candidate.parameters.form
    start = _start(form, in_force)
    survival = np.empty((len(rows), rows.gamma))
    for f in range(options.folds):
        mine = fold == f
        fitted, _ = _fit(form, candidate.objective, rows.take(~mine), weights[~mine], start, options)
        survival[mine] = merge(start, fitted, candidate.gates, options).survival(rows.take(mine))
    return survival


def _start(form: Form, in_force: ParameterSet) -> ParameterSet:
    # A temperature alone cannot carry the offsets of an affine set: it starts again from the identity.
    if form == "temperature" and in_force.form == "affine":
        return ParameterSet.identity(len(in_force.temperatures))
    return in_force


def objective_for(form: Form, rows: Rounds, options: ProposalOptions) -> Objective:
    """By what a form is fitted: the temperature form by ECE where nearly everything was verified.

    >>> whole, cut = (Rounds.build([[0.0]] * 10, [0] * 10, verified=[v] * 10) for v in (1, 0))
    >>> [objective_for("temperature", rows, ProposalOptions()) for rows in (whole, cut)]
    ['ece', 'likelihood']
    """
    if form == "affine":
        return "likelihood"
    if options.objective is not None:
        return options.objective
    seen = included(rows, options.end_of_sequence).sum(axis=0)
    nearly_all = seen >= 0.9 * drafted(rows, options.end_of_sequence).sum(axis=0)
    return "ece" if bool(nearly_all.all()) else "likelihood"


def _fit(
    form: Form,
    objective: Objective,
    rows: Rounds,
    weights: Float,
    start: ParameterSet,
    options: ProposalOptions,
) -> tuple[ParameterSet, tuple[Status, ...]]:
    """Fit one form to rows, nothing gated; also the status of every position."""
    labels = prefix_labels(rows)
    if objective == "likelihood":
        seen = at_risk(rows, options.end_of_sequence)
        row_weights = np.broadcast_to(weights[:, None], seen.shape)
        if form == "affine":
            outcome, risk, soft_weight = (
                soft_outcomes(rows, options.end_of_sequence)
                if options.soft_labels
                else (labels, seen, np.ones(seen.shape))
            )
            affine = fit_affine(
                rows.logits,
                outcome,
                risk,
                soft_weight * weights[:, None],
                prior=Prior.around(start.temperatures, start.offsets),
            )
            fitted = ParameterSet("affine", np.asarray(affine.temperatures), np.asarray(affine.offsets))
            return fitted, tuple(affine.statuses)
        by_likelihood = fit_shared_temperatures(
            rows.logits, labels, seen, row_weights, current=start.temperatures
        )
        temperatures, statuses = by_likelihood.temperatures, by_likelihood.statuses
    else:
        by_ece = fit_temperatures(
            rows.logits,
            labels,
            included(rows, options.end_of_sequence),
            figure_weights(rows, options.end_of_sequence, options.clip)[0] * weights[:, None],
            bins=options.bins,
            grid=np.asarray(options.grid),
            ties="nearest",
            current=start.temperatures,
        )
        temperatures, statuses = by_ece.temperatures, by_ece.statuses
    return ParameterSet("temperature", np.asarray(temperatures), np.zeros(rows.gamma)), tuple(statuses)


def merge(
    in_force: ParameterSet, fitted: ParameterSet, gates: Sequence[PositionGate], options: ProposalOptions
) -> ParameterSet:
    """Move the positions that may change towards the fit, no further than the step cap.

    >>> gates = [PositionGate(1, "ok", 900.0, 600, 300), PositionGate(2, "censored", 0.0, 0, 0, ("n_eff 0",))]
    >>> fitted = ParameterSet("temperature", np.array([4.0, 4.0]), np.zeros(2))
    >>> options = ProposalOptions(max_log_step=float(np.log(2.0)))
    >>> merge(ParameterSet.identity(2), fitted, gates, options).temperatures.round(3)
    array([2., 1.])
    """
    allowed = np.array([g.allowed for g in gates], dtype=np.bool_)
    log_step = np.abs(np.log(fitted.temperatures / in_force.temperatures))
    largest = float(log_step[allowed].max(initial=0.0))
    share = 1.0 if largest <= options.max_log_step else options.max_log_step / largest
    log_t = np.log(in_force.temperatures)
    temperatures = np.exp(log_t + share * (np.log(fitted.temperatures) - log_t))
    offsets = in_force.offsets + share * (fitted.offsets - in_force.offsets)
    return ParameterSet(
        fitted.form,
        np.where(allowed, temperatures, in_force.temperatures),
        np.where(allowed, offsets, in_force.offsets),
    )
