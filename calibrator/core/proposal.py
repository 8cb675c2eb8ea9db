"""One refresh as a pure function: rows in, a proposal with its reasons out.

Fit on some requests, judge on the others, and say why, position by position. Nothing here knows where
the rows came from or where the parameters go.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from calibrator.core.affine import fit_affine
from calibrator.core.gate import GateRules, PositionGate, gate_ece, gate_likelihood
from calibrator.core.judge import Judgement, judge
from calibrator.core.labels import EndOfSequence, at_risk, drafted, included, prefix_labels
from calibrator.core.likelihood import fit_temperatures_by_likelihood
from calibrator.core.population import figure_weights
from calibrator.core.report import PositionReport, position_report
from calibrator.core.split import folds
from calibrator.core.temperature import PEER_GRID, fit_temperatures
from serving_adapter.contract import Form, Rounds, conditional_confidence, prefix_survival

Float = NDArray[np.float64]
Objective = Literal["ece", "likelihood"]


@dataclass(frozen=True, slots=True, eq=False)
class ParameterSet:
    """``c_k = sigmoid(z_k / temperatures[k] + offsets[k])``; both arrays have shape ``[gamma]``."""

    form: Form
    temperatures: Float
    offsets: Float

    @classmethod
    def identity(cls, gamma: int) -> ParameterSet:
        """All temperatures 1, all offsets 0."""
        return cls("temperature", np.ones(gamma), np.zeros(gamma))

    def survival(self, rounds: Rounds) -> Float:
        """Predicted prefix survival ``a_k``, shape ``[rows, gamma]``."""
        return prefix_survival(conditional_confidence(rounds.logits, self.temperatures, self.offsets))


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


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """The outcome of one refresh.

    ``publish`` says whether ``parameters`` should replace the set in force; ``reasons`` say why not, or
    why this form. ``before`` and ``after`` are reports on held-out rows under the set in force and the
    candidate, ``raw`` under the identity.
    """

    publish: bool
    parameters: ParameterSet
    form_judged: Form
    reasons: tuple[str, ...]
    rows: int
    requests: int
    gates: tuple[PositionGate, ...] = ()
    raw: tuple[PositionReport, ...] = ()
    before: tuple[PositionReport, ...] = ()
    after: tuple[PositionReport, ...] = ()
    judgement: Judgement | None = None
    alternatives: dict[Form, ParameterSet] = field(default_factory=dict)


def propose(
    rounds: Rounds,
    in_force: ParameterSet,
    options: ProposalOptions | None = None,
    sample_weights: Float | None = None,
) -> Proposal:
    """Fit, gate and judge one refresh; judged by cross-fitting over folds of requests.

    Parameters
    ----------
    rounds
        Rows of one fingerprint and one population (pooled or one segment).
    in_force
        What engines apply now.
    options
        See :class:`ProposalOptions`.
    sample_weights
        Weight of each row, shape ``[rows]``: inverse sampling probability times recency.

    Raises
    ------
    ValueError
        When gamma of rows and parameters differ.
    """
    options = options or ProposalOptions()
    if rounds.gamma != len(in_force.temperatures):
        raise ValueError(
            f"gamma: got {rounds.gamma} in rows, expected {len(in_force.temperatures)} as in force"
        )
    weights = np.ones(len(rounds)) if sample_weights is None else np.asarray(sample_weights, dtype=np.float64)
    identity = ParameterSet.identity(rounds.gamma)

    def report(survival: Float) -> tuple[PositionReport, ...]:
        return tuple(
            position_report(
                survival,
                rounds,
                options.bins,
                options.end_of_sequence,
                clip=options.clip,
                sample_weights=weights,
            )
        )

    before = in_force.survival(rounds)
    fold = folds(rounds.request, options.folds, options.split_salt)
    requests = len(np.unique(rounds.request))
    if len(np.unique(fold)) < options.folds:
        reason = f"{len(rounds)} rows of {requests} requests: too few for {options.folds} folds"
        return Proposal(
            publish=False,
            parameters=in_force,
            form_judged=in_force.form,
            reasons=(reason,),
            raw=report(identity.survival(rounds)) if len(rounds) else (),
            before=report(before) if len(rounds) else (),
            rows=len(rounds),
            requests=requests,
        )

    candidates = {form: _candidate(form, rounds, weights, in_force, options) for form in _forms(options)}
    after = {
        form: _held_out_survival(candidate, fold, rounds, weights, in_force, options)
        for form, candidate in candidates.items()
    }
    judged = {form: compare(rounds, before, survival, weights, options) for form, survival in after.items()}
    form, form_reason = _choose_form(after, judged, rounds, weights, options)
    candidate, judgement = candidates[form], judged[form]
    publish, reasons = _decide(candidate, judgement, options)
    return Proposal(
        publish=publish,
        parameters=candidate.parameters,
        form_judged=form,
        reasons=(*form_reason, *reasons),
        gates=candidate.gates,
        raw=report(identity.survival(rounds)),
        before=report(before),
        after=report(after[form]),
        judgement=judgement,
        rows=len(rounds),
        requests=requests,
        alternatives={form: candidate.parameters for form, candidate in candidates.items()},
    )


def _forms(options: ProposalOptions) -> list[Form]:
    wanted: Sequence[Form] = ("temperature", "affine") if options.form == "auto" else (options.form,)
    return [form for form in wanted if form in options.supported_forms] or ["temperature"]


def _candidate(
    form: Form, rows: Rounds, weights: Float, in_force: ParameterSet, options: ProposalOptions
) -> Candidate:
    start = _start(form, in_force)
    if form == "affine":
        fitted, objective, gates = _fit_affine(rows, weights, options)
    else:
        fitted, objective, gates = _fit_temperature(rows, weights, start, options)
    return Candidate(merge(start, fitted, gates, options), objective, gates)


def _held_out_survival(
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
    fixed = dataclasses.replace(options, objective=candidate.objective)
    survival = np.empty((len(rows), rows.gamma))
    for f in range(options.folds):
        mine = fold == f
        others, their_weights = rows.take(~mine), weights[~mine]
        if form == "affine":
            fitted, _, _ = _fit_affine(others, their_weights, fixed)
        else:
            fitted, _, _ = _fit_temperature(others, their_weights, start, fixed)
        survival[mine] = merge(start, fitted, candidate.gates, options).survival(rows.take(mine))
    return survival


def _start(form: Form, in_force: ParameterSet) -> ParameterSet:
    # A temperature alone cannot carry the offsets of an affine set: it starts again from the identity.
    if form == "temperature" and in_force.form == "affine":
        return ParameterSet.identity(len(in_force.temperatures))
    return in_force


def _fit_affine(
    rows: Rounds, weights: Float, options: ProposalOptions
) -> tuple[ParameterSet, Objective, tuple[PositionGate, ...]]:
    seen = at_risk(rows, options.end_of_sequence)
    labels = prefix_labels(rows)
    fit = fit_affine(rows.logits, labels, seen, np.broadcast_to(weights[:, None], seen.shape))
    gates = gate_likelihood(labels, seen, weights, options.rules)
    return ParameterSet("affine", np.asarray(fit.temperatures), np.asarray(fit.offsets)), "likelihood", gates


def _fit_temperature(
    rows: Rounds, weights: Float, start: ParameterSet, options: ProposalOptions
) -> tuple[ParameterSet, Objective, tuple[PositionGate, ...]]:
    usable = included(rows, options.end_of_sequence)
    labels = prefix_labels(rows)
    objective: Objective = options.objective or (
        "ece" if bool((usable.sum(axis=0) >= 0.9 * drafted(rows, options.end_of_sequence).sum(axis=0)).all())
        else "likelihood"
    )  # fmt: skip
    if objective == "likelihood":
        seen = at_risk(rows, options.end_of_sequence)
        by_likelihood = fit_temperatures_by_likelihood(
            rows.logits,
            labels,
            seen,
            np.broadcast_to(weights[:, None], seen.shape),
            current=start.temperatures,
        )
        temperatures = np.asarray(by_likelihood.temperatures)
        gates = gate_likelihood(labels, seen, weights, options.rules, statuses=by_likelihood.statuses)
    else:
        inclusion = figure_weights(rows, options.end_of_sequence, options.clip)[0] * weights[:, None]
        by_ece = fit_temperatures(
            rows.logits,
            labels,
            usable,
            inclusion,
            bins=options.bins,
            grid=np.asarray(options.grid),
            ties="nearest",
            current=start.temperatures,
        )
        temperatures = np.asarray(by_ece.temperatures)
        raw = position_report(
            ParameterSet.identity(rows.gamma).survival(rows),
            rows,
            options.bins,
            options.end_of_sequence,
            clip=options.clip,
            sample_weights=weights,
        )
        gates = gate_ece(labels, inclusion, raw, by_ece.statuses, options.rules)
    return ParameterSet("temperature", temperatures, np.zeros(rows.gamma)), objective, gates


def merge(
    in_force: ParameterSet, fitted: ParameterSet, gates: Sequence[PositionGate], options: ProposalOptions
) -> ParameterSet:
    """Move the positions that may change towards the fit, no further than the step cap."""
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


def compare(
    rounds: Rounds, before: Float, after: Float, weights: Float, options: ProposalOptions
) -> Judgement:
    """Judge two predictions under the options' bins, clip, confidence and seed."""
    return judge(
        rounds,
        before,
        after,
        weights=weights,
        bins=options.bins,
        clip=options.clip,
        end_of_sequence=options.end_of_sequence,
        confidence=options.confidence,
        resamples=options.resamples,
        seed=options.seed,
    )


def choose_form(between: Judgement) -> tuple[Form, tuple[str, ...]]:
    """Take the affine form where it is better than the temperature form beyond the interval."""
    if between.better:
        return "affine", (f"form affine: against the temperature form {between.summary()}",)
    return "temperature", (f"form temperature: the affine form is not better ({between.summary()})",)


def _choose_form(
    after: dict[Form, Float],
    judged: dict[Form, Judgement],
    rounds: Rounds,
    weights: Float,
    options: ProposalOptions,
) -> tuple[Form, tuple[str, ...]]:
    if len(after) == 1:
        return next(iter(after)), ()
    form, reason = choose_form(compare(rounds, after["temperature"], after["affine"], weights, options))
    if form == "temperature" and judged["affine"].better and not judged["temperature"].better:
        return "affine", ("form affine: it is better than the set in force, the temperature form is not",)
    return form, reason


def _decide(
    candidate: Candidate, judgement: Judgement, options: ProposalOptions
) -> tuple[bool, tuple[str, ...]]:
    reasons = [f"position {g.position}: {reason}" for g in candidate.gates for reason in g.reasons]
    if not candidate.changed:
        return False, (*reasons, "no position may change")
    if not judgement.better:
        return False, (*reasons, f"no gain on held-out rows: {judgement.summary()}")
    if judgement.ece_difference is not None and -judgement.ece_difference < options.min_gain:
        return False, (
            *reasons,
            f"gain below {options.min_gain:.4f} in mean ECE: {judgement.summary()}",
        )
    return True, (*reasons, f"held-out rows: {judgement.summary()}")
