"""Alarms that may be watched all the time: e-processes in restart form over growing sums of evidence.

Every stream has one process per stake and direction, ``M <- max(1, M) * exp(evidence of the new rows)``, and
their mean is what is compared with the threshold. While the gap of a stream stays inside the tolerance, the
expected mean after n looks is at most n (every restart starts a process of expectation one), so the
probability of an alarm in n looks is at most ``n / threshold``: at any time, however often anyone looks.

One look may cover one row or everything that came since the last look. Evidence of collectors that work
in parallel is added before the look, which multiplies independent e-values; processes restarted apart and
multiplied afterwards would not be valid, and averaged ones would see only their share of the rows.

Bets are on the predictions that served the rows, so a process of calibration goes on over versions of the
parameters (:meth:`Watch.next_version`).

That the expected mean stays so small takes bets that are fair given what came before. Rows of one request
share what no prediction knows, so their evidence is tempered (:mod:`calibrator.core.drift.dependence`).

Source: J. Shin, A. Ramdas, A. Rinaldo, "E-detectors", NEJSDS 2023; Waudby-Smith and Ramdas, "Estimating
means of bounded random variables by betting", JRSS B 2024.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrator.core.drift.rules import ABOVE, BELOW, PROCESSES, STAKES

Float = NDArray[np.float64]
Integers = NDArray[np.int64]

CHUNK = 4096
_LARGEST = 700.0  # exp of it is still a float64


@dataclass(frozen=True, slots=True)
class AlarmEvent:
    """An episode begins or ends.

    ``direction`` is ``ABOVE`` where labels (or acceptance) lie above what was predicted, ``BELOW`` where they
    lie below. ``since`` is when the leading process last stood at 1: the estimate of when drift began.
    """

    stream: int
    kind: Literal["start", "end"]
    direction: int
    at: float
    since: float
    log_evidence: float


@dataclass(frozen=True, slots=True, eq=False)
class Watch:
    """State of all streams, small and serialisable.

    Attributes
    ----------
    log_evidence
        ``log max(1, M)``, shape ``[streams, PROCESSES]``.
    since
        When each process last stood at 1, same shape.
    leader
        Process that tells when the episode in progress ends, -1 without one; shape ``[streams]``.
    """

    log_evidence: Float
    since: Float
    leader: Integers

    @classmethod
    def start(cls, streams: int, at: float = 0.0) -> Self:
        """No evidence yet."""
        shape = (streams, PROCESSES)
        return cls(np.zeros(shape), np.full(shape, at), np.full(streams, -1, dtype=np.int64))

    @property
    def streams(self) -> int:
        """Number of streams."""
        return int(self.leader.shape[0])

    @property
    def direction(self) -> Integers:
        """Direction of the episode in progress, 0 without one, shape ``[streams]``."""
        return np.where(self.leader < 0, 0, np.where(self.leader < len(STAKES), ABOVE, BELOW))

    def to_builtins(self) -> dict[str, Any]:
        """As lists of numbers, for JSON."""
        return {
            "log_evidence": self.log_evidence.tolist(),
            "since": self.since.tolist(),
            "leader": self.leader.tolist(),
        }

    @classmethod
    def from_builtins(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild from :meth:`to_builtins`; exact.

        Raises
        ------
        ValueError
            When the shapes are not those of a watch.
        """
        state = cls(
            np.array(data["log_evidence"], dtype=np.float64),
            np.array(data["since"], dtype=np.float64),
            np.array(data["leader"], dtype=np.int64),
        )
        expected = (len(state.leader), PROCESSES)
        for name in ("log_evidence", "since"):
            if getattr(state, name).shape != expected:
                raise ValueError(f"{name}: got shape {getattr(state, name).shape}, expected {expected}")
        return state

    def extend(
        self, evidence: ArrayLike, at: ArrayLike, log_threshold: float, tempering: ArrayLike = 1.0
    ) -> tuple[Watch, list[AlarmEvent]]:
        """Take in evidence, look by look.

        Parameters
        ----------
        evidence
            Log evidence of the rows of each look, shape ``[looks, streams, PROCESSES]``.
        at
            Time of each look (seconds since 1970, or row numbers), shape ``[looks]``, ascending.
        log_threshold
            Of :meth:`calibrator.core.drift.DriftRules.log_threshold`.
        tempering
            Power of the evidence in (0, 1], one for all or shape ``[streams]``: an e-value to such a power is
            an e-value still. From rows that came before.

        Returns
        -------
        The state afterwards, and the events in order of time. From the alarm on, the process of the next
        smaller stake than the leading one's is followed, never counted above the threshold; when it has
        fallen back to 1 the episode ends: after about as many rows as the alarm took, or a few times that.

        >>> looks = np.zeros((3, 1, PROCESSES))
        >>> looks[0, 0, :2] = 20.0  # labels far above the predictions
        >>> looks[2, 0, :2] = -20.0
        >>> watch, events = Watch.start(1).extend(looks, [1, 2, 3], log_threshold=15.0)
        >>> [(e.kind, e.direction, e.at, e.since) for e in events]
        [('start', 1, 1.0, 0.0), ('end', 1, 3.0, 0.0)]
        """
        gains = np.asarray(evidence, dtype=np.float64)
        times = np.asarray(at, dtype=np.float64)
        if gains.shape != (len(times), *self.log_evidence.shape):
            raise ValueError(
                f"evidence: got shape {gains.shape}, expected {(len(times), *self.log_evidence.shape)}"
            )
        power = np.asarray(tempering, dtype=np.float64)
        if not ((power > 0.0) & (power <= 1.0)).all():
            raise ValueError(f"tempering: got {power.tolist()}, expected powers above 0 and up to 1")
        gains = gains * power.reshape(-1, 1)
        state = Watch(self.log_evidence.copy(), self.since.copy(), self.leader.copy())
        events: list[AlarmEvent] = []
        for first in range(0, len(times), CHUNK):
            part = slice(first, first + CHUNK)
            state._take_in(gains[part], times[part], log_threshold, events)
        return state, sorted(events, key=lambda e: (e.at, e.stream))

    def next_version(self, at: float) -> Watch:
        """Go on under another set of parameters.

        Every row is scored with the prediction that served it, so "what is served is within the tolerance"
        is one hypothesis for all versions: the evidence goes on. Under a set that is right it falls back to
        none by itself; under a blend of what was and what is it grows to the alarm, dated right. Where an
        alarm stands, the new set is what was done about it: the episode is over, and the stream begins again.

        Parameters
        ----------
        at
            When the set came. Processes without evidence stand at 1 then.

        >>> watch = Watch(np.full((2, PROCESSES), 3.0), np.full((2, PROCESSES), 5.0), np.array([-1, 0]))
        >>> after = watch.next_version(9.0)
        >>> after.log_evidence[:, 0].tolist(), after.since[:, 0].tolist(), after.leader.tolist()
        ([3.0, 0.0], [5.0, 9.0], [-1, -1])
        """
        log_evidence, since = self.log_evidence.copy(), self.since.copy()
        log_evidence[self.leader >= 0] = 0.0
        since[log_evidence <= 0.0] = at
        return Watch(log_evidence, since, np.full_like(self.leader, -1))

    def _take_in(self, gains: Float, times: Float, threshold: float, events: list[AlarmEvent]) -> None:
        """All quiet streams at once; those in alarm, or that come to it, look by look. In place."""
        quiet = np.flatnonzero(self.leader < 0)
        path = np.concatenate([self.log_evidence[quiet][None], gains[:, quiet]]).cumsum(axis=0)
        kept = path - np.minimum(np.minimum.accumulate(path, axis=0), 0.0)  # log max(1, M)
        loud = (log_mean(kept[:-1] + gains[:, quiet]) >= threshold).any(axis=0)
        calm = ~loud
        stood = kept[1:, calm] <= 0.0
        last = len(times) - 1 - np.argmax(stood[::-1], axis=0)
        since = np.where(stood.any(axis=0), times[last], self.since[quiet[calm]])
        self.log_evidence[quiet[calm]] = kept[-1, calm]
        self.since[quiet[calm]] = since
        for stream in [*quiet[loud].tolist(), *np.flatnonzero(self.leader >= 0).tolist()]:
            self._look_by_look(stream, gains[:, stream], times, threshold, events)

    def _look_by_look(
        self, stream: int, gains: Float, times: Float, threshold: float, events: list[AlarmEvent]
    ) -> None:
        evidence, since = self.log_evidence[stream], self.since[stream]
        leader = int(self.leader[stream])
        for gain, now in zip(gains, times.tolist(), strict=True):
            if leader >= 0:
                evidence[leader] = min(evidence[leader] + gain[leader], threshold)
                if evidence[leader] <= 0.0:
                    events.append(_event(stream, "end", leader, now, float(since[leader]), 0.0))
                    leader = -1
                    evidence[:] = 0.0
                    since[:] = now
                continue
            evidence += gain
            mean = float(log_mean(evidence))
            if mean >= threshold:
                best = int(np.argmax(evidence))
                events.append(_event(stream, "start", best, now, float(since[best]), mean))
                leader = _steadier(best)
                evidence[leader] = threshold
                since[leader] = since[best]
                continue
            fallen = evidence <= 0.0
            evidence[fallen] = 0.0
            since[fallen] = now
        self.leader[stream] = leader


def log_mean(log_values: ArrayLike) -> Float:
    """Logarithm of the mean of exponentials over the last axis.

    >>> round(float(log_mean([0.0, 0.0, 700.0])), 3)
    698.901
    """
    values = np.asarray(log_values, dtype=np.float64)
    top = values.max(axis=-1, keepdims=True)
    mean: Float = top[..., 0] + np.log(np.exp(values - top).mean(axis=-1))
    return mean


def _steadier(process: int) -> int:
    """The next smaller stake of the same direction: it grows under the same gap and hardly wavers."""
    first = 0 if process < len(STAKES) else len(STAKES)
    return max(process - 1, first)


def _event(
    stream: int, kind: Literal["start", "end"], leader: int, at: float, since: float, log_evidence: float
) -> AlarmEvent:
    direction = ABOVE if leader < len(STAKES) else BELOW
    return AlarmEvent(stream, kind, direction, at, since, min(log_evidence, _LARGEST))
