"""An adapter that keeps what it was told, and a recording small enough to read."""

import numpy as np

from serving_adapter.adapter import ServingAdapter
from serving_adapter.contract import (
    Rounds,
)
from serving_adapter.engines.replay import (
    Recording,
    replay_identity,
)
from serving_adapter.parameters import Parameters

DEPLOYMENT = "replay"


class RecordingAdapter:
    """An adapter that keeps what it was told, and offers what the test wants."""

    def __init__(self, gamma=7, explore=0.0):
        self.gamma = gamma
        self.parameters = Parameters.identity(gamma, explore=explore)
        self.calls, self.events, self.labels = [], [], []
        self._explores = ServingAdapter(replay_identity(gamma), DEPLOYMENT, "double", explore=explore)

    def observe(self, logits, accepted, *, request, **columns):
        self.calls.append({"logits": logits, "accepted": accepted, "request": request, **columns})
        self.events.append(("observe", columns["version"]))

    def segment(self, label):
        self.labels.append(label)
        return len(self.labels) + 9  # any numbering of the adapter's own

    def explore_each(self, request, step, probability=None):
        return self._explores.explore_each(request, step, probability)

    def current(self):
        return self.parameters

    def applied(self, version):
        self.events.append(("applied", version))

    def refused(self, version, reason):
        self.events.append(("refused", version, reason))

    def column(self, name):
        return np.concatenate([np.atleast_1d(call[name]) for call in self.calls])


def parameters(version, gamma=7, *, temperature=1.0, offset=0.0, explore=0.0, share=1.0, cost=None):
    return Parameters(
        version=version,
        form="affine",
        temperatures=np.full(gamma, temperature),
        offsets=np.full(gamma, offset),
        explore=explore,
        share=share,
        cost=cost,
    )


def tiny_recording(rows=6, gamma=2, name="tiny", **columns):
    """Two requests of half the rows each; the second one's rounds come first."""
    return Recording.build(
        name,
        Rounds.build(
            logits=np.arange(rows * gamma).reshape(rows, gamma) / 8.0,
            accepted=np.arange(rows) % (gamma + 1),
            request=np.arange(rows) % 2,
            step=rows - np.arange(rows),
            segments=("code", "chat"),
            segment=np.arange(rows) % 2,
            **columns,
        ),
    )
