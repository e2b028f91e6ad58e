"""The tables that hold what servers remember. Whoever changes them adds a migration.

Every row is of one server, by its address: servers may share a database.
"""

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

HEAD = "002"  # the newest of migrations/versions

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

rollouts = Table(
    "headrace_rollouts",
    metadata,
    Column("server", String, primary_key=True),
    Column("id", String, primary_key=True),
    Column("name", String, nullable=False),
    Column("state", String, nullable=False),
    Column("record", Text, nullable=False),  # JSON: what was asked for and how far it is
    Column("created_at", Double, nullable=False),
    Column("ended_at", Double),
    Index("headrace_rollouts_of_server", "server", "created_at"),
)

rollout_decisions = Table(
    "headrace_rollout_decisions",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("server", String, nullable=False),
    Column("rollout_id", String, nullable=False),
    Column("at", Double, nullable=False),
    Column("kind", String, nullable=False),
    Column("stage_percent", Double, nullable=False),
    Column("reason", Text, nullable=False),
    Column("numbers", Text, nullable=False),  # JSON
    Index("headrace_rollout_decisions_of_rollout", "server", "rollout_id", "id"),
)

experiments = Table(
    "headrace_experiments",
    metadata,
    Column("server", String, primary_key=True),
    Column("id", String, primary_key=True),
    Column("name", String, nullable=False),
    Column("spec", Text, nullable=False),  # JSON
    Column("state", String, nullable=False),
    Column("conclusion", Text),  # JSON: who won, and the numbers that said so
    Column("created_at", Double, nullable=False),
    Column("ended_at", Double),
    Index("headrace_experiments_of_server", "server", "created_at"),
)

experiment_counts = Table(
    "headrace_experiment_counts",
    metadata,
    Column("server", String, primary_key=True),
    Column("experiment_id", String, primary_key=True),
    Column("variant", String, primary_key=True),  # a model id
    Column("data", Text, nullable=False),  # JSON
)

feedback = Table(
    "headrace_feedback",
    metadata,
    Column("server", String, primary_key=True),
    Column("request_id", String, primary_key=True),
    Column("experiment_id", String, nullable=False),
    Column("variant", String, nullable=False),  # a model id
    Column("user_id", String, nullable=False),
    Column("score", Double),  # none was sent yet
    Column("at", Double, nullable=False),
    Index("headrace_feedback_of_experiment", "server", "experiment_id", "at"),
)
