"""Migrations give the tables of the models, forwards and backwards, on SQLite and PostgreSQL."""

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect, text

from calibrator.store.errors import SchemaError
from calibrator.store.schema import metadata
from calibrator.store.store import Store


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.servers)])
def empty_store(request, tmp_path):
    url = (
        f"sqlite:///{tmp_path}/store.db"
        if request.param == "sqlite"
        else request.getfixturevalue("postgres_url")
    )
    store = Store(url)
    yield store
    store.close()


def index_described(index):
    """An index as text: the condition of a partial one is an object of SQLAlchemy's without a repr."""
    options = {name: str(value) for name, value in index.get("dialect_options", {}).items()}
    return repr({**index, "dialect_options": options})


def described(store):
    with store.read() as connection:
        inspector = inspect(connection)
        return {
            table: {
                "columns": [
                    (c["name"], repr(c["type"]), c["nullable"], c["default"])
                    for c in inspector.get_columns(table)
                ],
                "primary": inspector.get_pk_constraint(table),
                "unique": sorted(map(repr, inspector.get_unique_constraints(table))),
                "foreign": sorted(map(repr, inspector.get_foreign_keys(table))),
                "indexes": sorted(map(index_described, inspector.get_indexes(table))),
            }
            for table in sorted(inspector.get_table_names())
        }


def test_the_models_are_what_the_migrations_make(empty_store):
    empty_store.migrate()
    with empty_store.read() as connection:
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "compare_server_default": True}
        )
        assert compare_metadata(context, metadata) == []


def test_down_and_up_again_gives_the_same_schema(empty_store):
    empty_store.migrate()
    first = described(empty_store)
    empty_store.downgrade()
    assert set(described(empty_store)) <= {"alembic_version"}
    empty_store.migrate()
    assert described(empty_store) == first
    assert set(first) == {*metadata.tables, "alembic_version"}


def test_migrating_twice_changes_nothing(empty_store):
    empty_store.migrate()
    empty_store.migrate()
    empty_store.check_schema()


def test_a_database_without_tables_is_told_apart(empty_store):
    with pytest.raises(SchemaError, match="dspark-calibrator migrate"):
        empty_store.check_schema()


def test_every_constraint_has_a_name(empty_store):
    empty_store.migrate()
    with empty_store.read() as connection:
        inspector = inspect(connection)
        for table in metadata.tables:
            assert inspector.get_pk_constraint(table)["name"] == f"pk_{table}"
            for key in inspector.get_foreign_keys(table):
                assert key["name"].startswith(f"fk_{table}_")
            for unique in inspector.get_unique_constraints(table):
                assert unique["name"].startswith(f"uq_{table}_")


def test_a_failed_migration_leaves_nothing_behind(empty_store):
    class BrokenOffError(Exception):
        pass

    def migrate_and_break_off():
        with empty_store.write() as connection:
            from alembic import command

            command.upgrade(Store._alembic(connection), "head")
            assert connection.scalar(text("SELECT count(*) FROM windows")) == 0
            raise BrokenOffError

    with pytest.raises(BrokenOffError):
        migrate_and_break_off()
    assert "windows" not in described(empty_store)
