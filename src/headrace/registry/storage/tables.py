"""The tables that hold what servers remember. Whoever changes them adds a migration."""

from sqlalchemy import (
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
)

HEAD = "001"  # the newest of migrations/versions

metadata = MetaData()

# Names carry a prefix, because a PostgreSQL database may be shared with others.
schema = Table(
    "headrace_schema", metadata, Column("version_num", String(32), primary_key=True)
)  # as alembic wants it

models = Table(
    "headrace_models",
    metadata,
    Column("server", String, primary_key=True),
    Column("name", String, primary_key=True),
    Column("declaration", String, nullable=False),
    Column("active", Integer),
    Column("previous", Integer),
)

versions = Table(
    "headrace_versions",
    metadata,
    Column("server", String, primary_key=True),
    Column("name", String, primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("spec", Text, nullable=False),  # JSON
    Column("state", String, nullable=False),
    Column("is_declared", Boolean, nullable=False),
    Column("reason", Text),
)

changes = Table(
    "headrace_changes",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("server", String, nullable=False),
    Column("kind", String, nullable=False),
    Column("name", String, nullable=False),
    Column("previous", String),
    Column("active", String),
    Column("who", String, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("ended_at", Double),
    Column("outcome", String, nullable=False),
    Column("detail", Text),
    Index("headrace_changes_of_server", "server", "id"),
)
