"""Figures of record and prequential scores of a refresh: how the sets did on traffic, as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrator.core.expected_labels import outcome_model
from calibrator.core.labels import included
from calibrator.core.parameter_set import ParameterSet
from calibrator.core.prequential import PrequentialScore, PublishedSet, prequential_scores
from calibrator.core.proposal import Proposal
from calibrator.core.record import RecordFigure, figures_of_record
from calibrator.core.report import mean_ece, mean_noise_floor
from calibrator.store.parameters import ParameterVersion
from serving_adapter.contract import Rounds

Float = NDArray[np.float64]

MAX_SCORED = 12
"""Versions scored: what is older has hardly a row left in the sample."""
IN_FORCE_STATES = frozenset({"published", "adopted"})
"""Versions in these states were in force everywhere."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Record:
    """Figures of record, one per position, under the identity, the set in force and the candidate.

    The candidate's predictions are those for requests that its fit has not seen; empty without one.
    """

    raw: tuple[RecordFigure, ...]
    in_force: tuple[RecordFigure, ...]
    candidate: tuple[RecordFigure, ...]

    def evidence(self) -> dict[str, Any]:
        """As JSON."""
        return {
            name: [dataclasses.asdict(figure) for figure in getattr(self, name)]
            for name in ("raw", "in_force", "candidate")
        }


def figures(rounds: Rounds, weights: Float, in_force: ParameterSet, proposal: Proposal, bins: int) -> Record:
    """Judge all three against the same expected labels."""
    model = outcome_model(rounds, weights) if included(rounds).any() else None

    def of(survival: Float) -> tuple[RecordFigure, ...]:
        return tuple(figures_of_record(survival, rounds, bins, sample_weights=weights, model=model))

    return Record(
        raw=of(ParameterSet.identity(rounds.gamma).survival(rounds)),
        in_force=of(in_force.survival(rounds)),
        candidate=() if proposal.held_out is None else of(proposal.held_out),
    )


def published_sets(history: Sequence[ParameterVersion], fingerprint: str) -> list[PublishedSet]:
    """Sets that were in force everywhere under this fingerprint, with the times of their publication."""
    return [
        PublishedSet(
            version=each.document.version,
            published_at=datetime.fromisoformat(each.document.created_at).timestamp(),
            parameters=ParameterSet.of(each.document),
        )
        for each in history
        if each.document.fingerprint == fingerprint and each.state in IN_FORCE_STATES
    ]


def prequential(
    rounds: Rounds, arrival: Float, weights: Float, history: Sequence[ParameterVersion], fingerprint: str
) -> list[dict[str, Any]]:
    """Score every published set on the rows that came while it was the newest, oldest first.

    Versions without a row in the sample are left out: they were scored when they had some.
    """
    sets = sorted(published_sets(history, fingerprint), key=lambda s: s.version)[-MAX_SCORED:]
    scores = prequential_scores(rounds, arrival, sets, weights)
    return [
        _score_json(score, each.published_at)
        for score, each in zip(scores, sorted(sets, key=lambda s: s.published_at), strict=True)
        if score.rows
    ]


def _score_json(score: PrequentialScore, published_at: float) -> dict[str, Any]:
    def judged(judgement: Any) -> dict[str, Any] | None:
        return None if judgement is None else {**dataclasses.asdict(judgement), "better": judgement.better}

    return {
        "version": score.version,
        "published_at": published_at,
        "rows": score.rows,
        "ece": mean_ece(score.report),
        "noise_floor": mean_noise_floor(score.report),
        "positions": [
            {
                "position": r.position, "ece": r.ece, "noise_floor": r.noise_floor, "gap": r.gap,
                "squared_error": r.debiased_squared_error, "n_eff": r.n_eff, "status": r.status,
            }
            for r in score.report
        ],
        "against_raw": judged(score.against_raw),
        "against_previous": judged(score.against_previous),
    }  # fmt: skip
