"""What a refresh rests on: the worth of the candidate in tokens per second, and everything as JSON."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from calibrator.core.parameter_set import ParameterSet
from calibrator.core.proposal import Proposal
from calibrator.core.report import PositionReport
from calibrator.core.value import value_report
from calibrator.service.curves import LiveCurve
from calibrator.service.replay_curve import ReplayCurve
from serving_adapter.contract import Rounds

VALUE_RESAMPLES = 200


@dataclass(frozen=True, slots=True)
class Worth:
    """What the replayed scheduler makes of both sets; ``reasons`` forbid the candidate."""

    reasons: tuple[str, ...] = ()
    values: tuple[dict[str, Any], ...] = ()


def judge_worth(
    proposal: Proposal,
    in_force: ParameterSet,
    replay: ReplayCurve,
    rounds: Rounds,
    weights: NDArray[np.float64],
) -> Worth:
    """Replay the logged rounds under both sets: one that would serve fewer tokens is not published."""
    if replay.cost is None or not proposal.gates:
        return Worth()
    report = value_report(
        rounds,
        replay.cost,
        {"in force": in_force, "candidate": proposal.parameters},
        [replay.requests],
        scheduler="asynchronous",
        weights=weights,
        resamples=VALUE_RESAMPLES,
    )
    worse = report.worse("candidate", "in force") if proposal.publish else None
    return Worth(
        reasons=() if worse is None else (worse,),
        values=tuple(dataclasses.asdict(value) for value in report.values),
    )


def evidence_of(proposal: Proposal, live: LiveCurve, replay: ReplayCurve, worth: Worth) -> dict[str, Any]:
    """What a refresh decided on, by name; :func:`as_json` makes it fit for the database."""

    def reports(items: tuple[PositionReport, ...]) -> list[dict[str, Any]]:
        return [dataclasses.asdict(item) for item in items]

    return {
        "form": proposal.form_judged,
        "temperatures": proposal.parameters.temperatures.tolist(),
        "offsets": proposal.parameters.offsets.tolist(),
        "rows": proposal.rows,
        "requests": proposal.requests,
        "gates": [dataclasses.asdict(g) for g in proposal.gates],
        "raw": reports(proposal.raw),
        "before": reports(proposal.before),
        "after": reports(proposal.after),
        "judgement": dataclasses.asdict(proposal.judgement) if proposal.judgement else None,
        "value": list(worth.values),
        "value_curve": replay.evidence,
        "curve": None
        if live.fit is None
        else {
            "batch_tokens": live.fit.sizes.tolist(),
            "seconds": live.fit.seconds.tolist(),
            "status": list(live.fit.statuses),
            "dead_spots": [list(spot) for spot in live.fit.dead_spots],
            "outliers": live.fit.outliers,
            "reasons": list(live.reasons),
        },
    }


def as_json(evidence: dict[str, Any]) -> dict[str, Any]:
    """Plain JSON: NumPy numbers become numbers, and what is undefined is null, never NaN."""
    built: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(evidence, enc_hook=lambda x: x.item()))
    return built
