"""The store held against the books of the engines: exactly, row by row and position by position."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from calibrator.core.windows import WindowSums
from calibrator.store import Store, boots, deployments, sample, windows
from calibrator.store.boots import Boot, LedgerTotals
from tools.fault_rig.pod import BootBooks
from tools.fault_rig.rows import sums


@dataclass(frozen=True, slots=True)
class Stored:
    """What the store says of one deployment."""

    boots: dict[tuple[str, str], Boot]
    totals: LedgerTotals
    steps: LedgerTotals
    raw: WindowSums
    in_force: WindowSums
    sampled: int
    """Rounds that were offered to the samples."""


def stored(store: Store, deployment: str, gamma: int) -> Stored:
    """Read everything that the comparison needs."""
    with store.read() as connection:
        known = deployments.get(connection, deployment)
        if known is None:
            empty = boots.totals(connection, -1)
            return Stored({}, empty, empty, WindowSums.zeros(gamma), WindowSums.zeros(gamma), 0)
        return Stored(
            {(boot.replica, boot.boot): boot for boot in boots.every(connection, known.id)},
            boots.totals(connection, known.id),
            boots.totals(connection, known.id, "step"),
            windows.total(connection, known.id, gamma, raw=True),
            windows.total(connection, known.id, gamma, raw=False),
            sum(stratum.seen for stratum in sample.strata(connection, known.id).values()),
        )


@dataclass(slots=True)
class Comparison:
    """What differs, in words; nothing when the books agree."""

    differences: list[str] = field(default_factory=list)

    def same(self, what: str, found: object, expected: object) -> None:
        """Note a difference."""
        if found != expected:
            self.differences.append(f"{what}: the store says {found}, the engines {expected}")


def compare(books: Sequence[BootBooks], found: Stored, gamma: int, strangers: int = 0) -> list[str]:
    """What differs between the engines' books and the store, ring losses counted; empty when nothing does.

    Parameters
    ----------
    books
        Of every boot of every engine.
    found
        What the store says, when everything has arrived.
    gamma
        Draft positions.
    strangers
        Rounds beside the engines' that must have been dead-lettered.
    """
    result = Comparison()
    labels = np.zeros(gamma, dtype=np.int64)
    accepted = np.zeros(gamma, dtype=np.int64)
    lost = folded = lost_steps = folded_steps = 0
    for book in books:
        name = f"{book.replica}/{book.boot[:8]}"
        boot = found.boots.get((book.replica, book.boot))
        if boot is None:
            if book.rounds or book.steps:
                result.differences.append(f"{name}: unknown to the store, the engine emitted {book.rounds}")
            continue
        intervals = boot.rounds.intervals()
        if intervals["floor"]:
            result.differences.append(f"{name}: rows below {intervals['floor']} are settled in a lump")
        result.same(f"{name} rounds numbered", boot.rounds.next_sequence, book.rounds)
        result.same(f"{name} steps numbered", boot.steps.next_sequence, book.steps)
        result.same(f"{name} rounds in flight", boot.rounds.in_flight, 0)
        result.same(f"{name} steps in flight", boot.steps.in_flight, 0)
        result.same(f"{name} rounds dead-lettered", boot.rounds.dead_lettered, 0)
        if book.ring_lost is not None:
            result.same(f"{name} rounds lost", boot.rounds.lost, book.ring_lost[0])
            result.same(f"{name} steps lost", boot.steps.lost, book.ring_lost[1])
        missing = [(int(a), int(b)) for a, b in intervals["lost"]]
        result.same(f"{name} lost intervals", sum(b - a for a, b in missing), boot.rounds.lost)
        own = sums(book.rows, missing, gamma)
        labels += own[0]
        accepted += own[1]
        lost += boot.rounds.lost
        folded += book.rounds - boot.rounds.lost
        lost_steps += boot.steps.lost
        folded_steps += book.steps - boot.steps.lost
        _check_ledger(result, name, book, gamma)
    result.same("folded", found.totals.folded, folded)
    result.same("offered to the samples", found.sampled, folded)
    result.same("lost", found.totals.lost, lost)
    result.same("dead-lettered", found.totals.dead_lettered, strangers)
    result.same("emitted", found.totals.emitted, folded + lost + strangers)
    result.same("steps folded", found.steps.folded, folded_steps)
    result.same("steps lost", found.steps.lost, lost_steps)
    result.same("rows of unknown versions", found.totals.unknown_version, 0)
    for kind, window in (("raw windows", found.raw), ("windows", found.in_force)):
        for name, expected in (("verified", labels), ("accepted", accepted)):
            counts = window.scalar(name).astype(np.int64).tolist()
            result.same(f"{kind}, {name} per position", counts, expected.tolist())
    return result.differences


def _check_ledger(result: Comparison, name: str, book: BootBooks, gamma: int) -> None:
    """The engine's two sets of books must agree, or nothing can be held against them."""
    ledger = book.ledger
    if ledger is None:
        return
    everything = sums(book.rows, (), gamma)
    for what, found, expected in (
        ("labels", everything[0].tolist(), ledger["labels"]),
        ("label sums", everything[1].tolist(), ledger["label_sums"]),
        ("rounds in the ring", ledger["ring_rounds"], ledger["rounds"]),
        ("steps in the ring", ledger["ring_steps"], ledger["steps"]),
        ("rounds", book.rounds, ledger["rounds"]),
        ("steps", book.steps, ledger["steps"]),
        ("calls refused", ledger["rejected"], 0),
    ):
        if found != expected:
            result.differences.append(f"{name} {what}: own rows say {found}, own ledger {expected}")
    if ledger["versions"] != sorted(set(ledger["versions"])):
        result.differences.append(f"{name}: versions went back: {ledger['versions']}")


def totals_of(books: Iterable[BootBooks]) -> tuple[int, int]:
    """Rounds and steps that all engines emitted."""
    given = list(books)
    return sum(book.rounds for book in given), sum(book.steps for book in given)
