"""The engine's own books, exact, to hold everything against that comes after."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from serving_adapter.contract import NO_STOP, Rounds

Counts = NDArray[np.int64]


@dataclass(slots=True)
class Ledger:
    """Counts since the engine started.

    ``rounds`` were served, ``emitted`` of them belong to requests within the reported share.
    Tokens: ``drafted``, ``scheduled``, ``verified``, ``accepted`` (bonus tokens apart: one per round).
    ``seconds`` is the time of all steps. Per position, shape ``[gamma]``: ``labels`` counts verified
    positions up to the first stop token in the draft, ``label_sums`` how many of these prefixes were
    accepted; ``drafted_at`` and ``true_accepted_at`` are the same over all drafted positions, trimmed
    or not, which only a replay can know.
    """

    gamma: int
    steps: int = 0
    rounds: int = 0
    emitted: int = 0
    drafted: int = 0
    scheduled: int = 0
    verified: int = 0
    accepted: int = 0
    explored: int = 0
    batch_tokens: int = 0
    seconds: float = 0.0
    refused: int = 0
    rounds_by_version: Counter[int] = field(default_factory=Counter)
    rounds_by_segment: Counter[str] = field(default_factory=Counter)
    labels: Counts = field(init=False)
    label_sums: Counts = field(init=False)
    drafted_at: Counts = field(init=False)
    true_accepted_at: Counts = field(init=False)

    def __post_init__(self) -> None:
        for name in ("labels", "label_sums", "drafted_at", "true_accepted_at"):
            setattr(self, name, np.zeros(self.gamma, dtype=np.int64))

    @property
    def tokens(self) -> int:
        """Tokens that requests received: accepted ones and the bonus token of every round."""
        return self.accepted + self.rounds

    @property
    def tokens_per_second(self) -> float:
        """Tokens over the time of all steps; 0 before the first."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    def book(
        self,
        rounds: Rounds,
        true_accepted: NDArray[np.uint8],
        explored: NDArray[np.bool_],
        seconds: float,
        emitted: int | None = None,
    ) -> None:
        """Enter one step.

        Parameters
        ----------
        rounds
            What was served.
        true_accepted
            What full verification would have accepted, shape ``[rows]``.
        explored
            Which rounds were verified in full to explore, shape ``[rows]``.
        seconds
            Time of the step.
        emitted
            How many of the rounds are of requests within the share that is reported; left out, all.
        """
        count = len(rounds)
        verified = int(rounds.verified.sum(dtype=np.int64))
        self.steps += 1
        self.rounds += count
        self.emitted += count if emitted is None else emitted
        self.drafted += count * self.gamma
        self.scheduled += int(rounds.scheduled.sum(dtype=np.int64))
        self.verified += verified
        self.accepted += int(rounds.accepted.sum(dtype=np.int64))
        self.explored += int(np.count_nonzero(explored))
        self.batch_tokens += count + verified
        self.seconds += seconds
        for version, times in zip(*np.unique(rounds.version, return_counts=True), strict=True):
            self.rounds_by_version[int(version)] += int(times)
        for segment, times in zip(*np.unique(rounds.segment, return_counts=True), strict=True):
            self.rounds_by_segment[rounds.segments[segment]] += int(times)
        k = np.arange(1, self.gamma + 1)
        stop = np.where(rounds.draft_stop == NO_STOP, self.gamma, rounds.draft_stop.astype(np.int64) + 1)
        inside = k <= stop[:, None]
        labelled = inside & (k <= rounds.verified[:, None])
        survived = inside & (k <= true_accepted[:, None])
        self.labels += labelled.sum(axis=0)
        self.label_sums += (labelled & survived).sum(axis=0)
        self.drafted_at += inside.sum(axis=0)
        self.true_accepted_at += survived.sum(axis=0)
