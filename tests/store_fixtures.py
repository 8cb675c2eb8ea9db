"""A migrated store on each database."""

import pytest

from calibrator.store import Store

BOTH = ["sqlite", pytest.param("postgresql", marks=pytest.mark.servers)]


def database_url(request, tmp_path):
    """URL of an empty database of the kind that the fixture is parametrised with."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    return request.getfixturevalue("postgres_url")


@pytest.fixture(params=BOTH)
def store_url(request, tmp_path):
    return database_url(request, tmp_path)


@pytest.fixture
def store(store_url):
    opened = Store(store_url)
    opened.migrate()
    yield opened
    opened.close()
