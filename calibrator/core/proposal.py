"""One refresh as a pure function: rows in, a proposal with its reasons out.

Fit on some requests, judge on the others, and say why, position by position. Nothing here knows where
the rows came from or where the parameters go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

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

    candidates = {form: build_candidate(form, rounds, weights, in_force, options) for form in _forms(options)}
    after = {
        form: held_out_survival(candidate, fold, rounds, weights, in_force, options)
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
        held_out=after[form],
    )


def _forms(options: ProposalOptions) -> list[Form]:
    wanted: Sequence[Form] = ("temperature", "affine") if options.form == "auto" else (options.form,)
    return [form for form in wanted if form in options.supported_forms] or ["temperature"]


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
