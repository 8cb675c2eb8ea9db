"""A PostgreSQL server that stands still: requests let go of it, and it is used again when it goes on."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import text

from calibrator.store import Store
from calibrator.store.errors import StoreUnavailableError
from calibrator.store.patience import patience


@contextmanager
def standing_still(process: int) -> Iterator[None]:
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


def test_without_a_request_nobody_counts_and_waiting_inside_is_taken_off(tmp_path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'store.db'}")
    with patience(2.0) as given, store.read() as connection:
        assert connection.execute(text("SELECT 1")).scalar_one() == 1
    assert given.left == 2.0  # a file is not waited for
    with store.read() as connection:
        assert connection.execute(text("SELECT 1")).scalar_one() == 1
    store.close()


@pytest.mark.servers
def test_a_backend_that_stands_still_is_let_go_of_and_the_store_goes_on(postgres_url: str) -> None:
    store = Store(postgres_url, pool_size=1, wait_seconds=2.0)
    with store.read() as connection:
        backend = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
    # Its pooled connection is asked whether it lives, does not answer, and is replaced by a new one.
    with (
        standing_still(backend),
        patience(0.3),
        pytest.raises(StoreUnavailableError),
        store.read() as connection,
    ):
        connection.execute(text("SELECT 1"))
    with store.read() as connection:
        assert connection.execute(text("SELECT 1")).scalar_one() == 1
    store.close()


@pytest.mark.servers
def test_a_statement_that_takes_too_long_for_a_request_is_given_up_and_its_writes_with_it(
    postgres_url: str,
) -> None:
    store = Store(postgres_url, wait_seconds=2.0)
    with store.write() as connection:
        connection.execute(text("CREATE TABLE kept (n int)"))

    def write() -> None:
        with patience(0.3), store.write() as connection:
            connection.execute(text("INSERT INTO kept VALUES (1)"))
            connection.execute(text("SELECT pg_sleep(60)"))

    with pytest.raises(StoreUnavailableError, match="does not answer"):
        write()
    with store.read() as connection:
        assert connection.execute(text("SELECT count(*) FROM kept")).scalar_one() == 0
        # Nobody waits for this: it may take as long as it takes.
        connection.execute(text("SELECT pg_sleep(0.5)"))
    store.close()
