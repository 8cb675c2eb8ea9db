"""A service filled by the real pipeline, shared by the tests that only read."""

from collections.abc import Iterator

import numpy as np
import pytest

from calibrator.core.labels import prefix_labels
from calibrator.core.survival import survival
from calibrator.core.windows import WindowSums, fold
from serving_adapter.contract import Rounds
from serving_adapter.parameter_stores.embedded import EmbeddedParameterStore
from tests.recorded import recorded
from tests.web_support import Service, open_service, segmented

ROUNDS = 6000


@pytest.fixture(scope="session")
def filled(tmp_path_factory) -> Iterator[Service]:
    """Deployment ``chat`` with traffic, steps and version 1; ``quiet`` without anything; ``other`` with rows."""
    folder = tmp_path_factory.mktemp("filled")
    parameter_store = EmbeddedParameterStore()
    try:
        with open_service(f"sqlite:///{folder}/store.db", parameter_store, folder) as service:
            service.fill(ROUNDS)
            from calibrator.store import deployments

            with service.context.store.write() as connection:
                deployments.register(connection, "quiet", 3, "f", service.clock.now())
            service.ingest(recorded("hard").take(slice(0, 500)), "other")
            service.report("chat", applied=1)
            yield service
    finally:
        parameter_store.close()


def traffic() -> Rounds:
    """What the fixture has ingested for ``chat``."""
    return recorded("typical").take(slice(0, ROUNDS + 2000))


def first_part() -> Rounds:
    """The part of it that is dealt to segments."""
    return segmented(recorded("typical").take(slice(0, ROUNDS)))


def raw_survival(rounds: Rounds) -> np.ndarray:
    return survival(rounds.logits, np.ones(rounds.gamma), np.zeros(rounds.gamma))


def raw_sums(rounds: Rounds) -> WindowSums:
    return fold(rounds, raw_survival(rounds))


def labelled(rounds: Rounds) -> tuple[np.ndarray, np.ndarray]:
    """Labels, and which positions belong to the traffic, each [rows, gamma]."""
    from calibrator.core.labels import included

    return prefix_labels(rounds), included(rounds)
