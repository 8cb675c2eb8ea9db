"""One deployment in a closed loop: serve, keep a weighted sample, refresh; each part as the service does it.

Time is counted in served rounds. What a part is worth shows by switching it off: exploration control, soft
labels, forgetting at alarms, strata and sets per segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrator.core.candidate import ProposalOptions
from calibrator.core.drift import DriftRules, DriftSums, Tempering, Watch, tempering
from calibrator.core.labels import included, prefix_labels
from calibrator.core.parameter_set import ParameterSet
from calibrator.core.proposal import propose
from calibrator.core.record import figures_of_record
from calibrator.core.sample import inclusion_probability, keep_smallest, priority_key
from calibrator.service.deployment_settings import ExploreSettings, RecencySettings
from calibrator.service.exploration import plan_exploration
from calibrator.service.segments import SegmentSupport, decide_segments
from calibrator.store.step_sample import StepSample
from serving_adapter.contract import Rounds, Steps
from serving_adapter.engines.replay import Machine
from serving_adapter.scheduler import Asynchronous

Float = NDArray[np.float64]
Columns = dict[str, NDArray[Any]]

OPTIONS = ProposalOptions(form="affine", folds=3, resamples=60)
LOOK_ROWS = 100
NO_STEPS = StepSample(
    Steps.build(step_seconds=np.zeros(0)), np.zeros(0), np.zeros(0), np.zeros(0, dtype=np.str_)
)


@dataclass(frozen=True, slots=True)
class LoopOptions:
    """What the loop does.

    Parameters
    ----------
    half_life, interval
        Of the sample, and between refreshes; in rounds.
    explore
        A fixed probability, or None: decided at every refresh, from 1 % up.
    soft
        Engines report acceptance probabilities.
    forget
        Alarms of calibration drift drop what came before the drift began.
    carry
        A new version does not begin the evidence of drift anew, as in the service.
    segments
        Rounds bear the name of their segment: strata, alarms and sets of their own.
    proposal
        What a refresh may do.
    """

    half_life: float = 32_000.0
    interval: int = 2000
    explore: float | None = 0.01
    soft: bool = False
    forget: bool = False
    carry: bool = True
    segments: bool = False
    sample_rows: int = 10_000
    batch: int = 64
    proposal: ProposalOptions = OPTIONS


@dataclass(slots=True)
class Stratum:
    """A bounded sample with forward decay, as collectors keep it (bottom-k by priority)."""

    half_life: float
    limit: int
    kept: Columns = field(default_factory=dict)
    threshold: float = np.inf

    def offer(self, rows: Columns, random: np.random.Generator) -> None:
        """Take in rows; those of the smallest keys remain."""
        key = priority_key(random.random(len(rows["arrival"])), rows["arrival"], self.half_life)
        fresh = {**rows, "key": key, "share": np.ones(len(key))}
        pool = {n: np.concatenate([self.kept[n], v]) if self.kept else v for n, v in fresh.items()}
        pool = {n: v[pool["key"] < self.threshold] for n, v in pool.items()}
        chosen, threshold = keep_smallest(pool["key"], self.limit)
        self.threshold = min(self.threshold, threshold)
        self.kept = {n: v[chosen] for n, v in pool.items()}

    def inclusion(self) -> Float:
        """Probability with which each kept row is in the sample, shape ``[rows]``."""
        share: Float = self.kept["share"]
        return share * inclusion_probability(self.threshold, self.kept["arrival"], self.half_life)

    def forget(self, before: float, random: np.random.Generator) -> None:
        """Delete rows from before; the others compete afresh (:mod:`calibrator.store.forgetting`)."""
        if not self.kept:
            return
        self.kept["share"] = self.inclusion()
        self.kept["key"] = priority_key(
            random.random(len(self.kept["key"])), self.kept["arrival"], self.half_life
        )
        self.kept = {n: v[self.kept["arrival"] >= before] for n, v in self.kept.items()}
        self.threshold = np.inf


@dataclass(slots=True)
class Alarms:
    """Calibration alarms of one segment; ``opened`` says by position when its drift began."""

    watch: Watch
    tempering: Float
    opened: dict[int, float] = field(default_factory=dict)
    rows: int = 0
    estimated_at: int = 0

    def next_version(self, at: float) -> None:
        """Go on under another version: evidence is kept, but of what is in alarm."""
        self.watch = self.watch.next_version(at)
        self.opened = {}
        self.rows = self.estimated_at = 0


class Loop:
    """Serve, keep a sample, refresh.

    ``served`` holds all rows that requests are taken from, every position verified; ``seed`` is that of
    requests, exploration and sampling.
    """

    def __init__(self, served: Rounds, options: LoopOptions, seed: int) -> None:
        if not options.segments:
            served = replace(served, segment=np.zeros(len(served), dtype=np.uint16), segments=())
        if not options.soft:
            served = replace(served, accept_probability=None)
        self.served = served
        self.options = options
        self.random = np.random.default_rng(seed)
        self.in_force = ParameterSet.identity(served.gamma)
        self.explore = 0.01 if options.explore is None else options.explore
        self.cost = Machine.with_knee(256).cost
        self.scheduler = Asynchronous()
        self.now = 0.0
        self.requests = 0
        self.strata: dict[str, Stratum] = {}
        self.alarms: dict[str, Alarms] = {}
        self.cuts: dict[str, float] = {}
        self.published = 0
        self.explored: list[float] = []

    def serve(self, requests: Sequence[NDArray[Any]]) -> None:
        """One interval: rows of ``requests`` (indices into the served rows) drawn with replacement."""
        parts: list[NDArray[Any]] = []
        owners: list[NDArray[Any]] = []
        while sum(map(len, parts)) < self.options.interval:
            parts.append(requests[int(self.random.integers(len(requests)))])
            owners.append(np.full(len(parts[-1]), self.requests))
            self.requests += 1
        order = self.random.permutation(sum(map(len, parts)))[: self.options.interval]
        index, owner = np.concatenate(parts)[order], np.concatenate(owners)[order]
        predicted = self.in_force.survival(self.served.take(index))
        batch = self.options.batch
        scheduled = np.concatenate(
            [self.scheduler.lengths(predicted[i : i + batch], self.cost) for i in range(0, len(index), batch)]
        )
        full = self.random.random(len(index)) < self.explore
        arrival = self.now + np.arange(1.0, len(index) + 1)
        self.now = float(arrival[-1])
        self.explored.append(self.explore)
        rows: Columns = {
            "index": index,
            "request": owner,
            "scheduled": scheduled,
            "verified": np.where(full, self.served.gamma, scheduled),
            "explore": np.full(len(index), self.explore),
            "arrival": arrival,
        }
        names = np.array(self.served.take(index).segment_names(), dtype=object)
        for name in sorted(set(names.tolist())):
            mine = names == name
            columns = {n: v[mine] for n, v in rows.items()}
            stratum = self.strata.setdefault(name, Stratum(self.options.half_life, self.options.sample_rows))
            if self.options.forget:
                self._watch(name, columns, predicted[mine])
            stratum.offer(columns, self.random)

    def refresh(self) -> None:
        """Forget what alarms ask for, propose, decide segments and exploration, publish what is news."""
        self._forget()
        rounds, weights = self._sample()
        pooled = replace(self.in_force, entries=())
        proposal = propose(rounds, pooled, self.options.proposal, weights)
        chosen = proposal.parameters if proposal.publish else pooled
        explore, news = self._exploration(rounds, weights)
        entries = self.in_force.entries
        if self.options.segments:
            decided = decide_segments(
                rounds, weights, chosen, proposal, entries, SegmentSupport(True, ()), self.options.proposal
            )
            entries, news = decided.entries, news or decided.changed
        if not (proposal.publish or news):
            return
        self.in_force = replace(chosen, entries=entries)
        self.explore = explore
        self.published += 1
        if self.published == 1 or not self.options.carry:
            self.alarms = {}  # what the identity got wrong says nothing of a change
        for alarms in self.alarms.values():
            alarms.next_version(self.now)

    def _rounds(self, rows: Columns) -> Rounds:
        """What the engine reports of these rows."""
        truth = self.served.take(rows["index"])
        soft = truth.accept_probability
        if soft is not None:
            soft = np.where(np.arange(truth.gamma) < rows["verified"][:, None], soft, np.nan)
        return Rounds.build(
            truth.logits,
            np.minimum(truth.accepted, rows["verified"]),
            verified=rows["verified"],
            scheduled=rows["scheduled"],
            request=rows["request"],
            explore=rows["explore"],
            draft_stop=truth.draft_stop,
            sampling=truth.sampling,
            segment=truth.segment,
            segments=truth.segments,
            accept_probability=soft,
        )

    def _sample(self) -> tuple[Rounds, Float]:
        """Rows of every stratum, and their weights with a mean of one."""
        strata = [s for s in self.strata.values() if s.kept and len(s.kept["key"])]
        rows = {n: np.concatenate([s.kept[n] for s in strata]) for n in strata[0].kept}
        inclusion = np.concatenate([s.inclusion() for s in strata])
        weights = np.exp2(-(self.now - rows["arrival"]) / self.options.half_life) / inclusion
        return self._rounds(rows), weights / weights.mean()

    def _exploration(self, rounds: Rounds, weights: Float) -> tuple[float, bool]:
        """The probability for the next version, and whether it is worth one by itself."""
        if self.options.explore is not None:
            return self.explore, False
        survival = self.in_force.survival(rounds)
        plan = plan_exploration(
            ExploreSettings(),
            0.01,
            self.explore,
            [],
            figures_of_record(survival, rounds, 1, sample_weights=weights),  # counts do not depend on bins
            rounds,
            weights,
            survival,
            NO_STEPS,
            self.cost,
        )
        return plan.explore, plan.worth_a_version

    def _watch(self, name: str, rows: Columns, predicted: Float) -> None:
        """Bet on the predictions in force; note when a drift began that raises an alarm."""
        gamma = self.served.gamma
        alarms = self.alarms.get(name)
        if alarms is None:
            begin = Watch.start(gamma, float(rows["arrival"][0]) - 1.0)
            alarms = self.alarms[name] = Alarms(begin, Tempering.unknown(gamma).calibration)
        if alarms.rows >= 2 * alarms.estimated_at:
            alarms.tempering, alarms.estimated_at = self._tempering(name), max(alarms.rows, len(predicted))
        alarms.rows += len(predicted)
        rounds = self._rounds(rows)
        looks = [slice(i, i + LOOK_ROWS) for i in range(0, len(rounds), LOOK_ROWS)]
        evidence = np.stack([DriftSums.fold(rounds.take(s), predicted[s]).evidence for s in looks])
        at = [float(rows["arrival"][s][-1]) for s in looks]
        threshold = DriftRules().log_threshold(gamma * max(1, len(self.strata)))
        alarms.watch, events = alarms.watch.extend(evidence, at, threshold, alarms.tempering)
        for event in events:
            if event.kind == "start":
                alarms.opened[event.stream] = event.since
            else:
                alarms.opened.pop(event.stream, None)

    def _tempering(self, name: str) -> Float:
        """For rows of one request that share their luck: estimated from the sample as it was before.

        For every version and when its rows have doubled, as in :mod:`calibrator.service.tempering`.
        """
        stratum = self.strata[name]
        if not stratum.kept:
            return Tempering.unknown(self.served.gamma).calibration
        rounds = self._rounds(stratum.kept)
        residuals = prefix_labels(rounds) - self.in_force.survival(rounds)
        return tempering(residuals, included(rounds), rounds.request, stratum.inclusion())

    def _forget(self) -> None:
        """Cut where a drift began, once enough rows have come since (:mod:`calibrator.service.recency`)."""
        for name, alarms in self.alarms.items():
            starts = [since for since in alarms.opened.values() if since > self.cuts.get(name, -1.0)]
            arrival = self.strata[name].kept["arrival"]
            ripe = [s for s in starts if (arrival >= s).sum() >= RecencySettings().min_rows]
            if ripe:
                self.strata[name].forget(max(ripe), self.random)
                self.cuts[name] = self.now
