"""Rows of the verify-event contract, handed to the adapter step by step when their labels are in.

A sampled round has its labels in its own step. A greedy round waits until the text has grown past its draft:
decoding is lossless, so the committed tokens tell for every drafted position, verified or not, whether
it would have been accepted. That takes at most ``gamma`` further rounds. When the request ends at its
length limit first, positions beyond the limit stay unresolved: a rule that no outcome has a say in.

A step is handed over whole, its row together with its rounds, when the last of them has its labels: who
reads them finds the time of a step and the tokens that came of it side by side.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_adapter.contract import NO_STOP
from serving_adapter.engines.torch.acceptance import Verdict
from serving_adapter.engines.torch.plan import VerificationPlan
from serving_adapter.engines.torch.requests import RunningRequest, first_stop


@dataclass(slots=True, eq=False)
class Round:
    """One round of one request, with its drafted tokens until the labels are in."""

    request: int
    step: int
    segment: int
    sampling: float
    logits: NDArray[np.float32]
    scheduled: int
    verified: int
    accepted: int
    resolved: int
    resolved_accepted: int
    draft_stop: int
    explore: float
    version: int
    accept_probability: NDArray[np.float32]
    anchor: int
    draft: tuple[int, ...] = ()
    labelled: bool = False

    @classmethod
    def of(
        cls,
        running: RunningRequest,
        row: int,
        anchor: int,
        segment: int,
        logits: NDArray[np.float32],
        plan: VerificationPlan,
        verdict: Verdict,
    ) -> Round:
        """Round of the request in row ``row``, whose draft stood behind position ``anchor``."""
        soft = verdict.accept_probability[row].copy()
        soft[plan.verified[row] :] = np.nan  # the contract has them for verified positions
        return cls(
            request=running.hash,
            step=running.rounds,
            segment=segment,
            sampling=running.request.temperature,
            logits=logits,
            scheduled=int(plan.scheduled[row]),
            verified=int(plan.verified[row]),
            accepted=int(verdict.accepted[row]),
            resolved=int(verdict.resolved[row]),
            resolved_accepted=int(verdict.resolved_accepted[row]),
            draft_stop=NO_STOP,
            explore=plan.explore,
            version=plan.version,
            accept_probability=soft,
            anchor=anchor,
        )

    def settle(self, tokens: Sequence[int], ended: str | None) -> bool:
        """Read labels off the text of a greedy request; False while it is too short for them.

        Parameters
        ----------
        tokens
            Prompt and output so far.
        ended
            Why the request has ended, None while it runs.
        """
        text = tokens[self.anchor + 1 : self.anchor + 1 + len(self.draft)]
        if len(text) < len(self.draft) and ended is None:
            return False
        agreed = 0
        for drafted, committed in zip(self.draft, text, strict=False):
            if drafted != committed:
                break
            agreed += 1
        known = len(text)
        if ended == "stop" and agreed < known:
            known = len(self.draft)  # the text left the draft before it stopped: every prefix is decided
        if known >= self.resolved:
            self.resolved, self.resolved_accepted = known, max(agreed, self.resolved_accepted)
        return True


@dataclass(slots=True)
class LoggedStep:
    """The rounds of one engine step, and its step row as arguments of ``observe`` once it has ended."""

    rounds: list[Round] = field(default_factory=list)
    row: dict[str, Any] | None = None


@dataclass(slots=True)
class RoundsLog:
    """Steps on their way to the adapter.

    Parameters
    ----------
    late_labels
        Whether greedy rounds wait for the labels of what was not verified.
    """

    late_labels: bool = True
    _steps: deque[LoggedStep] = field(default_factory=deque)
    _open: LoggedStep = field(default_factory=LoggedStep)
    _waiting: dict[int, deque[Round]] = field(default_factory=dict)

    def enter(self, running: RunningRequest, entry: Round, draft: Sequence[int]) -> None:
        """Take a round of the present step, of a request whose tokens were already committed."""
        self._open.rounds.append(entry)
        stop = first_stop(draft, running.request.stop_tokens)
        entry.draft_stop = NO_STOP if stop is None else stop
        if not (self.late_labels and entry.sampling == 0.0):
            entry.labelled = True
            return
        entry.draft = tuple(draft)
        self._waiting.setdefault(id(running), deque()).append(entry)

    def follow(self, running: RunningRequest) -> None:
        """Release the rounds of a request that its text has labelled; all of them when it has ended."""
        waiting = self._waiting.get(id(running))
        if waiting is None:
            return
        if running.finished == "cancelled":
            # Who cancels has seen the output: what became known by then stands, nothing is read off.
            _release(waiting)
        while waiting and waiting[0].settle(running.tokens, running.finished):
            waiting.popleft().labelled = True
        if not waiting:
            del self._waiting[id(running)]

    def end_step(self, row: dict[str, Any]) -> None:
        """End the present step: ``row`` are the arguments of ``observe`` for its step row."""
        self._open.row = row
        self._steps.append(self._open)
        self._open = LoggedStep()

    def take(self) -> Iterator[dict[str, Any]]:
        """Take the steps whose rounds all have their labels, oldest first, as arguments of ``observe``."""
        while self._steps and all(entry.labelled for entry in self._steps[0].rounds):
            step = self._steps.popleft()
            yield {**_columns(step.rounds), **(step.row or {})}

    def flush(self) -> None:
        """Release everything with the labels it has: the engine stops."""
        for waiting in self._waiting.values():
            _release(waiting)
        self._waiting.clear()
        if self._open.rounds:  # of a step that failed: nobody knows how long it took
            self._steps.append(self._open)
            self._open = LoggedStep()


def _release(waiting: deque[Round]) -> None:
    for entry in waiting:
        entry.labelled = True
    waiting.clear()


def _columns(rows: Sequence[Round]) -> dict[str, Any]:
    columns: dict[str, Any] = {
        "logits": np.stack([row.logits for row in rows]),
        "accept_probability": np.stack([row.accept_probability for row in rows]),
        "request": np.array([row.request for row in rows], dtype=np.uint64),
    }
    for name in _LENGTHS:
        columns[name] = np.array([getattr(row, name) for row in rows], dtype=np.uint8)
    for name, kind in _OTHERS.items():
        columns[name] = np.array([getattr(row, name) for row in rows], dtype=kind)
    return columns


_LENGTHS = ("accepted", "verified", "scheduled", "resolved", "resolved_accepted", "draft_stop")
_OTHERS = {"step": "u4", "explore": "f8", "version": "u4", "segment": "u2", "sampling": "f8"}
