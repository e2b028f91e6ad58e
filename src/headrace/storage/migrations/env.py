"""Run by alembic: takes the steps over the connection that `upgrade.py` is in a transaction of."""

from alembic import context

from headrace.storage.tables import metadata, schema

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=schema.name,
    render_as_batch=True,  # SQLite alters a table by writing it anew
)
context.run_migrations()
