"""What a refresh makes of its basis: a proposal, its worth, the exploration, and what of it is news."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from calibrator.core.candidate import ProposalOptions
from calibrator.core.explored_share import explored_share
from calibrator.core.parameter_set import ParameterSet
from calibrator.core.proposal import Proposal, propose
from calibrator.service import scores
from calibrator.service.basis import Basis
from calibrator.service.curves import LiveCurve
from calibrator.service.deployment_settings import DeploymentSettings
from calibrator.service.documents import cost_in_force, served_set, set_in_force
from calibrator.service.evidence import Worth, as_json, evidence_of, judge_worth
from calibrator.service.exploration import explored_with, plan_exploration
from calibrator.service.replay_curve import replay_curve
from calibrator.service.segment_worth import segments_that_pay
from calibrator.service.segments import SegmentSupport, decide_segments
from calibrator.service.temperature_limits import temperature_limits
from calibrator.store.deployments import Deployment
from serving_adapter.contract import CostCurve, SegmentParameters
from serving_adapter.step_cost import StepCost


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """What the next document would hold; ``publish`` says whether there should be one.

    ``chosen`` is the candidate, or the set in force where only something else is news; ``segments`` are the
    sets that go before it.
    """

    publish: bool
    reasons: tuple[str, ...]
    evidence: dict[str, Any]
    proposal: Proposal
    chosen: ParameterSet
    segments: tuple[SegmentParameters, ...]
    cost: CostCurve | None
    explore: float
    share: float


def decide(
    deployment: Deployment,
    settings: DeploymentSettings,
    basis: Basis,
    live: LiveCurve,
    options: ProposalOptions,
    support: SegmentSupport,
    *,
    explore: float,
    share: float,
    now: float,
) -> Decision:
    """Propose, judge, and say what is news.

    Parameters
    ----------
    deployment, settings
        Whose, and what its operator says.
    basis
        Rows and history, from the store.
    live
        The throughput curve.
    options
        What may be proposed.
    support
        Whether every replica applies sets per segment.
    explore, share
        What documents carry where the operator says nothing.
    now
        Seconds since 1970.
    """
    rounds, weights, previous = basis.rows.rounds, basis.weights, basis.previous
    in_force, served = set_in_force(previous, deployment), served_set(previous, deployment)
    proposal = propose(rounds, in_force, options, weights)
    replay = replay_curve(live, basis.history, deployment, now)
    worth = judge_worth(proposal, in_force, replay, rounds, weights)
    record = scores.figures(rounds, weights, served, proposal, options.bins)
    cost = live.curve if live.curve is not None else cost_in_force(previous, deployment)
    exploration = plan_exploration(
        settings.explore,
        explore,
        explored_with(previous, deployment, basis.rows),
        [each.document for each in basis.history],
        record.in_force,
        rounds,
        weights,
        served.survival(rounds),
        basis.steps,
        StepCost.from_curve(cost),
    )
    share = settings.share or share
    calibrate = proposal.publish and not worth.reasons
    chosen = proposal.parameters if calibrate else in_force
    limits, limited = temperature_limits(rounds, weights, options, chosen.form)
    segments = decide_segments(rounds, weights, chosen, proposal, served.entries, support, options)
    segments = segments_that_pay(segments, chosen, served.entries, replay, rounds, weights)
    explored = explored_share(rounds)
    news = (
        *(["curve: measured anew"] if live.changed else []),
        *([exploration.summary] if exploration.worth_a_version else []),
        *([f"share: {share:g}"] if share != (previous.share if previous else 1.0) else []),
        *(segments.reasons if segments.changed else []),
    )
    prequential = scores.prequential(
        rounds, basis.rows.arrival, weights, basis.history, deployment.fingerprint
    )
    evidence = {
        **evidence_of(proposal, live, replay, worth),
        "record": record.evidence(),
        "prequential": prequential,
        "temperature_limited": limits,
        **segments.evidence,
        "exploration": exploration.evidence,
        "recency": {**basis.forgetting.evidence(), "rows_forgotten": basis.forgotten},
    }
    return Decision(
        publish=calibrate or bool(news),
        reasons=(
            *_deciding_first(proposal, worth, news),
            *([explored.note] if explored.contradicted else []),
            *(f"curve: {reason}" for reason in live.reasons),
            *([f"value: {replay.note}"] if replay.note else []),
            *(f"recency: {wait}" for wait in basis.forgetting.waits),
            *limited,
            *([] if segments.changed else segments.reasons),
        ),
        evidence=as_json(evidence),
        proposal=proposal,
        chosen=chosen,
        segments=segments.entries,
        cost=cost,
        explore=exploration.explore,
        share=share,
    )


def _deciding_first(proposal: Proposal, worth: Worth, news: tuple[str, ...]) -> tuple[str, ...]:
    """Order the reasons: what decided comes first, then what else is news, then all that led there."""
    told = (*proposal.reasons, *worth.reasons)
    decided = worth.reasons[-1] if worth.reasons else proposal.reasons[-1]
    others = tuple(reason for reason in told if reason != decided)
    if (proposal.publish and not worth.reasons) or not news:
        return decided, *news, *others
    return f"{news[0]}; calibration unchanged: {decided}", *news[1:], *others
