"""The fixture ``place``: where refreshes are tested."""

from collections.abc import Iterator

import pytest

from serving_adapter.parameter_stores.embedded import EmbeddedParameterStore
from tests.refresh_support import Place, open_place


@pytest.fixture(scope="module")
def parameter_server() -> Iterator[EmbeddedParameterStore]:
    store = EmbeddedParameterStore()
    yield store
    store.close()


@pytest.fixture
def place(tmp_path, parameter_server: EmbeddedParameterStore) -> Iterator[Place]:
    opened = open_place(tmp_path / "store.db", parameter_server)
    yield opened
    opened.store.close()
