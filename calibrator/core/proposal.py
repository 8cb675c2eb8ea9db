"""One refresh as a pure function: rows in, a proposal with its reasons out.

Fit on some requests, judge on the others, and say why, position by position. Nothing here knows where
the rows came from or where the parameters go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from calibrator.core.candidate import Candidate, ProposalOptions, build_candidate, held_out_survival
from calibrator.core.gate import PositionGate
from calibrator.core.judge import Judgement, judge
from calibrator.core.parameter_set import ParameterSet
from calibrator.core.report import PositionReport, position_report
from calibrator.core.split import folds
from serving_adapter.contract import Form, Rounds

Float = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """The outcome of one refresh.

    ``publish`` says whether ``parameters`` should replace the set in force; ``reasons`` say why not, or
    why this form. ``before`` and ``after`` are reports on held-out rows under the set in force and the
    candidate, ``raw`` under the identity. ``held_out`` is the survival that the candidate predicts for rows
    of requests that its fit has not seen, shape ``[rows, gamma]``; None without a candidate.
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
    held_out: Float | None = None


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

    fitted = {form: _fitted(form, rounds, weights, fold, in_force, options) for form in _forms(options)}
    form, chosen, form_reason = _choose(fitted, in_force, before, rounds, weights, options)
    candidate, judgement = chosen.candidate, compare(rounds, before, chosen.held_out, weights, options)
    publish, reasons = _decide(candidate, judgement, options)
    return Proposal(
        publish=publish,
        parameters=candidate.parameters,
        form_judged=form,
        reasons=(*form_reason, *chosen.reasons, *reasons),
        gates=candidate.gates,
        raw=report(identity.survival(rounds)),
        before=report(before),
        after=report(chosen.held_out),
        judgement=judgement,
        rows=len(rounds),
        requests=requests,
        alternatives={
            **{each: ranked[0].candidate.parameters for each, ranked in fitted.items()},
            form: candidate.parameters,
        },
        held_out=chosen.held_out,
    )


def _forms(options: ProposalOptions) -> list[Form]:
    wanted: Sequence[Form] = ("temperature", "affine") if options.form == "auto" else (options.form,)
    return [form for form in wanted if form in options.supported_forms] or ["temperature"]


@dataclass(frozen=True, slots=True, eq=False)
class _Fitted:
    candidate: Candidate
    held_out: Float
    reasons: tuple[str, ...] = ()


def _fitted(
    form: Form,
    rounds: Rounds,
    weights: Float,
    fold: NDArray[np.int64],
    in_force: ParameterSet,
    options: ProposalOptions,
) -> tuple[_Fitted, ...]:
    """Fit one form; temperatures by either objective where both may serve, the better one held out first.

    The gate of the ``ece`` objective shuts every position behind one whose error is too small to be told from
    noise, so by it alone a head that is right at position 1 and wrong behind it would never be mended.
    """

    def fit(options: ProposalOptions) -> _Fitted:
        candidate = build_candidate(form, rounds, weights, in_force, options)
        return _Fitted(candidate, held_out_survival(candidate, fold, rounds, weights, in_force, options))

    first = fit(options)
    if first.candidate.objective == "likelihood" or options.objective is not None:
        return (first,)
    second = fit(replace(options, objective="likelihood"))
    between = compare(rounds, first.held_out, second.held_out, weights, options)
    if between.better and (between.ece_difference or 0.0) <= 0:
        reason = f"temperatures by likelihood: against those by ECE {between.summary()}"
        return replace(second, reasons=(reason,)), first
    return first, second


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
    """Take the affine form where its log loss is smaller beyond the interval, ECE not speaking against it.

    Not by ECE alone: predictions of cross-fitted offsets match the mean label of all folds together, which
    flatters their ECE by a part of its noise floor.

    >>> choose_form(Judgement(-0.0200, -0.0300, -0.0100, -0.010, -0.020, -0.005, requests=50))[0]
    'affine'
    >>> choose_form(Judgement(-0.0010, -0.0019, -0.0001, -0.000, -0.001, +0.001, requests=50))[0]
    'temperature'
    """
    if _smaller_log_loss(between):
        return "affine", (f"form affine: against the temperature form {between.summary()}",)
    return "temperature", (f"form temperature: the affine form is not better ({between.summary()})",)


def _smaller_log_loss(between: Judgement) -> bool:
    return between.better and between.log_loss_high is not None and between.log_loss_high < 0


def _choose(
    fitted: dict[Form, tuple[_Fitted, ...]],
    in_force: ParameterSet,
    before: Float,
    rounds: Rounds,
    weights: Float,
    options: ProposalOptions,
) -> tuple[Form, _Fitted, tuple[str, ...]]:
    """Take the affine form where it is better than any temperatures, whatever these were fitted by."""
    if len(fitted) == 1:
        form, (only, *_) = next(iter(fitted.items()))
        return form, only, ()
    affine = fitted["affine"][0]
    reason_for_affine: tuple[str, ...] = ()
    for temperature in fitted["temperature"]:
        form, reason = choose_form(compare(rounds, temperature.held_out, affine.held_out, weights, options))
        if form == "temperature":
            break
        reason_for_affine = reason_for_affine or reason
    else:
        return "affine", affine, reason_for_affine
    if in_force.form == "affine" and any(g.status == "censored" for g in temperature.candidate.gates):
        reason = ("form affine: temperatures cannot keep the offsets of positions that nothing was seen of",)
        return "affine", affine, reason
    by_temperature, by_affine = (
        compare(rounds, before, each.held_out, weights, options) for each in (temperature, affine)
    )
    if not by_temperature.better and _smaller_log_loss(by_affine):
        reason = ("form affine: it is better than the set in force, the temperature form is not",)
        return "affine", affine, reason
    return "temperature", temperature, reason


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
