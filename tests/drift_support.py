"""A replay engine over the real pipeline, looked at every ten seconds, for tests of alarms."""

import numpy as np

from calibrator.service.drift import DriftEvaluator
from calibrator.service.drift_options import DriftOptions
from calibrator.store import deployments, episodes
from serving_adapter.contract import Rounds, Steps
from serving_adapter.engines.replay import DriftScript, Machine, Recording, ReplayEngine, Traffic
from serving_adapter.step_cost import StepCost
from tests.replay_doubles import RecordingAdapter

GAMMA = 4
LOOK_SECONDS = 10.0
OPTIONS = DriftOptions(reference_rows=2000, traffic_seconds=60.0, traffic_rows=2000)


def honest(name, conditional, seed=0, requests=300, rounds=40, bias=0.0):
    """A recording whose head says the truth (plus ``bias`` in logits) about its drafter.

    ``conditional(random, shape)`` draws the probabilities with which drafts are accepted.
    """
    random = np.random.default_rng(seed)
    shape = (requests * rounds, GAMMA)
    c = np.clip(conditional(random, shape), 0.02, 0.98)
    accepted = np.cumprod(random.random(shape) < c, axis=1).sum(axis=1)
    return Recording.build(
        name,
        Rounds.build(
            (np.log(c / (1 - c)) + bias).astype(np.float16),
            accepted,
            request=np.repeat(np.arange(requests), rounds),
            step=np.tile(np.arange(rounds), requests),
        ),
    )


def around(level, spread=0.1):
    return lambda random, shape: random.normal(level, spread, shape)


class ChangingMachine:
    """A machine that takes ``factor`` times as long; the scheduler knows nothing of the factor."""

    def __init__(self, noise=0.08):
        random = np.random.default_rng(7)
        sizes = [1, 64, 256]
        self.machine = Machine(
            StepCost(sizes, [0.03 + 0.001 * size for size in sizes]),
            np.exp(random.normal(0.0, noise, 2000)),
        )
        self.factor = 1.0
        self.stalls = False
        self.steps = 0

    @property
    def cost(self):
        return self.machine.cost

    def step_seconds(self, batch_tokens, random):
        self.steps += 1
        stall = 50.0 if self.stalls and self.steps % 200 == 0 else 1.0
        return self.machine.step_seconds(batch_tokens, random) * self.factor * stall


class Served:
    """Serves ``steps`` at a time into the store of ``place`` and looks for drift after each."""

    def __init__(self, place, recordings, *, script=None, concurrency=32, options=OPTIONS):
        self.place = place
        self.adapter = RecordingAdapter(GAMMA, explore=0.05)
        self.machine = ChangingMachine()
        self.context = 1000
        recordings = {recording.name: recording for recording in recordings}
        self.engine = ReplayEngine(
            self.adapter,
            recordings=recordings,
            script=script or DriftScript.steady(next(iter(recordings))),
            concurrency=concurrency,
            machine=self.machine,
        )
        self.evaluator = DriftEvaluator(place.store, place.clock, options)

    def ingest(self, steps):
        self.adapter.calls.clear()
        rounds = [self.engine.step().rounds for _ in range(steps)]
        columns = {
            name: [call[name] for call in self.adapter.calls]
            for name in ("step_seconds", "verify_seconds", "batch_tokens", "requests", "predicted_seconds")
        }
        self.place.ingest(
            Rounds.concatenate(rounds), steps=Steps.build(context_tokens=[self.context] * steps, **columns)
        )

    def look(self):
        self.place.clock.advance(LOOK_SECONDS)
        return self.evaluator.evaluate("chat", self.place.clock.now())

    def serve(self, looks, steps=20):
        """Episodes that so many looks opened or ended, in order."""
        changed = []
        for _ in range(looks):
            self.ingest(steps)
            changed += self.look()
        return changed

    def open(self):
        with self.place.store.read() as connection:
            deployment = deployments.get(connection, "chat")
            return episodes.opened(connection, deployment.id)


def switch(before, after, at):
    return DriftScript.switch([Traffic(before)], [Traffic(after)], at)


def kinds(found):
    return {episode.kind for episode in found}
