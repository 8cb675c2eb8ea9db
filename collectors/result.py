"""Counts of what one ingest did."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class IngestResult:
    """What became of a batch of messages; every count is of rounds unless it says otherwise.

    ``lost`` and ``dead_lettered`` may be negative: rows that had been given up came after all.
    ``positions`` is (topic, partition) -> next offset, as committed.
    """

    messages: int = 0
    skipped_messages: int = 0
    dead_lettered_messages: int = 0
    folded: int = 0
    duplicates_discarded: int = 0
    lost: int = 0
    dead_lettered: int = 0
    unknown_version: int = 0
    misdated: int = 0
    other_fingerprint: int = 0
    steps: int = 0
    duplicate_steps: int = 0
    positions: dict[tuple[str, int], int] = field(default_factory=dict)

    def add(self, other: IngestResult) -> None:
        """Add the counts of a later ingest; its positions replace ours."""
        for name in COUNTERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.positions.update(other.positions)


COUNTERS = tuple(name for name in IngestResult.__slots__ if name != "positions")
