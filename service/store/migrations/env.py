"""Alembic runs this file; it works on the connection that ``service.store.migrate`` hands over."""

from alembic import context

from service.store.tables import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,  # SQLite changes a table by making a new one
)
with context.begin_transaction():
    context.run_migrations()
