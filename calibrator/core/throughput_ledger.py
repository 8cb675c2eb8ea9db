"""Where the time goes, and what came of it: time per token, waste, budget and throughput by load.

``time per token = (draft time + verify time) / accepted tokens``, draft time being what the drafter took
for everything it drafted. Sums are integers per load (requests in the batch), so ledgers of replicas
and windows add up to the ledger of the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrator.core.cost.buckets import size_bucket
from calibrator.core.cost.sparse import add_up
from calibrator.core.windows import UNIT
from serving_adapter.contract import NO_STOP, Rounds, Steps

Integers = NDArray[np.int64]

LOAD_BITS = 1
"""Loads: 1, 2, 3, 4, 6, 8, 12, 16, ... requests, two buckets an octave."""

LEDGER_SUMS = (
    "steps",
    "requests",  # sum over steps of requests in the batch
    "budget",  # sum over steps of drafts verified: batch tokens less one per request
    "seconds",  # fixed point, units of 2**-24, and so the next two
    "draft_seconds",
    "verify_seconds",  # (both only where the engine tells both)
    "rounds",
    "drafted",
    "verified",
    "accepted",
    "emitted",
    # Fixed point again, of steps with at least one round reported: tokens scaled to all requests of the step,
    # its time, and its time spent on drafting and verifying (all of it where the engine does not tell).
    "scaled_accepted",
    "scaled_emitted",
    "reported_seconds",
    "spent_seconds",
)


@dataclass(frozen=True, slots=True)
class LedgerFigures:
    """Figures of one load (``requests_from`` the smallest number of requests of it), or of all: None.

    Parameters
    ----------
    time_per_token
        Seconds of drafting and verifying per accepted draft token, all requests together. Where some
        step does not tell these apart, seconds of whole steps, of all of them.
    draft_share
        Share of the time that went into drafting, None where the engine does not tell.
    wasted
        Share of verified draft tokens that were not accepted.
    accepted_length, emitted_length
        Tokens per round: accepted drafts, and what the request received, that is with the bonus token
        and without whatever stands behind the end of the sequence.
    budget
        Drafts verified per request and step.
    tokens_per_second, tokens_per_second_per_user
        Of the whole replica, and of one of its requests.
    """

    requests_from: int | None
    steps: int
    rounds: int
    requests: float
    time_per_token: float | None
    draft_share: float | None
    wasted: float | None
    accepted_length: float | None
    emitted_length: float | None
    budget: float | None
    tokens_per_second: float | None
    tokens_per_second_per_user: float | None


@dataclass(frozen=True, slots=True, eq=False)
class LedgerSums:
    """Additive sums per load; ``loads`` has shape ``[loads]``, ``sums`` ``[loads, len(LEDGER_SUMS)]``."""

    loads: Integers
    sums: Integers

    @classmethod
    def zeros(cls) -> Self:
        """Of nothing."""
        return cls(np.zeros(0, dtype=np.int64), np.zeros((0, len(LEDGER_SUMS)), dtype=np.int64))

    @classmethod
    def from_arrays(cls, loads: ArrayLike, sums: ArrayLike) -> Self:
        """Rebuild from rows in any order."""
        keys = np.asarray(loads, dtype=np.int64).reshape(-1, 1)
        keys, values = add_up(keys, np.asarray(sums, dtype=np.int64).reshape(-1, len(LEDGER_SUMS)))
        return cls(keys[:, 0], values)

    @classmethod
    def fold(cls, rounds: Rounds, steps: Steps) -> Self:
        """Enter the rounds and steps of one message of a replica (:func:`fold_ledger`).

        >>> rounds = Rounds.build([[0.0] * 4] * 2, [1, 3], verified=[4, 4])
        >>> steps = Steps.build(step_seconds=[0.5], batch_tokens=10, requests=2, rows=2)
        >>> figures = LedgerSums.fold(rounds, steps).figures()
        >>> figures.tokens_per_second, figures.time_per_token, figures.wasted
        (12.0, 0.125, 0.5)
        """
        both = fold_ledger([LedgerEntry(rounds, steps)])
        return cls(both.loads, both.sums)

    def __add__(self, other: LedgerSums) -> LedgerSums:
        return LedgerSums.from_arrays(
            np.concatenate([self.loads, other.loads]), np.concatenate([self.sums, other.sums])
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LedgerSums):
            return NotImplemented
        return bool(np.array_equal(self.loads, other.loads) and np.array_equal(self.sums, other.sums))

    __hash__ = None  # type: ignore[assignment]

    def figures(self) -> LedgerFigures:
        """Figures of everything."""
        return _figures(None, self.sums.sum(axis=0))

    def by_load(self) -> Sequence[LedgerFigures]:
        """Figures per load, ascending: the verification budget and the throughput against concurrency."""
        return [_figures(int(load), row) for load, row in zip(self.loads, self.sums, strict=True) if load > 0]


@dataclass(frozen=True, slots=True, eq=False)
class LedgerEntry:
    """Rounds and steps of one message, and which of them are new; None: all of them are."""

    rounds: Rounds | None
    steps: Steps
    new_rounds: NDArray[np.bool_] | None = None
    new_steps: NDArray[np.bool_] | None = None


def fold_ledger(entries: Sequence[LedgerEntry]) -> LedgerSums:
    """Enter messages, each row once however often it was sent.

    ``steps.rows`` says how many rounds of each step are in the message, in order, and the message's rounds
    of no step come last (docs/contracts.md); a replica that reports part of its requests (``share`` below
    1) sends fewer rounds than requests, and tokens per second are scaled up to all of them. Rounds that no
    step claims enter with load 0: they count for lengths and waste, not for rates. Where steps claim more
    rounds than there are, which our forwarder never sends, the join is gone, and the sums of both sides
    still hold.

    What belongs to a round is entered when the round is new, under the load of its step; what belongs to
    a step (its time, its tokens scaled up) when the step is new, from all its rounds in the message. So
    a message that was folded before in part adds exactly the rest. Only rows that are sent again in
    other messages than before can come apart: they count once, without the join.
    """
    kept = [entry for entry in entries if entry.rounds is not None or len(entry.steps)]
    if not kept:
        return LedgerSums.zeros()
    steps = Steps.concatenate([entry.steps for entry in kept])
    rounds = [entry.rounds for entry in kept if entry.rounds is not None]
    count = len(steps)
    known = _per_step(rounds, _owners(kept), count)
    fresh = known
    if any(entry.new_rounds is not None for entry in kept):
        owner = _owners(kept)
        new = _joined([entry.new_rounds for entry in kept], [_rows(entry) for entry in kept])
        fresh = _per_step(rounds, np.where(new, owner, count + 1), count + 1)[: count + 1]
    new_steps = _joined([entry.new_steps for entry in kept], [len(entry.steps) for entry in kept])

    gamma = rounds[0].gamma if rounds else 0
    by_round = np.insert(fresh, 1, fresh[:, 0] * gamma, axis=1)
    rows = np.concatenate(
        [_of_steps(steps, known[:-1]) * new_steps[:, None], np.zeros((1, len(LEDGER_SUMS)), dtype=np.int64)]
    )
    first = LEDGER_SUMS.index("rounds")
    rows[:, first : first + by_round.shape[1]] = by_round
    loads = np.append(size_bucket(steps.requests, LOAD_BITS), 0)
    used = rows.any(axis=1)
    return LedgerSums.from_arrays(loads[used], rows[used])


def _rows(entry: LedgerEntry) -> int:
    return 0 if entry.rounds is None else len(entry.rounds)


def _joined(masks: Sequence[NDArray[np.bool_] | None], lengths: Sequence[int]) -> NDArray[np.bool_]:
    return np.concatenate(
        [
            np.ones(length, dtype=np.bool_) if mask is None else mask
            for mask, length in zip(masks, lengths, strict=True)
        ]
    )


def _owners(entries: Sequence[LedgerEntry]) -> Integers:
    """Step of every round, one after the last step for rounds of none."""
    none = sum(len(entry.steps) for entry in entries)
    parts, first = [], 0
    for entry in entries:
        claimed = entry.steps.rows.astype(np.int64)
        spare = _rows(entry) - int(claimed.sum())
        if spare < 0:
            claimed, spare = np.zeros_like(claimed), _rows(entry)
        parts += [np.repeat(np.arange(first, first + len(claimed)), claimed), np.full(spare, none)]
        first += len(claimed)
    return np.concatenate(parts)


def _per_step(rounds: Sequence[Rounds], owner: Integers, count: int) -> Integers:
    """Rounds, and their verified, accepted and emitted tokens, shape ``[count + 1, 4]``."""
    if not rounds:
        return np.zeros((count + 1, 4), dtype=np.int64)
    columns = [
        np.concatenate(parts)
        for parts in zip(*((r.verified, r.accepted, emitted_tokens(r)) for r in rounds), strict=True)
    ]
    if count == 0:
        return np.array([[len(owner), *(int(column.sum()) for column in columns)]], dtype=np.int64)
    sums = [np.bincount(owner, minlength=count + 1)]
    sums += [np.bincount(owner, weights=column, minlength=count + 1) for column in columns]
    return np.column_stack(sums).astype(np.int64)


def _of_steps(steps: Steps, known: Integers) -> Integers:
    """What a step itself enters, shape ``[steps, len(LEDGER_SUMS)]``; ``known`` are sums of its rounds."""
    count = len(steps)
    requests = steps.requests.astype(np.int64)
    seconds = steps.step_seconds.astype(np.float64)
    draft, verify = steps.draft_seconds.astype(np.float64), steps.verify_seconds.astype(np.float64)
    told = (draft > 0) & (verify > 0)
    reported = known[:, 0]
    scale = np.divide(requests, reported, out=np.zeros(count), where=reported > 0)
    values = {
        "steps": np.ones(count),
        "requests": requests,
        "budget": np.maximum(steps.batch_tokens.astype(np.int64) - requests, 0),
    }
    exact = {
        "seconds": seconds,
        "draft_seconds": np.where(told, draft, 0.0),
        "verify_seconds": np.where(told, verify, 0.0),
        "scaled_accepted": known[:, 2] * scale,
        "scaled_emitted": known[:, 3] * scale,
        "reported_seconds": np.where(reported > 0, seconds, 0.0),
        "spent_seconds": np.where(reported > 0, np.where(told, draft + verify, seconds), 0.0),
    }
    rows = np.zeros((count, len(LEDGER_SUMS)), dtype=np.int64)
    for name, value in values.items():
        rows[:, LEDGER_SUMS.index(name)] = value
    for name, value in exact.items():
        rows[:, LEDGER_SUMS.index(name)] = np.rint(value * UNIT)
    return rows


def emitted_tokens(rounds: Rounds) -> Integers:
    """Tokens that each request received in a round, shape ``[rows]``.

    The accepted ones and the bonus token; when an accepted token ends the sequence, the tokens up to and
    including it, and no bonus token.
    """
    accepted = rounds.accepted.astype(np.int64) + 1
    if (rounds.draft_stop == NO_STOP).all():
        return accepted
    end = np.where(rounds.draft_stop == NO_STOP, rounds.gamma + 1, rounds.draft_stop.astype(np.int64) + 1)
    return np.minimum(accepted, end)


def _figures(load: int | None, row: Integers) -> LedgerFigures:
    at = dict(zip(LEDGER_SUMS, row.tolist(), strict=True))
    seconds = {name: at[name] / UNIT for name in LEDGER_SUMS if name.endswith("seconds")}
    working = seconds["draft_seconds"] + seconds["verify_seconds"]
    rate = _ratio(at["scaled_emitted"] / UNIT, seconds["reported_seconds"])
    users = _ratio(at["requests"], at["steps"])
    return LedgerFigures(
        requests_from=load,
        steps=at["steps"],
        rounds=at["rounds"],
        requests=users or 0.0,
        time_per_token=_ratio(_spent(at) / UNIT, at["scaled_accepted"] / UNIT),
        draft_share=_ratio(seconds["draft_seconds"], working),
        wasted=_ratio(at["verified"] - at["accepted"], at["verified"]),
        accepted_length=_ratio(at["accepted"], at["rounds"]),
        emitted_length=_ratio(at["emitted"], at["rounds"]),
        budget=_ratio(at["budget"], at["requests"]),
        tokens_per_second=rate,
        tokens_per_second_per_user=None if rate is None or not users else rate / users,
    )


def _spent(at: dict[str, int]) -> int:
    """Time of drafting and verifying where every step tells it, else of whole steps: never a mixture.

    Steps that do not tell add their whole time to ``spent_seconds`` and nothing to the two parts; of what is
    told, only that of steps without a reported round may be missing there.
    """
    rounding = 2 * at["steps"]
    told = at["spent_seconds"] <= at["draft_seconds"] + at["verify_seconds"] + rounding
    return at["spent_seconds"] if told else at["reported_seconds"]


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
