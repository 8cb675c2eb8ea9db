"""Does one segment deserve a set of its own? Fit it around the pooled one, judge it on held-out requests.

The same question is asked of a sampling bucket, and of a bucket within a segment. What serves these rows
otherwise is the *fallback*; what serves them now, if they have a set of their own, is *own*.

* A set is taken on only if it beats both beyond the interval on requests that it has not seen.
* A set in force stays while it still does better than the fallback, and is dropped when it no longer
  does. Between the two lies a band in which nothing changes: no chatter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from calibrator.core.candidate import ProposalOptions
from calibrator.core.judge import Judgement, conditional_log_loss
from calibrator.core.parameter_set import ParameterSet
from calibrator.core.proposal import choose_form, compare
from calibrator.core.report import PositionReport, position_report
from calibrator.core.segments import SegmentFit, fit_segment
from calibrator.core.split import folds
from serving_adapter.contract import Form, Rounds

Float = NDArray[np.float64]
Action = Literal["publish", "keep", "drop", "none"]

LOOSENESS = (1.0, 6.0)
"""How far from the pooled fit a segment may lie: as segments of one kind of traffic do, or anywhere near.
Held-out log loss chooses, segment by segment."""


@dataclass(frozen=True, slots=True, eq=False)
class SegmentProposal:
    """What is to serve the rows of one segment or bucket.

    ``action``: ``publish`` the set ``parameters``, ``keep`` the set in force, ``drop`` it, or ``none``
    (there was none and there is none). ``parameters`` is the set of its own from now on, None where the
    fallback serves. ``before`` and ``after`` are reports on held-out rows under what serves them now and
    under the candidate; ``judgement`` compares the two.
    """

    action: Action
    parameters: ParameterSet | None
    reasons: tuple[str, ...]
    rows: int
    requests: int
    form: Form | None = None
    n_eff: Float | None = None
    own_share: Float | None = None
    before: tuple[PositionReport, ...] = ()
    after: tuple[PositionReport, ...] = ()
    judgement: Judgement | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Fitted:
    fit: SegmentFit
    held_out: Float


def propose_segment(
    rows: Rounds,
    fallback: Float,
    centres: Mapping[Form, ParameterSet],
    own: ParameterSet | None,
    options: ProposalOptions,
    weights: Float,
    *,
    candidates: int = 1,
) -> SegmentProposal:
    """Fit, judge and decide for the rows of one segment or bucket.

    Parameters
    ----------
    rows, weights
        Its rows, weights of shape ``[rows]``.
    fallback
        Survival that serves them without a set of their own, shape ``[rows, gamma]``.
    centres
        Pooled fit of each form that every engine can apply; ``auto`` chooses among them on held-out rows.
    own
        The set of their own in force, if there is one.
    options
        As of :func:`calibrator.core.proposal.propose`; the step is not capped and no position is gated,
        because the fit moves only as far from the pooled one as its own rows carry it.
    candidates
        How many segments and buckets are judged in this refresh: the interval allows for all of them.

    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(0, 2, size=(4000, 1))
    >>> rows = Rounds.build(z, rng.random(4000) < 1 / (1 + np.exp(-z[:, 0] / 2)))
    >>> pooled, options = ParameterSet.identity(1), ProposalOptions(resamples=50)
    >>> centres = {"temperature": pooled}
    >>> found = propose_segment(rows, pooled.survival(rows), centres, None, options, np.ones(4000))
    >>> found.action, found.parameters.temperatures.round(1)
    ('publish', array([2.]))
    """
    fold = folds(rows.request, options.folds, options.split_salt)
    requests = len(np.unique(rows.request))
    if len(np.unique(fold)) < options.folds:
        reason = f"{len(rows)} rows of {requests} requests: too few for {options.folds} folds"
        kept: Action = "none" if own is None else "keep"
        return SegmentProposal(kept, own, (reason,), len(rows), requests)
    options = replace(options, confidence=1.0 - (1.0 - options.confidence) / max(candidates, 1))

    fitted = {form: _cross_fitted(rows, weights, fold, centre, options) for form, centre in centres.items()}
    form, reasons = _choose_form(fitted, rows, weights, options)
    chosen = fitted[form]
    serving = fallback if own is None else own.survival(rows)
    against_serving = compare(rows, serving, chosen.held_out, weights, options)
    against_fallback = against_serving
    if own is not None:
        against_fallback = compare(rows, fallback, chosen.held_out, weights, options)

    action, why = _decide(against_serving, against_fallback, options, own is not None)
    if action != "publish" and own is not None:
        still = compare(rows, fallback, serving, weights, options)
        action, why = _keep_or_drop(still, why)

    def report(survival: Float) -> tuple[PositionReport, ...]:
        return tuple(
            position_report(survival, rows, options.bins, options.end_of_sequence, options.clip, weights)
        )

    return SegmentProposal(
        action=action,
        parameters={"publish": chosen.fit.parameters, "keep": own}.get(action),
        reasons=(*reasons, *why),
        rows=len(rows),
        requests=requests,
        form=form,
        n_eff=chosen.fit.n_eff,
        own_share=chosen.fit.own_share,
        before=report(serving),
        after=report(chosen.held_out),
        judgement=against_serving,
    )


def _cross_fitted(
    rows: Rounds, weights: Float, fold: NDArray[np.int64], centre: ParameterSet, options: ProposalOptions
) -> _Fitted:
    """Fit all rows, and predict each with a fit that has not seen its request, as loosely as pays."""
    parts = [(fold == f, rows.take(fold != f), rows.take(fold == f)) for f in range(options.folds)]
    tried: list[tuple[float, float, Float]] = []
    for looseness in LOOSENESS:
        survival = np.empty((len(rows), rows.gamma))
        for mine, others, judged in parts:
            fit = fit_segment(others, centre, weights[~mine], options, looseness)
            survival[mine] = fit.parameters.survival(judged)
        tried.append(
            (conditional_log_loss(rows, survival, weights, options.end_of_sequence), looseness, survival)
        )
    _, looseness, survival = min(tried, key=lambda each: each[:2])
    return _Fitted(fit_segment(rows, centre, weights, options, looseness), survival)


def _choose_form(
    fitted: Mapping[Form, _Fitted], rows: Rounds, weights: Float, options: ProposalOptions
) -> tuple[Form, tuple[str, ...]]:
    if len(fitted) == 1:
        return next(iter(fitted)), ()
    between = compare(rows, fitted["temperature"].held_out, fitted["affine"].held_out, weights, options)
    return choose_form(between)


def _decide(
    against_serving: Judgement, against_fallback: Judgement, options: ProposalOptions, has_own: bool
) -> tuple[Action, tuple[str, ...]]:
    named: Sequence[tuple[str, Judgement]] = [("what serves these rows", against_serving)]
    if has_own:
        named = [("the set in force", against_serving), ("the fallback", against_fallback)]
    for name, judgement in named:
        if not _better(judgement):
            return "none", (f"no gain over {name} on held-out rows: {judgement.summary()}",)
        if judgement.ece_difference is not None and -judgement.ece_difference < options.min_gain:
            return "none", (f"gain over {name} below {options.min_gain:.4f}: {judgement.summary()}",)
    return "publish", (f"held-out rows, against {named[0][0]}: {against_serving.summary()}",)


def _better(judgement: Judgement) -> bool:
    """Log loss says so, and ECE does not speak against it.

    Stricter than for the pooled set: of many small segments some look better by their ECE alone, whose
    bootstrap from a few dozen requests is too narrow so far out; log loss has a standard error.
    """
    high, against = judgement.log_loss_high, judgement.ece_low
    return high is not None and high < 0 and (against is None or against <= 0)


def _keep_or_drop(still: Judgement, why: tuple[str, ...]) -> tuple[Action, tuple[str, ...]]:
    """Judge the set in force against the fallback: it stays unless both estimates say that it costs."""
    gains = [d for d in (still.ece_difference, still.log_loss_difference) if d is not None]
    if gains and min(gains) >= 0:
        return "drop", (*why, f"the set in force no longer pays: against the fallback {still.summary()}")
    return "keep", why
