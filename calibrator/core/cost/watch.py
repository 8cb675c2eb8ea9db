"""Cost drift of a deployment: one alarm for all steps, per load regime and per context bucket.

Collectors add steps to a growing histogram of measured over predicted time; whoever watches takes
differences of it, look by look, in any order of arrival.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import numpy as np

from calibrator.core.cost.buckets import BINS_PER_OCTAVE
from calibrator.core.cost.counted_alarm import CountedAlarm
from calibrator.core.cost.drift import Direction, DriftCells, Remedy, remedy

MAX_LOOKS = 64
"""Looks whose steps are kept apart, to tell what came before an episode began from what came since."""
SURE_STEPS = 100
"""Steps since an episode of everything began that tell whether it is of some regimes or contexts only."""

StreamKind = Literal["all", "regime", "context"]
Stream = tuple[StreamKind, int]
ALL: Stream = ("all", 0)
APART: dict[Remedy, StreamKind] = {"by_context": "context", "profile": "regime"}
"""Streams that are told apart where everything drifts, but differently."""


@dataclass(frozen=True, slots=True)
class CostRules:
    """What counts as cost drift.

    Parameters
    ----------
    tolerance
        Relative deviation that is none; taken to the next bin of the histogram (1.1 % wide).
    false_alarm_steps
        A deployment whose curve is right raises a false alarm in n steps with probability at most
        ``n / false_alarm_steps``, all its streams and both directions together.
    """

    tolerance: float = 0.05
    false_alarm_steps: float = 1e6

    @property
    def slower_from(self) -> int:
        """First bin of the histogram that is slower than the tolerance."""
        return int(np.ceil(np.log2(1.0 + self.tolerance) * BINS_PER_OCTAVE))


@dataclass(frozen=True, slots=True)
class CostFinding:
    """A stream in alarm. ``bias`` is that of its median step since ``began``, None before there is any."""

    stream: Stream
    direction: Direction
    began: float
    bias: float | None
    remedy: Remedy
    summary: str


@dataclass(frozen=True, slots=True, eq=False)
class CostWatch:
    """State of all streams, small and serialisable.

    Parameters
    ----------
    read
        The histogram as it was last read.
    recent
        Steps of the latest looks; the epoch is the time of the look in milliseconds.
    alarms
        Per stream; streams appear with their first step.
    """

    read: DriftCells = field(default_factory=DriftCells.empty)
    recent: DriftCells = field(default_factory=DriftCells.empty)
    alarms: Mapping[Stream, CountedAlarm] = field(default_factory=dict)

    def look(self, totals: DriftCells, before: float, at: float, rules: CostRules) -> CostWatch:
        """Take in what was added to the totals since the last look.

        Parameters
        ----------
        totals
            Growing cells, all of epoch 0.
        before, at
            Times of the look before and of this one, in seconds.

        >>> from serving_adapter.contract import Steps
        >>> steps = Steps.build(step_seconds=[0.2] * 99, predicted_seconds=0.1, batch_tokens=8, requests=2)
        >>> watch = CostWatch().look(DriftCells.fold(steps, epoch=0), 0.0, 60.0, CostRules())
        >>> [(finding.stream, finding.direction) for finding in watch.findings(CostRules())][:1]
        [(('all', 0), 'slower')]
        """
        fresh = _difference(totals, self.read)
        if not len(fresh.keys):
            return self
        alarms = dict(self.alarms)
        counts = _counts(fresh, rules)
        for stream in counts:
            alarms.setdefault(stream, CountedAlarm.start(before))
        threshold = float(np.log(2.0 * rules.false_alarm_steps * len(alarms)))
        for stream, (steps, slower, faster) in counts.items():
            alarms[stream] = alarms[stream].extend(steps, slower, faster, at, threshold)
        fresh.keys[:, 0] = _epoch(at)
        recent = self.recent + fresh
        epochs = np.unique(recent.keys[:, 0])
        if len(epochs) > MAX_LOOKS:
            recent = recent.between(first=int(epochs[-MAX_LOOKS]))
        return CostWatch(totals, recent, alarms)

    def findings(self, rules: CostRules) -> list[CostFinding]:
        """Streams in alarm, everything first.

        While everything is in alarm for one reason, regimes and contexts in alarm are part of it; they are
        findings of their own where the deviation differs between them, or where not everything has one.
        """
        whole = self.alarms.get(ALL)
        found = []
        apart: StreamKind | None = None
        if whole is not None and whole.open is not None:
            found.append(self._finding(ALL, whole, rules))
            if _steps(self._during(whole)) >= SURE_STEPS:
                apart = APART.get(found[0].remedy)
        for stream, alarm in sorted(self.alarms.items()):
            if alarm.open is None or stream == ALL:
                continue
            covered = whole is not None and whole.open == alarm.open and stream[0] != apart
            if not covered:
                found.append(self._finding(stream, alarm, rules))
        return found

    def _finding(self, stream: Stream, alarm: CountedAlarm, rules: CostRules) -> CostFinding:
        assert alarm.open is not None
        during = self._during(alarm)
        mine = _only(during, stream).figures()
        bias = mine[0].bias if mine else None
        if stream == ALL:
            kind, summary = remedy(_difference(self.read, during), during, rules.tolerance)
            if kind == "none":
                kind, summary = "rescale", "steps deviate from the curve"
        else:
            name, kind = (
                ("load regime", "profile") if stream[0] == "regime" else ("context bucket", "by_context")
            )
            summary = f"steps of {name} {stream[1]} take {bias or 0.0:+.0%}"
        return CostFinding(stream, alarm.open, alarm.began, bias, kind, summary)

    def _during(self, alarm: CountedAlarm) -> DriftCells:
        return self.recent.between(first=_epoch(alarm.began) + 1)

    def to_builtins(self) -> dict[str, Any]:
        """As numbers and lists, for JSON."""
        return {
            "read": _table(self.read),
            "recent": _table(self.recent),
            "alarms": [[*stream, alarm.to_builtins()] for stream, alarm in self.alarms.items()],
        }

    @classmethod
    def from_builtins(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild from :meth:`to_builtins`; exact."""
        alarms: dict[Stream, CountedAlarm] = {
            (kind, value): CountedAlarm.from_builtins(alarm) for kind, value, alarm in data["alarms"]
        }
        return cls(DriftCells.from_arrays(*data["read"]), DriftCells.from_arrays(*data["recent"]), alarms)


def _epoch(at: float) -> int:
    return round(at * 1000.0)


def _table(cells: DriftCells) -> list[Any]:
    return [cells.keys.tolist(), cells.sums.tolist()]


def _steps(cells: DriftCells) -> int:
    return int(_counted(cells).sum())


def _counted(cells: DriftCells) -> Any:
    """Steps per entry: collectors count each step with weight 1."""
    return cells.sums[:, 0] >> 24


def _difference(totals: DriftCells, part: DriftCells) -> DriftCells:
    """Entries of the totals less those of a part of them, all of epoch 0."""
    keys, negative = part.keys.copy(), -part.sums
    keys[:, 0] = 0
    both = DriftCells.from_arrays(
        np.concatenate([totals.keys, keys]), np.concatenate([totals.sums, negative])
    )
    kept = both.sums[:, 0] > 0
    return DriftCells(both.keys[kept], both.sums[kept])


def _only(cells: DriftCells, stream: Stream) -> DriftCells:
    if stream[0] == "all":
        return cells
    kept = cells.keys[:, 1 if stream[0] == "regime" else 2] == stream[1]
    return DriftCells(cells.keys[kept], cells.sums[kept])


def _counts(cells: DriftCells, rules: CostRules) -> dict[Stream, tuple[int, int, int]]:
    """Steps, slower ones and faster ones per stream."""
    steps, bins = _counted(cells), cells.keys[:, 3]
    columns = (steps, steps * (bins >= rules.slower_from), steps * (bins < -rules.slower_from))
    streams: list[Stream] = [ALL]
    streams += [("regime", int(value)) for value in np.unique(cells.keys[:, 1])]
    streams += [("context", int(value)) for value in np.unique(cells.keys[:, 2])]
    counts: dict[Stream, tuple[int, int, int]] = {}
    for stream in streams:
        mine = slice(None)
        if stream != ALL:
            mine = cells.keys[:, 1 if stream[0] == "regime" else 2] == stream[1]
        total, slower, faster = (int(column[mine].sum()) for column in columns)
        counts[stream] = (total, slower, faster)
    return counts
