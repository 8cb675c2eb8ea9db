"""Collectors score every row with the set that served it: by version, segment, sampling and engine."""

import numpy as np
import pytest

from calibrator.core.document_survival import document_survival
from calibrator.core.windows import WindowSums, fold
from calibrator.store import Store, deployments, parameters
from collectors.options import PipelineOptions
from collectors.pipeline import IngestPipeline
from serving_adapter.clock import ManualClock
from serving_adapter.contract import ParameterDocument
from tests.ingest_support import GAMMA, NOW, ListSink, make_batch, make_rounds, message, stored_sums
from tests.test_contract_segments import document, entry

LABELS = ("chat", "code", "elsewhere")
SETS = [
    entry("code", offset=1.5, gamma=GAMMA),
    entry("*", "high", offset=-1.5, gamma=GAMMA),
    entry("code", "high", offset=2.5, gamma=GAMMA),
]


@pytest.fixture
def store(tmp_path):
    opened = Store(f"sqlite:///{tmp_path / 'store.db'}")
    opened.migrate()
    yield opened
    opened.close()


def publish(store, version, entries) -> ParameterDocument:
    made = document(
        entries, gamma=GAMMA, deployment="prod", version=version, offsets=[0.25 * version] * GAMMA
    )
    with store.write() as connection:
        known = deployments.register(connection, "prod", GAMMA, "f" * 32, NOW)
        parameters.append(connection, known.id, made, NOW, "published")
    return made


def rows_of(versions, seed):
    random = np.random.default_rng(seed)
    return make_rounds(
        400, seed, version=random.choice(versions, 400), segment=random.integers(0, 3, 400), segments=LABELS,
        sampling=random.choice([0.0, 0.7, 1.5], 400),
    )  # fmt: skip


@pytest.mark.parametrize("versions", [[2], [0, 1, 2, 3]])
def test_figures_in_force_are_those_of_the_set_that_served(store, versions):
    made = {1: publish(store, 1, []), 2: publish(store, 2, SETS), 3: publish(store, 3, SETS[:1])}
    made[0] = document(gamma=GAMMA)  # the identity
    parts = {"pod-1": (rows_of(versions, 1), True), "pod-2": (rows_of(versions, 2), False)}
    pipeline = IngestPipeline(store, ListSink(), ManualClock(NOW), PipelineOptions())
    pipeline.ingest(
        [
            message(make_batch(rows, replica=replica, segment_sets=sets), offset)
            for offset, (replica, (rows, sets)) in enumerate(parts.items())
        ]
    )
    expected = WindowSums.zeros(GAMMA)
    for rows, sets in parts.values():
        predicted = np.empty(rows.logits.shape)
        for version in versions:
            mine = rows.version == version
            served = np.full(int(mine.sum()), sets)
            predicted[mine] = document_survival(made[version], rows.take(mine), served)
        expected += fold(rows, predicted)
    stored = stored_sums(store, raw=False)
    assert np.array_equal(stored.scalars, expected.scalars)
    assert np.array_equal(stored.bins, expected.bins)
