"""One refresh as a pure function: rows in, a proposal with its reasons out.

Fit on some requests, judge on the others, and say why, position by position. Nothing here knows where
the rows came from or where the parameters go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from calibrator.core.affine import fit_affine
from calibrator.core.gate import GateRules, PositionGate, gate_ece, gate_likelihood
from calibrator.core.judge import Judgement, judge
from calibrator.core.labels import EndOfSequence, at_risk, included, prefix_labels
from calibrator.core.likelihood import fit_temperatures_by_likelihood
from calibrator.core.propensity import inclusion_weights
from calibrator.core.report import PositionReport, position_report
from calibrator.core.split import held_out
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
    held_out_fraction
        Share of requests that judge and never fit.
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
    held_out_fraction: float = 0.3
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
    gates: tuple[PositionGate, ...]
    raw: tuple[PositionReport, ...]
    before: tuple[PositionReport, ...]
    after: tuple[PositionReport, ...]
    judgement: Judgement | None
    rows_fit: int
    rows_judge: int


def propose(
    rounds: Rounds,
    in_force: ParameterSet,
    options: ProposalOptions | None = None,
    sample_weights: Float | None = None,
) -> Proposal:
    """Fit, gate and judge one refresh.

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
    judging = held_out(rounds.request, options.held_out_fraction, options.split_salt)
    fit_rows, judge_rows = rounds.take(~judging), rounds.take(judging)
    fit_weights, judge_weights = weights[~judging], weights[judging]

    def report(parameters: ParameterSet) -> tuple[PositionReport, ...]:
        if not len(judge_rows):
            return ()
        predicted = parameters.survival(judge_rows)
        return tuple(
            position_report(predicted, judge_rows, options.bins, options.end_of_sequence, clip=options.clip)
        )

    identity = ParameterSet.identity(rounds.gamma)
    if not len(fit_rows) or not len(judge_rows):
        reason = f"{len(rounds)} rows of {len(np.unique(rounds.request))} requests: too few to split"
        return Proposal(
            False, in_force, in_force.form, (reason,), (), report(identity), report(in_force), (), None,
            len(fit_rows), len(judge_rows),
        )  # fmt: skip

    candidates = _candidates(fit_rows, fit_weights, in_force, options)
    judged = {
        form: judge(
            judge_rows,
            in_force.survival(judge_rows),
            candidate.parameters.survival(judge_rows),
            weights=judge_weights,
            bins=options.bins,
            clip=options.clip,
            end_of_sequence=options.end_of_sequence,
            confidence=options.confidence,
            resamples=options.resamples,
            seed=options.seed,
        )
        for form, candidate in candidates.items()
    }
    form: Form = next(iter(candidates))
    form_reason: tuple[str, ...] = ()
    if len(candidates) > 1:
        form, form_reason = compare_forms(
            candidates["temperature"].parameters,
            candidates["affine"].parameters,
            judge_rows,
            judge_weights,
            options,
        )
    candidate, judgement = candidates[form], judged[form]
    publish, reasons = _decide(candidate, judgement, options)
    return Proposal(
        publish=publish,
        parameters=candidate.parameters,
        form_judged=form,
        reasons=(*form_reason, *reasons),
        gates=candidate.gates,
        raw=report(identity),
        before=report(in_force),
        after=report(candidate.parameters),
        judgement=judgement,
        rows_fit=len(fit_rows),
        rows_judge=len(judge_rows),
    )


def _candidates(
    rows: Rounds, weights: Float, in_force: ParameterSet, options: ProposalOptions
) -> dict[Form, Candidate]:
    wanted: Sequence[Form] = ("temperature", "affine") if options.form == "auto" else (options.form,)
    forms = [form for form in wanted if form in options.supported_forms] or ["temperature"]
    built: dict[Form, Candidate] = {}
    for form in forms:
        if form == "affine":
            built[form] = _affine(rows, weights, in_force, options)
        else:
            built["temperature"] = _temperature(rows, weights, in_force, options)
    return built


def _affine(rows: Rounds, weights: Float, in_force: ParameterSet, options: ProposalOptions) -> Candidate:
    seen = at_risk(rows, options.end_of_sequence)
    labels = prefix_labels(rows)
    fit = fit_affine(rows.logits, labels, seen, np.broadcast_to(weights[:, None], seen.shape))
    gates = gate_likelihood(labels, seen, weights, options.rules)
    fitted = ParameterSet("affine", np.asarray(fit.temperatures), np.asarray(fit.offsets))
    return Candidate(_merge(in_force, fitted, gates, options), "likelihood", gates)


def _temperature(rows: Rounds, weights: Float, in_force: ParameterSet, options: ProposalOptions) -> Candidate:
    # A temperature alone cannot carry the offsets of an affine set: it starts again from the identity.
    start = in_force if in_force.form == "temperature" else ParameterSet.identity(rows.gamma)
    usable = included(rows, options.end_of_sequence)
    labels = prefix_labels(rows)
    objective: Objective = options.objective or (
        "ece" if bool((usable.mean(axis=0) >= 0.9).all()) else "likelihood"
    )
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
        inclusion = inclusion_weights(rows, options.end_of_sequence, options.clip) * weights[:, None]
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
            ParameterSet.identity(rows.gamma).survival(rows), rows, options.bins, options.end_of_sequence,
            clip=options.clip,
        )  # fmt: skip
        gates = gate_ece(labels, inclusion, raw, by_ece.statuses, options.rules)
    fitted = ParameterSet("temperature", temperatures, np.zeros(rows.gamma))
    return Candidate(_merge(start, fitted, gates, options), objective, gates)


def _merge(
    in_force: ParameterSet, fitted: ParameterSet, gates: Sequence[PositionGate], options: ProposalOptions
) -> ParameterSet:
    """Positions that may change move towards the fit, no further than the step cap."""
    allowed = np.array([g.allowed for g in gates], dtype=np.bool_)
    log_step = np.abs(np.log(fitted.temperatures / in_force.temperatures))
    largest = float(log_step[allowed].max(initial=0.0))
    share = 1.0 if largest <= options.max_log_step else options.max_log_step / largest
    log_t = np.log(in_force.temperatures)
    moved = ParameterSet(
        fitted.form,
        np.exp(log_t + share * (np.log(fitted.temperatures) - log_t)),
        in_force.offsets + share * (fitted.offsets - in_force.offsets),
    )
    return replace(
        moved,
        temperatures=np.where(allowed, moved.temperatures, in_force.temperatures),
        offsets=np.where(allowed, moved.offsets, in_force.offsets),
    )


def compare_forms(
    temperature: ParameterSet, affine: ParameterSet, rows: Rounds, weights: Float, options: ProposalOptions
) -> tuple[Form, tuple[str, ...]]:
    """Take the affine form where it is better on held-out rows beyond the interval; say why either way."""
    between = judge(
        rows,
        temperature.survival(rows),
        affine.survival(rows),
        weights=weights,
        bins=options.bins,
        clip=options.clip,
        end_of_sequence=options.end_of_sequence,
        confidence=options.confidence,
        resamples=options.resamples,
        seed=options.seed,
    )
    if between.better:
        return "affine", (f"form affine: against the temperature form {between.summary()}",)
    return "temperature", (f"form temperature: the affine form is not better ({between.summary()})",)


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
