"""How much a deployment explores until the next refresh: decided from what is known, and priced.

Saturated means: the requests of a step fill the engine by themselves, before a single draft token is
verified. A scheduler fills what is left with drafts up to the knee of the throughput curve at any load; that
is its job, and no reason to stop looking. So saturation is the mean number of requests per step over the
number that fills the engine: what the operator says (``explore.saturated_requests``, for instance an
engine's limit of running requests), or else the knee of the curve, the smallest measured size at which a
batch of twice the size takes at least half as long again. It is the mean over engine time, of recent steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from calibrator.core.exploration import (
    ExplorationDecision,
    ExplorationRules,
    decide_exploration,
    exploration_cost,
    trimmed_tokens,
)
from calibrator.core.explored_share import explored_share
from calibrator.core.labels import drafted, positions
from calibrator.core.record import MIN_LABELS, RecordFigure
from calibrator.core.status import Status
from calibrator.service.deployment_settings import DEFAULT_CEILING, ExploreSettings
from calibrator.store import step_sample
from calibrator.store.deployments import Deployment
from calibrator.store.sample import WeightedSample
from calibrator.store.step_sample import StepSample
from serving_adapter.contract import ParameterDocument, Rounds
from serving_adapter.step_cost import StepCost

Float = NDArray[np.float64]

LOAD_HALF_LIFE_SECONDS = 300.0
"""Saturation is of now: steps count by this half-life, whatever that of the sample is."""
WORTH_A_VERSION = 1.5
"""A version is published for the exploration alone when it changes by at least this factor, or to or from
nothing: the budget it is held at moves by a few per cent with every refresh."""
DOUBLED = 1.5
"""Time of a batch of twice the size, relative, from which a size counts as beyond the knee."""


@dataclass(frozen=True, slots=True)
class ExplorationPlan:
    """The probability to publish; ``worth_a_version`` says whether it is news by itself."""

    explore: float
    reason: str
    worth_a_version: bool
    evidence: dict[str, Any]

    @property
    def summary(self) -> str:
        """One line for the reasons of a refresh."""
        return f"explore: {self.evidence['in_force']:.4g} -> {self.explore:.4g}, {self.reason}"


def recent_steps(connection: Connection, deployment: Deployment, now: float) -> StepSample:
    """Sampled steps of the engine that runs now, weighted towards the last minutes."""
    return step_sample.load(
        connection,
        deployment.id,
        now,
        fingerprint=deployment.fingerprint,
        half_life_seconds=LOAD_HALF_LIFE_SECONDS,
    )


def knee(cost: StepCost) -> int | None:
    """Smallest measured size beyond which steps take longer nearly as fast as they grow; None: not measured.

    >>> knee(StepCost([1, 64, 128, 256], [0.01, 0.01, 0.02, 0.04]))
    64
    >>> knee(StepCost([1, 64], [0.01, 0.01])) is None
    True
    """
    sizes = cost.batch_tokens
    twice = np.asarray(2 * sizes)
    within = cost.measured(twice)
    beyond = within & (cost.seconds(twice) >= DOUBLED * cost.seconds(sizes))
    return int(sizes[np.argmax(beyond)]) if beyond.any() else None


def saturation(steps: StepSample, capacity: int | None) -> float | None:
    """Requests per step over those that fill the engine, mean over engine time; None: not known."""
    if capacity is None or not len(steps):
        return None
    time = steps.weights * steps.steps.step_seconds
    if not time.sum() > 0:
        return None
    return float(time @ np.minimum(steps.steps.requests / capacity, 1.0) / time.sum())


def explored_with(previous: ParameterDocument | None, deployment: Deployment, rows: WeightedSample) -> float:
    """Probability in force: the document's, or while engines have none of theirs, that of the newest row."""
    if previous is not None and previous.fingerprint == deployment.fingerprint:
        return previous.explore
    return float(rows.rounds.explore[np.argmax(rows.arrival)]) if len(rows) else 0.0


def plan_exploration(
    settings: ExploreSettings,
    default: float,
    in_force: float,
    history: Sequence[ParameterDocument],
    figures: Sequence[RecordFigure],
    rounds: Rounds,
    weights: Float,
    survival: Float,
    steps: StepSample,
    cost: StepCost | None,
) -> ExplorationPlan:
    """Decide, and price the decision.

    Parameters
    ----------
    settings, default
        What the operator says, and the service's ``explore``: the floor unless the operator names one.
    in_force
        Probability that engines explore with now (:func:`explored_with`).
    history
        All documents, newest first: what to come back to after saturation.
    figures
        Figures of record of the predictions in force, one per position.
    rounds, weights, survival
        The sampled rows, and the survival predicted for them by the set in force.
    steps, cost
        Recent steps, and what a step costs.
    """
    load = saturation(steps, _capacity(settings, cost))
    before = next((d.explore for d in history if d.explore > 0.0), None)
    needed = _trimmed_share(rounds, weights)
    if settings.mode == "fixed":
        assert settings.explore is not None  # the settings were checked
        decision = ExplorationDecision(settings.explore, "fixed by the operator")
    elif (share_seen := explored_share(rounds)).contradicted:
        # More of what engines do not do as they say would teach nothing.
        decision = ExplorationDecision(in_force, share_seen.note)
    else:
        trimmed, scheduled = trimmed_tokens(rounds, weights)
        statuses: list[Status] = [
            f.status if share > 0.0 else "ok" for f, share in zip(figures, needed, strict=True)
        ]
        decision = decide_exploration(
            in_force,
            statuses,
            extra_per_round=trimmed,
            verified_per_round=scheduled,
            saturation=load,
            before_saturation=before,
            n_eff=[MIN_LABELS * f.enough for f, share in zip(figures, needed, strict=True) if share > 0.0],
            rules=_rules(settings, default),
        )
    requests = _mean_requests(steps)
    priced = exploration_cost(
        decision.explore, rounds, survival, requests=requests, cost=cost, sample_weights=weights
    )
    worth = _is_news(in_force, decision.explore, settings.mode == "fixed") and bool(needed.any())
    evidence = {
        **dataclasses.asdict(priced),
        "reason": decision.reason,
        "mode": settings.mode,
        "in_force": in_force,
        "before_saturation": before if decision.explore == 0.0 else None,
        "saturation": load,
        "capacity_requests": _capacity(settings, cost),
        "requests_per_step": requests,
        "coverage": _coverage(rounds, weights, figures),
    }
    return ExplorationPlan(decision.explore, decision.reason, worth, evidence)


def _rules(settings: ExploreSettings, default: float) -> ExplorationRules:
    floor = default if settings.floor is None else settings.floor
    ceiling = max(DEFAULT_CEILING, floor) if settings.ceiling is None else settings.ceiling
    standard = ExplorationRules()
    return ExplorationRules(
        # The service's own floor does not overrule a ceiling that the operator set.
        floor=min(floor, ceiling),
        ceiling=ceiling,
        max_extra_share=(
            standard.max_extra_share if settings.max_extra_share is None else settings.max_extra_share
        ),
    )


def _capacity(settings: ExploreSettings, cost: StepCost | None) -> int | None:
    if settings.saturated_requests is not None:
        return settings.saturated_requests
    return None if cost is None else knee(cost)


def _is_news(in_force: float, explore: float, fixed: bool) -> bool:
    """Whether engines should hear of it at once."""
    if fixed or in_force == 0.0 or explore == 0.0:
        return in_force != explore
    return max(explore / in_force, in_force / explore) >= WORTH_A_VERSION


def _trimmed_share(rounds: Rounds, weights: Float) -> Float:
    """Share of the traffic that the scheduler trims before each position, shape ``[gamma]``."""
    inside = drafted(rounds)
    trimmed = inside & (positions(rounds) > rounds.scheduled[:, None])
    return _ratio(weights @ trimmed, weights @ inside)


def _coverage(rounds: Rounds, weights: Float, figures: Sequence[RecordFigure]) -> list[dict[str, Any]]:
    inside = drafted(rounds)
    seen = inside & (positions(rounds) <= rounds.verified[:, None])
    share = _ratio(weights @ seen, weights @ inside)
    return [
        {
            "position": f.position,
            "drafted": int(inside[:, k].sum()),
            "verified": int(seen[:, k].sum()),
            "share": float(share[k]) if inside[:, k].any() else None,
            "n_eff": f.n_eff,
            "status": f.status,
        }
        for k, f in enumerate(figures)
    ]


def _mean_requests(steps: StepSample) -> float:
    if not len(steps):
        return 1.0
    return max(1.0, float(steps.weights @ steps.steps.requests / steps.weights.sum()))


def _ratio(top: Float, bottom: Float) -> Float:
    return np.divide(top, bottom, out=np.zeros(np.shape(top)), where=bottom > 0)
