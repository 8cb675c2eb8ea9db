"""What `fit` says beside its parameters: that the records teach little, and how the set in force does."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from calibrator.cli import record_figures
from calibrator.core.gate import GateRules
from calibrator.core.labels import EndOfSequence, at_risk, prefix_labels
from calibrator.core.record import figures_of_record
from calibrator.core.report import mean_ece, position_report
from serving_adapter.contract import Rounds


@dataclasses.dataclass(frozen=True, slots=True)
class CurrentError:
    """Errors of the set in force on the same rows: plain per position, and both means."""

    positions: tuple[float | None, ...]
    plain: float | None
    record: float | None

    @classmethod
    def of(
        cls, survival: NDArray[np.float64], rounds: Rounds, bins: int, rule: EndOfSequence
    ) -> CurrentError:
        """Judge predictions ``[rounds, gamma]``."""
        plain = position_report(survival, rounds, bins, rule)
        record = record_figures.mean_of_record(figures_of_record(survival, rounds, bins, rule))
        return cls(tuple(each.ece for each in plain), mean_ece(plain), record)


def nothing_learned(rounds: Rounds, rule: EndOfSequence) -> Sequence[str]:
    """Say loudly when the labels cannot teach anything."""
    seen = at_risk(rounds, rule)
    if not seen.any():
        return ("NOTHING WAS LEARNED: no position has a usable label; the parameters are those of the start",)
    outcomes = np.unique(prefix_labels(rounds)[seen])
    if len(outcomes) == 1:
        outcome = "accepted" if outcomes[0] else "rejected"
        wanted = "a fit needs both outcomes, so positions keep the parameters of the start (the identity)"
        return (f"NOTHING WAS LEARNED: every label says {outcome}; {wanted}",)
    return ()


def few_rounds(rounds: Rounds, rule: EndOfSequence) -> Sequence[str]:
    """Warn when not even the position that has the most labels has what the production rules ask for."""
    labels = int(at_risk(rounds, rule).sum(axis=0).max(initial=0))
    needed = GateRules().min_n_eff_likelihood
    if labels >= needed:
        return ()
    told = (
        f"FEW ROUNDS: these parameters rest on {len(rounds)} rounds, at most {labels} labels per position, "
        f"and may be noise; the production rules (--gate) ask for at least {needed:.0f}"
    )
    return (told,)
