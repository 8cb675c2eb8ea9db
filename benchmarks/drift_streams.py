"""Rounds of whole recorded requests, as a batch serves them, and the e-process on many such streams at once.

Every run draws recorded requests at random and serves so many at a time, one round of each in turn; when one
ends the next is drawn. Predictions are an affine fit to the recording and labels are as recorded, so the gap
of every position over all requests is known. All runs take their rounds in together, look by look, as
``Watch.extend`` does it for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks import drift
from calibrator.core.drift import PROCESSES, DriftRules, Tempering, tempering
from calibrator.core.drift.sums import bet_index, bet_table
from calibrator.core.drift.watch import log_mean
from calibrator.core.labels import prefix_labels
from serving_adapter.engines.replay import load_recording

CHUNK = 250
"""Runs at a time, whose state fits a core's cache."""

SAMPLE_ROWS = 20_000
"""Rows of a segment that the service keeps."""

FIRST_ESTIMATE = 32
"""Rows before the first estimate; a service that looks later has more."""


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """A recording with predictions; ``gaps`` are mean predictions less mean labels over all its rounds."""

    predicted: np.ndarray
    labels: np.ndarray
    starts: np.ndarray
    gaps: np.ndarray

    @classmethod
    def load(cls, name: str, gap: float | None = None) -> Served:
        """Predictions as fitted, or shifted until the gap of every position is ``gap``."""
        recording = load_recording(name)
        predicted = drift.survival(name)
        labels = prefix_labels(recording.rounds)
        if gap is not None:
            predicted = np.clip(predicted + gap - (predicted - labels).mean(axis=0), 0.0, 1.0)
        return cls(predicted, labels, recording.starts, (predicted - labels).mean(axis=0))

    @property
    def gamma(self) -> int:
        return int(self.labels.shape[1])

    def shifted(self, gap: float) -> np.ndarray:
        return np.minimum(self.predicted + gap, 1.0)

    def bets(self, predicted: np.ndarray, rules: DriftRules) -> np.ndarray:
        """Log evidence of every recorded round, shape ``[rows, gamma * PROCESSES]``."""
        return bet_table(rules.tolerance)[bet_index(predicted, self.labels)].reshape(len(predicted), -1)

    def streams(
        self, runs: int, rounds: int, concurrency: int, random: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Recorded rows that are served, and their request as numbered in the run, ``[rounds, runs]``."""
        lengths = np.diff(self.starts)
        turns = -(-rounds // concurrency)
        rows = np.empty((turns, concurrency, runs), dtype=np.int32)
        owner = np.empty((turns, concurrency, runs), dtype=np.int32)
        enough = turns // int(lengths.min()) + 1
        few = min(enough, int(turns / lengths.mean() * 2) + 20)
        for run in range(runs):
            dealt = 0
            for slot in range(concurrency):
                drawn = random.integers(len(lengths), size=few)
                while lengths[drawn].sum() < turns:
                    drawn = np.append(drawn, random.integers(len(lengths), size=few))
                mine = lengths[drawn]
                ends = np.cumsum(mine)
                place = np.repeat(np.arange(len(drawn)), mine)[:turns]
                rows[:, slot, run] = np.arange(turns) - (ends - mine - self.starts[drawn])[place]
                owner[:, slot, run] = dealt + place
                dealt += int(place[-1]) + 1
        return rows.reshape(-1, runs)[:rounds], owner.reshape(-1, runs)[:rounds]


Powers = list[tuple[int, np.ndarray]]
"""Tempering by the round from which it holds, shape ``[runs, gamma]`` each."""


def powers_of(
    served: Served,
    residuals: np.ndarray,
    rows: np.ndarray,
    owner: np.ndarray,
    how: str,
    random: np.random.Generator,
) -> Powers:
    """``none``; ``1/m`` of the longest request; or ``service``: of the rows before, whenever they doubled.

    Before there is an estimate the service's assumption holds. Beyond :data:`SAMPLE_ROWS` an estimate is
    of so many of the rows, drawn at random, with their inclusion probability.
    """
    rounds, runs = rows.shape
    if how == "none":
        return [(0, np.ones((runs, served.gamma)))]
    if how == "1/m":
        return [(0, np.full((runs, served.gamma), 1.0 / np.diff(served.starts).max()))]
    found = [(0, np.tile(Tempering.unknown(served.gamma).calibration, (runs, 1)))]
    at = FIRST_ESTIMATE
    while at < rounds:
        powers = np.empty((runs, served.gamma))
        for run in range(runs):
            thin = at > SAMPLE_ROWS
            kept = random.choice(at, SAMPLE_ROWS, replace=False) if thin else slice(at)
            inclusion = np.full(SAMPLE_ROWS, SAMPLE_ROWS / at) if thin else None
            r = residuals[rows[kept, run]]
            powers[run] = tempering(r, np.ones(r.shape, dtype=np.bool_), owner[kept, run], inclusion)
        found.append((at, powers))
        at *= 2
    return found


def first_alarms(
    bets: Sequence[tuple[int, np.ndarray]], rows: np.ndarray, powers: Powers, log_threshold: float
) -> np.ndarray:
    """Round of the first alarm, watched at every round, shape ``[runs, gamma]``; -1 without one.

    ``bets`` of the recorded rows, by the round from which they hold.
    """
    rounds, runs = rows.shape
    gamma = bets[0][1].shape[1] // PROCESSES
    first = np.full((runs, gamma), -1)
    evidence = np.zeros((runs, gamma * PROCESSES))
    gain = np.empty_like(evidence)
    power = np.empty_like(evidence)
    tables, changes = dict(bets), dict(powers)
    table = bets[0][1]
    for i in range(rounds):
        table = tables.get(i, table)
        if i in changes:
            power[:] = np.repeat(changes[i], PROCESSES, axis=1)
        np.take(table, rows[i], axis=0, out=gain, mode="clip")
        gain *= power
        evidence += gain
        if evidence.max() >= log_threshold:  # the mean is at most the largest
            by_stream = evidence.reshape(runs, gamma, PROCESSES)
            loud = np.nonzero(by_stream.max(axis=2) >= log_threshold)
            over = log_mean(by_stream[loud]) >= log_threshold
            run, position = loud[0][over], loud[1][over]
            first[run, position] = np.where(first[run, position] < 0, i, first[run, position])
            by_stream[run, position] = 0.0
        np.maximum(evidence, 0.0, out=evidence)
    return first


def chunks(runs: int, seed: int) -> list[tuple[int, np.random.Generator]]:
    """Runs of every chunk and its source of chance."""
    sizes = [min(CHUNK, runs - done) for done in range(0, runs, CHUNK)]
    return [(size, np.random.default_rng([seed, i])) for i, size in enumerate(sizes)]
