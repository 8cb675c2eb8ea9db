"""Recorded requests coming and going: which recorded round each running request plays next."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from serving_adapter.contract import Rounds
from serving_adapter.engines.replay.drift import DriftScript, Traffic
from serving_adapter.engines.replay.records import Recording
from serving_adapter.exploration import request_hash

Index = NDArray[np.int64]

_LAP = np.uint64(0x9E3779B97F4A7C15)
"""Between the identities of two dealings of a request; any odd number far from small multiples would do."""


class RequestTraffic:
    """A fixed number of running requests, each playing its recorded rounds one step after the other.

    When a request has no rounds left the next one is dealt from the mix of the current phase: every
    request of a mix once, in random order, then again. A request keeps its identity when it is dealt
    again and its rounds are numbered on, so that whatever is split by request is split by recorded
    request (:attr:`laps_apart` makes each dealing another request instead). The requests that run at the
    start are somewhere in their middle, as in an engine that has been serving for a while.

    Parameters
    ----------
    recordings
        Recordings by name, of one gamma; at least those of the script.
    script
        What traffic arrives when.
    concurrency
        Requests running at a time.
    random
        Source of all that is random here.

    Raises
    ------
    ValueError
        Naming a recording or segment that is not there, a gamma that differs, or a concurrency below 1.
    """

    def __init__(
        self,
        recordings: Mapping[str, Recording],
        script: DriftScript,
        concurrency: int,
        random: np.random.Generator,
    ) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency: got {concurrency}, expected at least 1 request")
        self._script = script
        self._random = random
        wanted = sorted({part.recording for phase in script.phases for part in phase.mix})
        missing = [name for name in wanted if name not in recordings]
        if missing:
            raise ValueError(
                f"recording: got {missing[0]!r}, expected one of {', '.join(sorted(recordings))}"
            )
        chosen = {name: recordings[name] for name in wanted}
        gammas = sorted({recording.gamma for recording in chosen.values()})
        if len(gammas) > 1:
            raise ValueError(f"gamma: got recordings of {gammas}, expected one number of draft positions")
        # All rounds of all recordings one after the other; a request is a stretch of them.
        self.rounds = Rounds.concatenate([recording.rounds for recording in chosen.values()])
        self._first, self._end, self.identity = _stretches(chosen)
        self._lap_steps = int(self.rounds.step.max()) + 1
        self._laps = np.zeros(self._first.size, dtype=np.int64)
        self._pools = _pools(chosen, script)
        self._decks: dict[Traffic, list[int]] = {part: [] for part in self._pools}
        self._request = np.zeros(concurrency, dtype=np.int64)
        self._row = np.zeros(concurrency, dtype=np.int64)
        self._lap = np.zeros(concurrency, dtype=np.int64)
        self.laps_apart = False
        """Whether a request that is dealt again counts as another one."""
        self.started = self.finished = 0
        for slot in range(concurrency):
            self._start(slot, 0)
            rounds_left = self._end[self._request[slot]] - self._row[slot]
            self._row[slot] += random.integers(rounds_left)

    @property
    def concurrency(self) -> int:
        """Requests running at a time."""
        return int(self._row.size)

    def rows(self) -> Index:
        """Row of :attr:`rounds` that each running request plays now, shape ``[concurrency]``."""
        return self._row.copy()

    def requests(self) -> NDArray[np.uint64]:
        """Identity of each running request, shape ``[concurrency]``: that of the recorded one."""
        identity = self.identity[self._request]
        if self.laps_apart:
            identity = identity + self._lap.astype(np.uint64) * _LAP
        return identity

    def request_steps(self) -> NDArray[np.uint32]:
        """Round number within each running request, shape ``[concurrency]``."""
        return (self.rounds.step[self._row] + self._lap * self._lap_steps).astype(np.uint32)

    def advance(self, next_step: int) -> None:
        """Go to the next round of every request; replace those that have ended."""
        self._row += 1
        for slot in np.flatnonzero(self._row == self._end[self._request]).tolist():
            self.finished += 1
            self._start(slot, next_step)

    def _start(self, slot: int, step: int) -> None:
        mix = self._script.phases[self._script.index_at(step)].mix
        weights = np.array([part.weight for part in mix])
        part = mix[int(self._random.choice(len(mix), p=weights / weights.sum()))]
        deck = self._decks[part]
        if not deck:
            deck.extend(self._random.permutation(self._pools[part]).tolist())
        request = deck.pop()
        self._request[slot] = request
        self._row[slot] = self._first[request]
        self._lap[slot] = self._laps[request]
        self._laps[request] += 1
        self.started += 1


def _stretches(chosen: Mapping[str, Recording]) -> tuple[Index, Index, NDArray[np.uint64]]:
    first, end, identity, offset = [], [], [], 0
    for name, recording in chosen.items():
        first.append(recording.starts[:-1] + offset)
        end.append(recording.starts[1:] + offset)
        # Recorded ids are only unique within a recording.
        hashed = [request_hash(int(request), name) for request in recording.requests]
        identity.append(np.array(hashed, dtype=np.uint64))
        offset += len(recording.rounds)
    return np.concatenate(first), np.concatenate(end), np.concatenate(identity)


def _pools(chosen: Mapping[str, Recording], script: DriftScript) -> dict[Traffic, Index]:
    offsets, total = {}, 0
    for name, recording in chosen.items():
        offsets[name] = total
        total += len(recording)
    pools: dict[Traffic, Index] = {}
    for part in dict.fromkeys(part for phase in script.phases for part in phase.mix):
        recording = chosen[part.recording]
        labels = np.array(recording.rounds.segments or ("default",))[recording.segment]
        wanted = np.isin(labels, part.segments) if part.segments else np.ones(len(recording), dtype=np.bool_)
        for segment in part.segments:
            if not (labels == segment).any():
                raise ValueError(
                    f"segment: got {segment!r}, which recording {part.recording!r} does not have"
                )
        pools[part] = np.flatnonzero(wanted) + offsets[part.recording]
    return pools
