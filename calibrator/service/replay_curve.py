"""The curve that value is replayed with: the live one, else the one that replicas schedule with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from calibrator.service.curves import LiveCurve, measured_range
from calibrator.service.documents import cost_in_force
from calibrator.store.deployments import Deployment
from calibrator.store.parameters import ParameterVersion
from serving_adapter.contract import CostCurve
from serving_adapter.step_cost import StepCost


@dataclass(frozen=True, slots=True, eq=False)
class ReplayCurve:
    """What a step is taken to cost, at how many requests at a time; ``cost`` is None without any curve.

    ``note`` says which curve it is and how old, and is empty for the live one.
    """

    cost: StepCost | None
    requests: int
    note: str = ""
    evidence: dict[str, Any] | None = None


def replay_curve(
    live: LiveCurve, history: Sequence[ParameterVersion], deployment: Deployment, now: float
) -> ReplayCurve:
    """Choose the curve.

    A curve in force narrows the traffic to what it makes pay, so on steady traffic the live curve may no
    longer cover what a scheduler weighs. The engine goes on with the curve in force, and so does the replay.

    Parameters
    ----------
    live
        The live curve, and the load.
    history
        Versions that came into force, highest first.
    now
        Seconds since 1970.
    """
    cost = StepCost.from_curve(live.curve)
    if cost is not None:
        return ReplayCurve(cost, live.requests, evidence={"source": "live", "note": ""})
    curve = cost_in_force(history[0].document, deployment) if history else None
    cost = StepCost.from_curve(curve)
    if curve is None or cost is None:
        return ReplayCurve(None, live.requests)
    first = _first_with(curve, history, deployment)
    sizes = cost.batch_tokens
    gap = measured_range(sizes, live.requests, deployment.gamma)
    if live.fit is None:
        covers = "at 1 request at a time, for no steps say how many there are"
    else:
        covers = f"it covers {sizes[0]} to {sizes[-1]} tokens" if not gap else f"it too was only {gap}"
    note = (
        f"replayed with the curve in force, published with version {first.document.version} "
        f"{_age(now - first.created_at)} ago; {covers}"
    )
    evidence = {
        "source": "in_force",
        "version": first.document.version,
        "published_at": first.created_at,
        "note": note,
    }
    return ReplayCurve(cost, live.requests, note, evidence)


def _first_with(
    curve: CostCurve, history: Sequence[ParameterVersion], deployment: Deployment
) -> ParameterVersion:
    """Return the oldest version that carries this curve: later ones only carried it on."""
    return next(each for each in reversed(history) if cost_in_force(each.document, deployment) == curve)


def _age(seconds: float) -> str:
    """Seconds as people say them.

    >>> _age(42.0), _age(600.0), _age(7560.0), _age(864000.0)
    ('42 s', '10 min', '2.1 h', '10.0 days')
    """
    if seconds < 120:
        return f"{max(seconds, 0.0):.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"
