"""Alembic environment: runs on the connection that the store hands over, inside its transaction."""

from alembic import context

from calibrator.store.schema import metadata

connection = context.config.attributes.get("connection")
if connection is None:
    raise SystemExit(
        "run migrations with `dspark-calibrator migrate` (or calibrator.store.store.Store.migrate)"
    )

context.configure(
    connection=connection,
    target_metadata=metadata,
    transactional_ddl=True,
    compare_type=True,
    compare_server_default=True,
)
with context.begin_transaction():
    context.run_migrations()
