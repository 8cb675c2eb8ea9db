"""What a batch of messages will change, worked out before the transaction that changes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from calibrator.core.sample import row_uniform
from calibrator.core.throughput_ledger import LedgerEntry
from calibrator.store.boots import Boot, BootKey
from calibrator.store.dead_letters import DeadLetter
from collectors.decoding import Decoded, refused
from collectors.options import PipelineOptions
from collectors.result import IngestResult
from collectors.snapshot import Known, Snapshot
from serving_adapter.contract import ContractError, Rounds, Steps, VerifyBatch


@dataclass(frozen=True, slots=True)
class FreshRounds:
    """Rounds of one message that were not folded before; ``segment_sets`` as in the message."""

    rounds: Rounds
    key: BootKey
    numbers: NDArray[np.int64]
    uniform: NDArray[np.float64]
    at: float
    fingerprint: str
    share: float
    segment_sets: bool = False


@dataclass(frozen=True, slots=True)
class FreshSteps:
    """Steps of one message that were not sampled before.

    ``version`` served all rounds of that message; -1 when there were none, or several versions.
    """

    steps: Steps
    key: BootKey
    numbers: NDArray[np.int64]
    uniform: NDArray[np.float64]
    at: float
    fingerprint: str
    version: int = -1


@dataclass(frozen=True, slots=True)
class FreshMessage:
    """A message with rounds or steps that were not folded before, whole: its steps claim its rounds."""

    entry: LedgerEntry
    at: float


@dataclass(slots=True)
class DeploymentPlan:
    """Changes to one deployment. ``gamma`` is 0 while no good message has told it."""

    name: str
    known: Known
    gamma: int = 0
    fingerprint: str = ""
    boots: dict[BootKey, Boot] = field(default_factory=dict)
    rounds: list[FreshRounds] = field(default_factory=list)
    steps: list[FreshSteps] = field(default_factory=list)
    messages: list[FreshMessage] = field(default_factory=list)


@dataclass(slots=True)
class Plan:
    """Changes to all deployments, letters to send, and the counts of it all."""

    deployments: dict[str, DeploymentPlan]
    letters: list[DeadLetter]
    refused: list[Decoded]
    result: IngestResult


def make_plan(decoded: Sequence[Decoded], snapshot: Snapshot, now: float, options: PipelineOptions) -> Plan:
    """Decide row by row what is new, and book everything in the ledgers of the snapshot."""
    plan = Plan(
        {name: _deployment_plan(name, known) for name, known in snapshot.known.items()},
        [],
        [],
        IngestResult(messages=len(decoded)),
    )
    room = options.max_deployments - snapshot.deployments
    for each in decoded:
        item = each
        if item.batch is not None:
            target = plan.deployments[item.batch.deployment]
            try:
                _check_deployment(target, item.batch, room, options)
            except ContractError as error:
                item = refused(item.message, str(error), item.batch)
        if item.batch is None:
            _refuse(plan, item, now)
            continue
        if not target.gamma:
            target.gamma, target.fingerprint = item.batch.gamma, item.batch.fingerprint
            room -= target.known.deployment is None
        _accept(plan.result, target, item.batch, now, options)
    return plan


def _deployment_plan(name: str, known: Known) -> DeploymentPlan:
    if known.deployment is None:
        return DeploymentPlan(name, known)
    return DeploymentPlan(name, known, known.deployment.gamma, known.deployment.fingerprint)


def _check_deployment(
    target: DeploymentPlan, batch: VerifyBatch, room: int, options: PipelineOptions
) -> None:
    if target.gamma and batch.gamma != target.gamma:
        raise ContractError("gamma", batch.gamma, f"{target.gamma}, as in the rest of {target.name}")
    if not target.gamma and room <= 0:
        raise ContractError(
            "deployment", batch.deployment, f"one of the {options.max_deployments} that are known"
        )


def _boot(target: DeploymentPlan, key: BootKey, fingerprint: str, now: float) -> Boot:
    boot = target.boots.get(key) or target.known.boots.get(key)
    if boot is None:
        boot = Boot(*key, fingerprint=fingerprint, first_seen=now, last_seen=now)
        for letter in target.known.earlier_letters.get(key, ()):
            _book_letter(boot, letter)
    target.boots[key] = boot
    return boot


def _book_letter(boot: Boot, letter: DeadLetter) -> None:
    """Book what a refused message held, and what it said was lost before: no other message tells."""
    for ledger, first, count, lost in (
        (boot.rounds, letter.first_row, letter.row_count, letter.rows_lost),
        (boot.steps, letter.first_step, letter.step_count, letter.steps_lost),
    ):
        start = first or 0
        ledger.dead_letter(start, count or 0)
        ledger.lose(max(0, start - (lost or 0)), start)


def _refuse(plan: Plan, item: Decoded, now: float) -> None:
    message, rows = item.message, item.rows
    plan.refused.append(item)
    plan.result.dead_lettered_messages += 1
    place = (message.topic, message.partition, message.offset)
    if rows is None:
        plan.letters.append(DeadLetter(*place, item.reason, now, len(message.value)))
        return
    target = plan.deployments[rows.deployment]
    boot = _boot(target, (rows.replica, rows.boot), "", now)
    letter = DeadLetter(
        *place,
        item.reason,
        now,
        len(message.value),
        deployment=rows.deployment,
        replica=rows.replica,
        boot=rows.boot,
        first_row=rows.first,
        row_count=rows.count,
        rows_lost=rows.lost,
        first_step=rows.steps_first,
        step_count=rows.steps_count,
        steps_lost=rows.steps_lost,
    )
    before = (boot.rounds.dead_lettered, boot.rounds.lost)
    _book_letter(boot, letter)
    plan.result.dead_lettered += boot.rounds.dead_lettered - before[0]
    plan.result.lost += boot.rounds.lost - before[1]
    plan.letters.append(letter)


def _accept(
    result: IngestResult, target: DeploymentPlan, batch: VerifyBatch, now: float, options: PipelineOptions
) -> None:
    key = (batch.replica, batch.boot)
    boot = _boot(target, key, batch.fingerprint, now)
    boot.fingerprint, boot.last_seen = batch.fingerprint, max(boot.last_seen, now)
    at = batch.emitted_at / 1e9
    misdated = at > now + options.future_seconds or at < now - options.past_seconds
    if misdated:
        at = now

    before = (boot.rounds.lost, boot.rounds.duplicates, boot.rounds.dead_lettered)
    boot.rounds.lose(max(0, batch.sequence - batch.lost), batch.sequence)
    new_rounds = boot.rounds.fold(batch.sequence, batch.count)
    for start, stop in new_rounds:
        numbers = np.arange(start, stop, dtype=np.int64)
        assert batch.rounds is not None
        rounds = batch.rounds
        if len(numbers) < batch.count:
            rounds = rounds.take(slice(start - batch.sequence, stop - batch.sequence))
        uniform = row_uniform(batch.deployment, *key, numbers)
        target.rounds.append(
            FreshRounds(
                rounds, key, numbers, uniform, at, batch.fingerprint, float(batch.share), batch.segment_sets
            )
        )
        result.folded += len(numbers)
        result.misdated += len(numbers) * misdated
        boot.misdated += len(numbers) * misdated
        result.other_fingerprint += len(numbers) * (batch.fingerprint != target.fingerprint)
        unknown = np.count_nonzero(_unknown(rounds, target.known))
        result.unknown_version += int(unknown)
        boot.unknown_version += int(unknown)
    result.lost += boot.rounds.lost - before[0]
    result.duplicates_discarded += boot.rounds.duplicates - before[1]
    result.dead_lettered += boot.rounds.dead_lettered - before[2]

    seen = boot.steps.duplicates
    boot.steps.lose(max(0, batch.steps_sequence - batch.steps_lost), batch.steps_sequence)
    new_steps = boot.steps.fold(batch.steps_sequence, len(batch.steps))
    for start, stop in new_steps:
        numbers = np.arange(start, stop, dtype=np.int64)
        part = slice(start - batch.steps_sequence, stop - batch.steps_sequence)
        # Steps are numbered like rounds; another name gives them random numbers of their own.
        uniform = row_uniform(batch.deployment, batch.replica, f"{batch.boot}/steps", numbers)
        target.steps.append(
            FreshSteps(
                batch.steps.take(part), key, numbers, uniform, at, batch.fingerprint, _one_version(batch)
            )
        )
        result.steps += len(numbers)
    result.duplicate_steps += boot.steps.duplicates - seen
    if new_rounds or new_steps:
        entry = LedgerEntry(
            batch.rounds,
            batch.steps,
            _mask(new_rounds, batch.sequence, batch.count),
            _mask(new_steps, batch.steps_sequence, len(batch.steps)),
        )
        target.messages.append(FreshMessage(entry, at))


def _mask(ranges: Sequence[tuple[int, int]], first: int, count: int) -> NDArray[np.bool_] | None:
    """Which rows of a message are in these ranges of row numbers; None when all of them are."""
    if sum(stop - start for start, stop in ranges) == count:
        return None
    mask = np.zeros(count, dtype=np.bool_)
    for start, stop in ranges:
        mask[start - first : stop - first] = True
    return mask


def _one_version(batch: VerifyBatch) -> int:
    if batch.rounds is None or not len(batch.rounds):
        return -1
    first = int(batch.rounds.version[0])
    return first if (batch.rounds.version == first).all() else -1


def _unknown(rounds: Rounds, known: Known) -> NDArray[np.bool_]:
    first = int(rounds.version[0])
    if (first == 0 or first in known.parameters) and (rounds.version == first).all():
        return np.zeros(len(rounds), dtype=np.bool_)
    return ~np.isin(rounds.version, [0, *known.parameters])
