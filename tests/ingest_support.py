"""What the tests of the pipeline share: rounds, messages, a sink, and the ledger they must match."""

import numpy as np

from calibrator.core.survival import survival
from calibrator.core.windows import WindowSums, fold
from calibrator.store import boots, deployments, windows
from serving_adapter.contract import Rounds, Steps, VerifyBatch
from serving_adapter.contract.events import CONTENT_TYPE_MSGPACK, TOPIC, encode_msgpack
from serving_adapter.ports import Message, TransportError

NOW = 1_700_000_000.0
GAMMA = 5


class ListSink:
    """An event sink that keeps what it is given, and can be told to fail."""

    def __init__(self):
        self.messages = []
        self.failing = False

    def publish(self, messages):
        if self.failing:
            raise TransportError("the sink is down")
        self.messages.extend(messages)
        return len(messages)

    def close(self):
        pass


def make_rounds(count, seed=0, gamma=GAMMA, **columns):
    random = np.random.default_rng(seed)
    verified = random.integers(0, gamma + 1, count).astype(np.uint8)
    accepted = np.minimum(random.geometric(0.3, count) - 1, verified).astype(np.uint8)
    columns.setdefault("request", random.integers(0, 2**64, count, dtype=np.uint64))
    columns.setdefault("step", np.arange(count))
    return Rounds.build(
        random.normal(0.5, 2.0, (count, gamma)).astype(np.float16), accepted, verified=verified, **columns
    )


def make_steps(count, seed=0):
    random = np.random.default_rng(seed)
    tokens = random.integers(1, 300, count)
    return Steps.build(step_seconds=0.01 + tokens * 1e-4, batch_tokens=tokens, rows=4, requests=4)


def make_batch(rounds, sequence=0, *, replica="pod-1", boot="boot-1", emitted_at=NOW, **changes):
    fields = {
        "deployment": "prod",
        "fingerprint": "f" * 32,
        "replica": replica,
        "boot": boot,
        "sequence": sequence,
        "lost": 0,
        "emitted_at": int(emitted_at * 1e9),
        "rounds": rounds,
        "steps": Steps.empty(),
        "gamma": GAMMA if rounds is None else rounds.gamma,
    }
    return VerifyBatch(**(fields | changes))


def message(value, offset, partition=0, content_type=CONTENT_TYPE_MSGPACK):
    value = encode_msgpack(value) if isinstance(value, VerifyBatch) else value
    headers = (("content-type", content_type.encode()),)
    return Message(TOPIC, partition, offset, b"pod-1", value, headers, NOW)


def cut(rounds, size, **changes):
    """The same rounds as messages of ``size`` rows, offsets from 0."""
    return [
        message(make_batch(rounds.take(slice(i, i + size)), i, **changes), offset)
        for offset, i in enumerate(range(0, len(rounds), size))
    ]


def expected_sums(rounds, temperatures=None, offsets=None):
    """Fold all rounds on one machine, in one go."""
    if not len(rounds):
        return WindowSums.zeros(rounds.gamma)
    t = np.ones(rounds.gamma) if temperatures is None else temperatures
    b = np.zeros(rounds.gamma) if offsets is None else offsets
    return fold(rounds, survival(rounds.logits, t, b))


def stored_sums(store, *, raw=True, deployment="prod"):
    with store.read() as connection:
        found = deployments.get(connection, deployment)
        if found is None:
            return WindowSums.zeros(GAMMA)
        return windows.total(connection, found.id, found.gamma, raw=raw)


def ledger(store, deployment="prod", kind="round"):
    with store.read() as connection:
        found = deployments.get(connection, deployment)
        return boots.totals(connection, None if found is None else found.id, kind)
