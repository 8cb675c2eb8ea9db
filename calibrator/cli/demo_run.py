"""What a run of the demo produced: its phases, its refreshes and its episodes of drift."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from calibrator.core.ece import Reliability, reliability
from calibrator.core.labels import drafted, prefix_labels
from calibrator.core.parameter_set import ParameterSet
from calibrator.core.report import PositionReport, mean_ece, mean_noise_floor
from calibrator.service.refresh import RefreshOutcome
from calibrator.store.episodes import Episode
from serving_adapter.contract import Rounds
from serving_adapter.parameters import Parameters

BINS = 15

NO_ALARM = (
    "no alarm. With so few rounds the evidence does not suffice: an alarm waits until a stream that is "
    "calibrated would raise one in ten million rounds at most."
)

PHASES = (
    (
        "before the drift",
        """Questions of three domains, sampled at temperature 0.7. The head that scores them was trained on
        few rounds of math and code and never saw chat.""",
    ),
    (
        "after the drift: a weaker drafter",
        """The same questions, but another drafter is put in place under the same name. Far less of what it
        drafts is accepted, and its confidence head does not know. What was fitted before does not travel.""",
    ),
)

Trigger = Literal["schedule", "alarm"]


@dataclass(frozen=True, slots=True)
class RefreshMade:
    """One refresh: after how many rounds, who asked for it, and what came of it."""

    rounds: int
    trigger: Trigger
    outcome: RefreshOutcome


@dataclass(frozen=True, slots=True)
class EpisodeSeen:
    """One episode of drift, its times told as rounds served by then; ``ended`` is None while it lasts.

    ``ended_by`` is the version that came into force between the alarm and the end, if one did.
    """

    episode: Episode
    began: int
    alarmed: int
    ended: int | None
    ended_by: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Phase:
    """One stretch of traffic, judged on requests that were never served.

    ``before`` is under the identity, ``after`` under the parameters in force at its end, and
    ``temperature_form`` holds the mean-free ECE per position that the best temperatures leave.
    """

    name: str
    text: str
    judged: Rounds
    before: list[PositionReport]
    after: list[PositionReport]
    temperature_form: list[float | None]
    parameters: Parameters
    coverage: list[float]
    statuses: list[str]

    @property
    def mean_before(self) -> float | None:
        """Mean ECE over positions under the identity."""
        return mean_ece(self.before)

    @property
    def mean_after(self) -> float | None:
        """Mean ECE over positions under the parameters in force."""
        return mean_ece(self.after)

    @property
    def mean_noise_floor(self) -> float | None:
        """What a perfectly calibrated head would show on these rows."""
        return mean_noise_floor(self.after)

    def reliability(self, position: int, *, before: bool) -> Reliability:
        """Reliability of one position (1-based) on the judged rows."""
        k = position - 1
        survival = raw_survival(self.judged) if before else self.parameters.survival_of(self.judged)
        inside = drafted(self.judged)[:, k]
        labels = prefix_labels(self.judged)[:, k]
        return reliability(survival[inside, k], labels[inside], BINS)


@dataclass(slots=True)
class DemoRun:
    """What a demo produced so far.

    ``drift_at`` are the rounds that had been served when the drift was injected, ``period`` the numbers that
    ``dspark-calibrator report`` shows of the whole run.
    """

    phases: list[Phase] = field(default_factory=list)
    refreshes: list[RefreshMade] = field(default_factory=list)
    episodes: list[EpisodeSeen] = field(default_factory=list)
    drift_at: int = 0
    ledger: dict[str, int] = field(default_factory=dict)
    period: dict[str, Any] = field(default_factory=dict)


def raw_survival(rounds: Rounds) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Prefix survival by the raw head, shape ``[rows, gamma]``."""
    return ParameterSet.identity(rounds.gamma).survival(rounds)
