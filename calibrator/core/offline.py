"""Fit every given row, without a gate: what the peers' fitters do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from calibrator.core.affine import fit_affine
from calibrator.core.candidate import ProposalOptions
from calibrator.core.labels import at_risk, included, prefix_labels
from calibrator.core.likelihood import fit_temperatures_by_likelihood
from calibrator.core.parameter_set import ParameterSet
from calibrator.core.propensity import inclusion_weights
from calibrator.core.proposal import choose_form, compare
from calibrator.core.report import position_report
from calibrator.core.split import held_out
from calibrator.core.status import Status
from calibrator.core.temperature import fit_temperatures
from serving_adapter.contract import FORMS, Form, Rounds


@dataclass(frozen=True, slots=True, eq=False)
class OfflineFit:
    """Fitted parameters, the status of every position, and what a user should know."""

    parameters: ParameterSet
    statuses: tuple[Status, ...]
    notes: tuple[str, ...] = ()


def fit_offline(rounds: Rounds, options: ProposalOptions) -> OfflineFit:
    """Fit all rows in the form asked for; ``auto`` chooses on rows held out by request, then fits all.

    Parameters
    ----------
    rounds
        The rows; positions that were not verified teach nothing.
    options
        ``form``, ``supported_forms``, ``objective`` (default ``ece``), ``bins``, ``grid``,
        ``end_of_sequence``, and the split of ``auto``.

    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(0, 2, size=(4000, 1))
    >>> accepted = rng.random(4000) < 1 / (1 + np.exp(-z[:, 0] / 2))  # overconfident by factor 2
    >>> fit = fit_offline(Rounds.build(z, accepted), ProposalOptions(form="temperature"))
    >>> fit.parameters.temperatures.round(1), fit.statuses
    (array([2.]), ('ok',))
    """
    form, notes = _form(rounds, options)
    parameters, fitted = _fit(form, rounds, options)
    return OfflineFit(parameters, _statuses(rounds, fitted, options), notes)


def _fit(form: Form, rounds: Rounds, options: ProposalOptions) -> tuple[ParameterSet, Sequence[Status]]:
    if form == "affine":
        seen = at_risk(rounds, options.end_of_sequence)
        fit = fit_affine(rounds.logits, prefix_labels(rounds), seen)
        parameters = ParameterSet("affine", np.asarray(fit.temperatures), np.asarray(fit.offsets))
        return parameters, fit.statuses
    if options.objective == "likelihood":
        seen = at_risk(rounds, options.end_of_sequence)
        likelihood = fit_temperatures_by_likelihood(rounds.logits, prefix_labels(rounds), seen)
        temperatures, statuses = likelihood.temperatures, likelihood.statuses
    else:
        explored = bool(((rounds.explore > 0) & (rounds.scheduled < rounds.gamma)).any())
        by_ece = fit_temperatures(
            rounds.logits,
            prefix_labels(rounds),
            included(rounds, options.end_of_sequence),
            inclusion_weights(rounds, options.end_of_sequence, options.clip) if explored else None,
            bins=options.bins,
            grid=np.asarray(options.grid),
            ties="first",
        )
        temperatures, statuses = by_ece.temperatures, by_ece.statuses
    parameters = ParameterSet("temperature", np.asarray(temperatures), np.zeros(rounds.gamma))
    return parameters, statuses


def _statuses(rounds: Rounds, fitted: Sequence[Status], options: ProposalOptions) -> tuple[Status, ...]:
    """Name what is wrong with the labels before what is wrong with the fit: as a report on the rows does."""
    reports = position_report(
        ParameterSet.identity(rounds.gamma).survival(rounds), rounds, options.bins, options.end_of_sequence
    )
    return tuple(
        report.status if report.status != "ok" else status
        for report, status in zip(reports, fitted, strict=True)
    )


def _form(rounds: Rounds, options: ProposalOptions) -> tuple[Form, tuple[str, ...]]:
    if options.form != "auto":
        return options.form, ()
    if "affine" not in options.supported_forms:
        return "temperature", ()
    judging = held_out(rounds.request, 1.0 / 3.0, options.split_salt)
    fit_rows, judge_rows = rounds.take(~judging), rounds.take(judging)
    if not len(fit_rows) or not len(judge_rows):
        return "temperature", ("auto: too few requests to hold any out, so the temperature form",)
    temperature, affine = (_fit(form, fit_rows, options)[0].survival(judge_rows) for form in FORMS)
    return choose_form(compare(judge_rows, temperature, affine, np.ones(len(judge_rows)), options))
