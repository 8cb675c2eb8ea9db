"""A service filled by the real pipeline, shared by the tests that only read."""

from collections.abc import Iterator

import pytest

from calibrator.store import deployments
from serving_adapter.parameter_stores.embedded import EmbeddedParameterStore
from tests.reading_rows import ROUNDS
from tests.recorded import recorded
from tests.web_support import Service, open_service


@pytest.fixture(scope="session")
def filled(tmp_path_factory) -> Iterator[Service]:
    """``chat`` with traffic, steps and version 1; ``quiet`` without anything; ``other`` with rows."""
    folder = tmp_path_factory.mktemp("filled")
    parameter_store = EmbeddedParameterStore()
    try:
        with open_service(f"sqlite:///{folder}/store.db", parameter_store, folder) as service:
            service.fill(ROUNDS)
            with service.context.store.write() as connection:
                deployments.register(connection, "quiet", 3, "f", service.clock.now())
            service.ingest(recorded("hard").take(slice(0, 500)), "other")
            service.report("chat", applied=1)
            yield service
    finally:
        parameter_store.close()
