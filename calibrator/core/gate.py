"""The gate: which positions of a fit may change at all, and why not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from calibrator.core.propensity import kish
from calibrator.core.report import PositionReport
from calibrator.core.status import Status

Float = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class GateRules:
    """Least evidence for a change.

    ``min_n_eff`` and ``max_noise_floor`` bind the ``ece`` objective, whose figure is biased upwards by
    noise; a likelihood comes with its own standard errors and needs ``min_n_eff_likelihood`` only.

    A fit by likelihood shrinks positions towards each other, offsets of the affine form (which shares its
    slope besides) as well as temperatures. So a position with fewer rows (``min_n_eff_borrowed``) may change
    with the others once one of them stands on its own rows: what it lacks it borrows. Left behind at the
    identity while the positions before it move, it would carry the error that they got rid of.
    """

    min_n_eff: float = 1000.0
    min_n_eff_likelihood: float = 300.0
    min_n_eff_borrowed: float = 30.0
    min_outcomes: int = 50
    min_outcomes_likelihood: int = 10
    min_outcomes_borrowed: int = 5
    max_noise_floor: float = 0.005
    max_noise_share: float = 1.0 / 3.0
    min_supported_mass: float = 0.95


@dataclass(frozen=True, slots=True)
class PositionGate:
    """Verdict on one draft position (1-based); ``borrows`` when it leans on the other positions."""

    position: int
    status: Status
    n_eff: float
    accepts: int
    rejects: int
    reasons: tuple[str, ...] = ()
    borrows: bool = False

    @property
    def allowed(self) -> bool:
        """Whether the position may change."""
        return not self.reasons


def gate_likelihood(
    labels: NDArray[np.uint8],
    seen: NDArray[np.bool_],
    weights: Float,
    rules: GateRules,
    statuses: Sequence[Status] | None = None,
    *,
    shared: bool = False,
    verified: NDArray[np.bool_] | None = None,
) -> tuple[PositionGate, ...]:
    """Gate a fit by conditional likelihood: every position stands on its at-risk rows.

    Parameters
    ----------
    labels, seen
        Prefix labels and at-risk mask, shape ``[rows, gamma]``.
    weights
        Row weights, shape ``[rows]``.
    statuses
        Of the fit, where it has any beyond the counts (``at_grid_edge``).
    shared
        Whether the fit shares strength between positions, as either form does in a refresh.
    verified
        Labelled positions, shape ``[rows, gamma]``: behind one that is always rejected a position is never
        at risk, and yet not ``censored``, since its label is known to be 0.

    >>> labels, seen = np.array([[1], [0]] * 200, dtype=np.uint8), np.ones((400, 1), dtype=np.bool_)
    >>> gate_likelihood(labels, seen, np.ones(400), GateRules())[0].allowed
    True
    >>> gate_likelihood(labels[:9], seen[:9], np.ones(9), GateRules())[0].reasons[0]
    'n_eff 9, needs 300'
    """
    gates = []
    for k in range(labels.shape[1]):
        mine = seen[:, k]
        n_eff = float(kish(weights[mine])) if mine.any() else 0.0
        accepts = int((labels[:, k] > 0)[mine].sum())
        rejects = int(mine.sum()) - accepts
        status: Status = statuses[k] if statuses is not None else "ok"
        reasons = _count_reasons(
            n_eff, accepts, rejects, rules.min_n_eff_likelihood, rules.min_outcomes_likelihood
        )
        if not mine.any() and verified is not None and verified[:, k].any():
            status, reasons = "degenerate", ("never at risk: a position before it is always rejected",)
        elif not mine.any():
            status = "censored"
        elif accepts == 0 or rejects == 0:
            status = "degenerate"
        elif reasons:
            status = "insufficient"
        elif status not in ("ok",):
            reasons = (f"the fit is {status}",)
        gates.append(PositionGate(k + 1, status, n_eff, accepts, rejects, reasons))
    if not shared or not any(gate.allowed for gate in gates):
        return tuple(gates)
    return tuple(_borrowing(gate, rules) for gate in gates)


def _borrowing(gate: PositionGate, rules: GateRules) -> PositionGate:
    enough = gate.n_eff >= rules.min_n_eff_borrowed
    if (
        gate.status != "insufficient"
        or not enough
        or min(gate.accepts, gate.rejects) < rules.min_outcomes_borrowed
    ):
        return gate
    return replace(gate, status="ok", reasons=(), borrows=True)


def gate_ece(
    labels: NDArray[np.uint8],
    weights: Float,
    raw: Sequence[PositionReport],
    statuses: Sequence[Status],
    rules: GateRules,
) -> tuple[PositionGate, ...]:
    """Gate a sequential fit by ECE: a position also needs every position before it to be ``ok``.

    Parameters
    ----------
    labels, weights
        Prefix labels and inclusion weights (0: no label), shape ``[rows, gamma]``.
    raw
        Report of the fitted rows under the identity.
    statuses
        Of the fit, one per position.
    """
    gates: list[PositionGate] = []
    blocked = ""
    for k, figures in enumerate(raw):
        mine = weights[:, k] > 0
        n_eff = float(kish(weights[:, k])) if mine.any() else 0.0
        accepts = int((labels[:, k] > 0)[mine].sum())
        rejects = int(mine.sum()) - accepts
        status: Status = statuses[k]
        reasons = list(_count_reasons(n_eff, accepts, rejects, rules.min_n_eff, rules.min_outcomes))
        if not mine.any():
            status = "censored"
        elif accepts == 0 or rejects == 0:
            status = "degenerate"
        elif reasons:
            status = "insufficient"
        if figures.ece is not None and figures.noise_floor is not None:
            bound = max(rules.max_noise_floor, rules.max_noise_share * figures.ece)
            if figures.noise_floor > bound:
                reasons.append(f"noise floor {figures.noise_floor:.4f}, needs at most {bound:.4f}")
                status = "insufficient" if status == "ok" else status
        if figures.supported_mass is not None and figures.supported_mass < rules.min_supported_mass:
            reasons.append(
                f"labels support {figures.supported_mass:.1%} of the drafted mass, "
                f"needs {rules.min_supported_mass:.0%}"
            )
            status = "censored" if status == "ok" else status
        if status != "ok" and not reasons:
            reasons.append(f"the fit is {status}")
        if blocked:
            reasons.append(blocked)
        gates.append(PositionGate(k + 1, status, n_eff, accepts, rejects, tuple(reasons)))
        if reasons and not blocked:
            blocked = f"position {k + 1} before it is {status}"
    return tuple(gates)


def _count_reasons(
    n_eff: float, accepts: int, rejects: int, min_n_eff: float, min_outcomes: int
) -> tuple[str, ...]:
    reasons = []
    if n_eff < min_n_eff:
        reasons.append(f"n_eff {n_eff:.0f}, needs {min_n_eff:.0f}")
    if min(accepts, rejects) < min_outcomes:
        reasons.append(f"{accepts} accepts and {rejects} rejects, needs {min_outcomes} of each")
    return tuple(reasons)
